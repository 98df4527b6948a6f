"""Figure 5 of the SRPFL paper: a fifth of the clients drawn per round, fixed speeds.

python experiments/srpfl/figure5.py --scale smoke|cpu|full --data-dir DIR
"""

from paper import main

if __name__ == "__main__":
    main(figure=5)
