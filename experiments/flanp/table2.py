"""Table 2 of the FLANP paper; see `time_ratios.py`."""

from experiments.flanp.time_ratios import main

if __name__ == "__main__":
    main("table2")
