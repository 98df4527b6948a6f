"""Figure 3 of the SRPFL paper: full participation, fixed speeds."""

from experiments.srpfl.paper import main

if __name__ == "__main__":
    main(figure=3)
