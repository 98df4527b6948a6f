"""Table 1 of the FLANP paper; see `time_ratios.py`.

python experiments/flanp/table1.py --scale smoke|cpu|full [--vary "full gradients" ...]
"""

from time_ratios import main

if __name__ == "__main__":
    main("table1")
