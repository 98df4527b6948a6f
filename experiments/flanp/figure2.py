"""Figure 2 of the FLANP paper; see `panels.py`.

python experiments/flanp/figure2.py --scale smoke|cpu|full --data-dir DIR
"""

from panels import main

if __name__ == "__main__":
    main("figure2")
