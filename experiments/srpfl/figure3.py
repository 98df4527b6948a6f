"""Figure 3 of the SRPFL paper: full participation, fixed speeds.

python experiments/srpfl/figure3.py --scale smoke|cpu|full --data-dir DIR
"""

from paper import main

if __name__ == "__main__":
    main(figure=3)
