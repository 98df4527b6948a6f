"""What `table1.py --summarize` makes of finished runs."""

from pathlib import Path


def summarize(columns, out: Path, results: Path, readme: Path) -> str:
    raise NotImplementedError
