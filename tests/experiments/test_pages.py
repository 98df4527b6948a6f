"""Committed pages agree with the output of their scripts."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
SCRIPTS = [
    ROOT / "docs/readme_tables.py",
    *sorted(EXPERIMENTS.glob("*/readme_tables.py")),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.parent.name)
def test_readmes_are_up_to_date(script, import_from):
    pages = import_from("")("pages")
    for path, parts in runpy.run_path(str(script))["PAGES"].items():
        text = path.read_text("utf-8")
        assert pages.fill_page(text, parts) == text, "run make tables"
        if EXPERIMENTS in path.parents:
            assert set(re.findall(r"<!-- begin (\w+) -->", text)) == set(
                parts
            )  # no table is written by hand


def test_fill_page_replaces_text_between_marks(import_from):
    pages = import_from("")("pages")
    text = "a\n<!-- begin one -->\nold\n\nlines\n<!-- end one -->\nb\n"
    made = pages.fill_page(text, {"one": lambda: r"new \1"})
    assert made == "a\n<!-- begin one -->\nnew \\1\n<!-- end one -->\nb\n"
    with pytest.raises(ValueError, match="two: the page has its marks 0 times"):
        pages.fill_page(text, {"two": str})
    assert pages.pm([1000.0, 1002.0], 1) == "1,001.0 ± 1.4"
    assert pages.markdown([["", "x"], ["a", 1]]) == "|  | x |\n| --- | --- |\n| a | 1 |"


def test_page_of_claims_is_up_to_date(import_from):
    load = import_from("")
    script, words = load("claims"), load("claim")
    assert (EXPERIMENTS / "README.md").read_text("utf-8") == script.page()
    for folder, (_, claims) in script.PAPERS.items():
        assert len({claim.quote for claim in claims}) == len(claims)
        for claim in claims:
            assert claim.verdict in words.VERDICTS
            assert claim.size.startswith((words.PAPER, words.OTHER)), (
                claim.quote
            )  # every claim states its size
            assert bool(claim.files) == (claim.verdict != words.NOT_RUN)
            assert all(
                (EXPERIMENTS / folder / "results" / name).is_file()
                for name in claim.files
            )
            assert claim.command or claim.verdict == words.NOT_RUN
            assert (
                not claim.command
                or (EXPERIMENTS / folder / claim.command.split()[0]).is_file()
            )


def test_pictures_keep_colours_that_only_the_legend_shows(import_from, tmp_path):
    curves = import_from("")("curves")
    figure = Figure(figsize=(9, 4))
    ax = figure.subplots()
    for color in (
        curves.BLUE,
        curves.ORANGE,
        curves.GREEN,
        curves.PINK,
        curves.SKY,
        curves.GREY,
    ):
        for place in range(40):
            x = np.arange(30)
            ax.plot(x, np.sin(x + place), color=color, alpha=0.3, linewidth=4)
    ax.plot([], [], color=curves.YELLOW, linewidth=1.8, label="hidden")
    ax.legend(loc="upper right")
    curves.save_picture(figure, tmp_path / "drawn.png")
    shown = np.asarray(Image.open(tmp_path / "drawn.png").convert("RGB"), int)
    wanted = [int(curves.YELLOW[at : at + 2], 16) for at in (1, 3, 5)]
    assert (abs(shown - wanted).max(axis=-1) < 20).any()
