"""Figure 6 of the SRPFL paper: a fifth of the clients drawn per round, random speeds."""

from experiments.srpfl.paper import main

if __name__ == "__main__":
    main(figure=6)
