"""Rounds and evaluations, and their scaling, timed in turn with rivals: `make bench`.

python benchmarks/rounds.py [--quick] [--skip-torch] [--out FOLDER]
"""

from __future__ import annotations

import argparse

from harness import suite

import fedjax_srp as srp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="runs/benchmark", help="folder for table, figure and numbers")
    parser.add_argument("--quick", action="store_true", help="toy sizes, some seconds, to check that it runs")
    parser.add_argument("--skip-torch", action="store_true", help="without PyTorch, even if it is installed")
    arguments = parser.parse_args()
    srp.use_all_cores()
    suite.run(arguments.out, arguments.quick, not arguments.skip_torch)


if __name__ == "__main__":
    main()
