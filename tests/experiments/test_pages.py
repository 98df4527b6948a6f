"""Committed pages agree with the output of their scripts."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image, ImageColor

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


def test_page_of_claims_is_up_to_date(import_from):
    load = import_from("")
    script, words = load("claims"), load("claim")
    assert (EXPERIMENTS / "README.md").read_text("utf-8") == script.page()
    for folder, (_, claims) in script.PAPERS.items():
        place = EXPERIMENTS / folder
        assert len({claim.quote for claim in claims}) == len(claims)
        for claim in claims:
            was_run = claim.verdict != words.NOT_RUN
            assert claim.verdict in words.VERDICTS
            assert claim.size.startswith((words.PAPER, words.OTHER)), claim.quote
            assert bool(claim.files) == was_run
            assert claim.command or not was_run
            files = [f"results/{name}" for name in claim.files]
            files += claim.command.split()[:1]
            assert all((place / file).is_file() for file in files)


def test_pictures_keep_colours_that_only_the_legend_shows(import_from, tmp_path):
    curves = import_from("")("curves")
    figure = Figure(figsize=(9, 4))
    ax, x = figure.subplots(), np.arange(30)
    for color in (curves.BLUE, curves.ORANGE, curves.GREEN, curves.PINK, curves.GREY):
        for place in range(40):
            ax.plot(x, np.sin(x + place), color=color, alpha=0.3, linewidth=4)
    ax.plot([], [], color=curves.YELLOW, linewidth=1.8, label="hidden")
    ax.legend(loc="upper right")
    curves.save_picture(figure, tmp_path / "drawn.png")
    shown = np.asarray(Image.open(tmp_path / "drawn.png").convert("RGB"), int)
    wanted = ImageColor.getrgb(curves.YELLOW)
    assert (abs(shown - wanted).max(axis=-1) < 20).any()
