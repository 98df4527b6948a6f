"""Figure 5 of the SRPFL paper: a fifth of the clients drawn per round, fixed speeds."""

from experiments.srpfl.paper import main

if __name__ == "__main__":
    main(figure=5)
