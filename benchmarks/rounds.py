"""`fedjax-srp benchmark` from a checkout, and without tyro: python benchmarks/rounds.py [--quick] [--out FOLDER]."""

from fedjax_srp.benchmark.__main__ import main
from fedjax_srp.benchmark.measure import Rounds, paired, seconds, synthetic

__all__ = ["Rounds", "paired", "seconds", "synthetic"]

if __name__ == "__main__":
    main()
