"""Figure 4 of the FLANP paper; see `panels.py`.

python experiments/flanp/figure4.py --scale smoke|cpu|full --data-dir DIR
"""

from panels import main

if __name__ == "__main__":
    main("figure4")
