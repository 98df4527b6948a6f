"""Committed notebooks have the cells of their scripts, all executed without errors."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def cells_of_script(path):
    """Yield (is Markdown, text) for each cell of a script in jupytext's percent format."""
    parts = re.split(r"^# %%(.*)\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        lines = text.strip("\n").split("\n")
        is_text = "[markdown]" in kind
        yield (
            is_text,
            "\n".join(re.sub("^# ?", "", line) if is_text else line for line in lines),
        )


def test_every_script_has_its_notebook():
    assert len(SCRIPTS) >= 7
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {
        path.stem for path in SCRIPTS
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_executed(script):
    path = script.with_suffix(".ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    found = [(cell["cell_type"] == "markdown", "".join(cell["source"])) for cell in cells]
    assert found == list(cells_of_script(script)), "make notebooks executes it again"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [
        output
        for cell in code
        for output in cell["outputs"]
        if output["output_type"] == "error"
    ]
    assert path.stat().st_size < 400_000
