"""Figure 7 of the FLANP paper; see `panels.py`.

python experiments/flanp/figure7.py --scale smoke|cpu|full --data-dir DIR
"""

from panels import main

if __name__ == "__main__":
    main("figure7")
