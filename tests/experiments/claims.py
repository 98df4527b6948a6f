"""Reading the numbers of a README, for the tests that compare them with the committed files."""

import json
import math
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def agrees(text: str, value: float) -> bool:
    """Whether a number, as written, is the value rounded to its digits."""
    written = float(text.replace(",", ""))
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return math.isfinite(value) and abs(written - value) <= unit / 2 * (1 + 1e-6) + 1e-12


def check(text: str, *values: float) -> None:
    """All numbers of a text agree with the values, in order."""
    found = NUMBER.findall(text)
    assert len(found) == len(values), (text, values)
    for number, value in zip(found, values, strict=True):
        assert agrees(number, value), (text, number, value)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(path: Path, *header: str) -> list[list[str]]:
    """Rows of the one table whose header begins with these words."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", path.read_text() + "\n", re.MULTILINE)
    tables = [[cells_of(line) for line in block.splitlines()] for block in blocks]
    (found,) = [table for table in tables if tuple(table[0][: len(header)]) == header]
    assert len(found) > 2
    return found[2:]


def table(path: Path, *header: str) -> dict[str, list[str]]:
    """The same by the first cell, which names a row."""
    found = {first: cells for first, *cells in rows(path, *header)}
    assert len(found) == len(rows(path, *header))
    return found


def prose(path: Path) -> str:
    return " ".join(path.read_text().split())


def claimed(path: Path, pattern: str, *values: float) -> None:
    """The text says this, once, with these numbers where the pattern has #."""
    regex = re.escape(" ".join(pattern.split())).replace(r"\#", "(" + NUMBER.pattern + ")")
    (match,) = re.finditer(regex, prose(path))
    assert len(match.groups()) == len(values)
    for number, value in zip(match.groups(), values, strict=True):
        assert agrees(number, value), (match.group(), number, value)


def results(path: Path) -> dict:
    return json.loads(path.read_text())["results"]
