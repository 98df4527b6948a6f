"""Figure 5 of the FLANP paper; see `panels.py`."""

from panels import main

if __name__ == "__main__":
    main("figure5")
