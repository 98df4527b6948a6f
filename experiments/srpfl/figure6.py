"""Figure 6 of the SRPFL paper: a fifth of the clients drawn per round, random speeds.

python experiments/srpfl/figure6.py --scale smoke|cpu|full --data-dir DIR
"""

from paper import main

if __name__ == "__main__":
    main(figure=6)
