"""Table 2 of the FLANP paper; see `time_ratios.py`.

python experiments/flanp/table2.py --scale smoke|cpu|full [--vary "full gradients" ...]
"""

from time_ratios import main

if __name__ == "__main__":
    main("table2")
