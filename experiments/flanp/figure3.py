"""Figure 3 of the FLANP paper; see `figures.py`."""

from experiments.flanp.figures import FIGURES
from experiments.flanp.panels import main

if __name__ == "__main__":
    main("figure3", *FIGURES["figure3"])
