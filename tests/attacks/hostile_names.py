"""Runs whose names are formulas, markup, TeX or control characters: run folders, tables, figures and the report page.

    python tests/attacks/hostile_names.py > FILE.json

A name is read back unchanged or refused in one line; no cell of a table begins a formula; the page has no markup from a
name and no links to a network. `hostile_names.json` has the results.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
import tempfile
import warnings
from pathlib import Path

from finished_folders import run

from fedjax_srp.commands.report import report
from fedjax_srp.history import History

# Names separated by blanks, by kind; then names that have blanks or control characters.
FORMULAS = "= + - @ '= =1 @SUM(1) -2+3 +1+cmd |"
TEX = r"$ $$ $\frac{1}{$ $$\require{x}$$ \(x\) \[x\] $x$ a_b^c \textbf{ % # & ~"
MARKUP = r"""<b> </style> \u003cscript javascript:alert(1) &lt; <!-- ]]> " ' ` {{7*7}} ${7*7}"""
PATHS = r"../.. /etc/passwd a/b a\b . .. ~ CON * ? -rf --help"
WORDS = 'é e\u0301 \U0001f600 ﷺ nan inf None True 0 1e999 a,b a"b a;b _ __ _a nolegend _nolegend_'
TAGS = ("<script>alert(1)</script>", "</script><script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>")
BLANKS = ("", " ", "  a", "a  ", "\t", "\r", "\n", "a\nb", "\u2028", "=cmd|' /C calc'!A0", "a" * 300)
CONTROLS = ("\0", "a\0b", "\u202e", "\ufeff", "\x1b[31m", "\x07")
NAMES = (*f"{FORMULAS} {TEX} {MARKUP} {PATHS} {WORDS}".split(" "), *TAGS, *BLANKS, *CONTROLS)
NAMES += tuple(f"fedavg + {each}" for each in (*FORMULAS.split(), *TEX.split(), *BLANKS))
AT_ONCE = 8  # runs of a report


def formulas(path):
    """Return the cells of a table that a spreadsheet would run."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    return [
        cell
        for cell in cells
        if re.match(r"[=+@\t\r-]", cell) and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?|-?inf", cell)
    ]


def attack(names, folder):
    """Save runs of these names, read them, report them; returns findings."""
    wrong = []
    for number, name in enumerate(names):
        made = dataclasses.replace(run(), name=name)
        try:
            made.save(folder / f"{number}")
            if History.load(folder / f"{number}").name != name:
                wrong.append((name, "read back as another name"))
        except ValueError as error:
            if "\n" in str(error):
                wrong.append((name, str(error)))
    if not any(folder.iterdir()):
        return wrong
    text = report(str(folder), None, [0, 1], None)
    if any(ord(letter) < 32 and letter != "\n" for letter in text):
        wrong.append((names, "control characters in the table of text"))
    for path in folder.rglob("*.csv"):
        wrong += [(cell, f"a formula in {path.name}") for cell in formulas(path)]
    page = (folder / "report.html").read_text("utf-8")
    wrong += [(name, "markup in the page") for name in names if name in TAGS and name in page]
    if re.search(r"(src|href)\s*=\s*[\"']?https?:", page):
        wrong.append((names, "the page links to a network"))
    if not (folder / "accuracy.png").is_file():
        wrong.append((names, "no figure"))
    return wrong


def main():
    found, wrong = {"names": len(NAMES), "findings": 0, "tracebacks": 0}, []
    warnings.simplefilter("ignore")  # fonts lack letters
    for start in range(0, len(NAMES), AT_ONCE):
        together = NAMES[start : start + AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            try:
                wrong += attack(together, Path(folder))
            except Exception as error:
                found["tracebacks"] += 1
                wrong.append((together, f"{type(error).__name__}: {error}"))
    for name, what in wrong:
        print(repr(name), what, file=sys.stderr)
    found["findings"] = len(wrong)
    print(json.dumps(found))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
