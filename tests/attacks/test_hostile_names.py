"""Runs whose names are formulas, markup, TeX or control characters: folders, tables, figures and the report page."""

import csv
import re

import pytest
from reference.small import refused
from test_history import small

from fedjax_srp.lab.commands.report import report
from fedjax_srp.results.history import History

# Names separated by blanks, by kind; then names that have blanks or control characters.
FORMULAS = "= + - @ '= =1 @SUM(1) -2+3 +1+cmd |"
TEX = r"$ $$ $\frac{1}{$ $$\require{x}$$ \(x\) \[x\] $x$ a_b^c \textbf{ % # & ~"
MARKUP = r"""<b> </style> \u003cscript javascript:alert(1) &lt; <!-- ]]> " ' ` {{7*7}} ${7*7}"""
PATHS = r"../.. /etc/passwd a/b a\b . .. ~ CON * ? -rf --help"
WORDS = 'é e\u0301 \U0001f600 ﷺ nan inf None True 0 1e999 a,b a"b a;b _ __ _a nolegend _nolegend_'
TAGS = (
    "<script>alert(1)</script>",
    "</script><script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
)
BLANKS = (
    "",
    " ",
    "  a",
    "a  ",
    "\t",
    "\r",
    "\n",
    "a\nb",
    "\u2028",
    "=cmd|' /C calc'!A0",
    "a" * 300,
)
CONTROLS = ("\0", "a\0b", "\u202e", "\ufeff", "\x1b[31m", "\x07")
NAMES = (
    *f"{FORMULAS} {TEX} {MARKUP} {PATHS} {WORDS}".split(" "),
    *TAGS,
    *BLANKS,
    *CONTROLS,
)
NAMES += tuple(f"fedavg + {each}" for each in (*FORMULAS.split(), *TEX.split(), *BLANKS))
AT_ONCE = 8  # runs of a report


def formulas(path):
    """Return the cells of a table that a spreadsheet would run."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    return [
        cell
        for cell in cells
        if re.match(r"[=+@\t\r\n\0-]", cell)
        and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?|-?inf", cell)
    ]


@pytest.mark.filterwarnings("ignore")  # fonts lack letters
@pytest.mark.short("0", "72")
@pytest.mark.parametrize("start", range(0, len(NAMES), AT_ONCE))
def test_hostile_names_are_read_back_or_refused_and_do_nothing(start, tmp_path):
    """No cell of a table begins a formula, and the page has no markup from a name and no links to a network."""
    names = NAMES[start : start + AT_ONCE]
    for number, name in enumerate(names):
        made = small(name=name)
        try:
            made.save(tmp_path / f"{number}")
        except ValueError:
            with refused(""):
                made.save(tmp_path / f"{number}")
        else:
            assert History.load(tmp_path / f"{number}").name == name
    if not any(tmp_path.iterdir()):
        return
    assert not [
        letter for letter in report(str(tmp_path)) if ord(letter) < 32 and letter != "\n"
    ]
    assert not [cell for path in tmp_path.rglob("*.csv") for cell in formulas(path)]
    page = (tmp_path / "report.html").read_text("utf-8")
    assert not [name for name in names if name in TAGS and name in page]
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", page)
    assert (tmp_path / "accuracy.png").is_file()
