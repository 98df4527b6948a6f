"""What the tests read of the report page in a browser, and what `report` prints of the same runs."""

import json
import re
from pathlib import Path

import pytest
from report.browser import is_skipped

from fedjax_srp.lab.report import page, repeats, table

IN_BROWSER = [
    pytest.mark.skipif(
        is_skipped(), reason="no Chromium here: install chromium to test the page"
    ),
    pytest.mark.usefixtures("no_errors"),
]
AXIS = "drawing.model('rounds', 'x').document.roots()[0].left.find((one) => 'axis_label' in one)"


def compared(histories, target=0.6, costs=(0, 10)):
    """A comparison of histories in memory."""
    rows = repeats.rows(
        [repeats.of(run, Path(f"{place}")) for place, run in enumerate(histories)]
    )
    return page.Comparison(
        "digits, made up", rows, table.Target(target, "as asked"), costs
    )


def choose(tab, state):
    """Change the address, and wait until the page is drawn again."""
    before = tab.ask("Number(document.body.dataset.drawn)")
    tab.ask(f"location.hash = {json.dumps(state)}")
    tab.wait(f"Number(document.body.dataset.drawn) > {before}")


def cells(tab, name="table"):
    """The texts of a table of the page, one list per row."""
    texts = "[...row.children].map((cell) => cell.textContent)"
    rows = f"[...document.querySelectorAll('#{name} tr')].map((row) => {texts})"
    return [[text.strip() for text in row] for row in tab.ask(rows)]


def text_of(tab, name):
    """The text of an element of the page."""
    return tab.ask(f"document.getElementById('{name}').innerText")


def in_printed_order(rows):
    """The rows of the page's table in the columns of the printed table: times after accuracies, without `runs`."""
    accuracy = rows[0].index("accuracy %")
    order = [
        0,
        *range(accuracy, accuracy + 3),
        *range(1, accuracy),
        *range(accuracy + 4, len(rows[0])),
    ]
    return [[row[place] for place in order] for row in rows]


def rendered(comparison, target, costs):
    """The rows of the table that `report` prints, with the heading, and its data frame."""
    frame = table.comparison(
        comparison.rows.histories, target, costs, comparison.rows.twins
    )
    text = table.render(frame, table.Target(target, "as asked"))
    words = [
        re.split(r"\s{2,}", line.strip())
        for line in text.split("\n\n")[0].splitlines()
        if set(line) != {"-"}
    ]
    return words, frame


def source(tab, figure, name):
    """The columns of a data source of a figure."""
    read = "(value) => ArrayBuffer.isView(value) ? [...value] : value"
    columns = f"Object.entries(drawing.model('{figure}', '{name}').data)"
    return json.loads(
        tab.ask(
            f"JSON.stringify(Object.fromEntries({columns}.map(([key, all]) => [key, [...all].map({read})])))"
        )
    )


def bounds(tab, figure, axis="x"):
    """The range of an axis of a figure."""
    return tab.ask(
        f"[drawing.model('{figure}', '{axis}').start, drawing.model('{figure}', '{axis}').end]"
    )
