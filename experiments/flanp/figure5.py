"""Figure 5 of the FLANP paper; see `paper.py`.

python experiments/flanp/figure5.py --scale smoke|cpu|full --data-dir DIR
"""

from paper import main

if __name__ == "__main__":
    main("figure5")
