"""`python -m fedjax_srp.benchmark`: the benchmark where the command line's dependencies are missing."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..cores import use_all_cores


def run(out: str, quick: bool = False, torch: bool = True) -> None:
    """Measures, prints as it goes and writes the folder."""
    from . import report, suite

    results = suite.measure(suite.QUICK if quick else suite.FULL, torch=torch)
    folder = report.write(results, Path(out))
    print(f"\n{report.table(results)}\n\nwritten to {folder}")


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="runs/benchmark", help="folder for table, figure and numbers")
    parser.add_argument("--quick", action="store_true", help="toy sizes, some seconds: whether it runs, not how fast")
    parser.add_argument("--skip-torch", action="store_true", help="without PyTorch, even where it is installed")
    arguments = parser.parse_args()
    use_all_cores()
    run(arguments.out, arguments.quick, not arguments.skip_torch)


if __name__ == "__main__":
    main()
