"""Table 2 of the FLANP paper; see `tables.py`.

python experiments/flanp/table2.py --scale smoke|cpu|full [--vary "full gradients" ...]
"""

from tables import main

if __name__ == "__main__":
    main("table2")
