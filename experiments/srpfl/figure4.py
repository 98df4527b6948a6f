"""Figure 4 of the SRPFL paper: full participation, random speeds.

python experiments/srpfl/figure4.py --scale smoke|cpu|full --data-dir DIR
"""

from paper import main

if __name__ == "__main__":
    main(figure=4)
