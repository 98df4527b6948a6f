"""Figure 4 of the SRPFL paper: full participation, random speeds."""

from experiments.srpfl.paper import main

if __name__ == "__main__":
    main(figure=4)
