"""Control characters in names of strangers reach no terminal, table or file name."""

import base64
import csv
import dataclasses
import json
import re
import zlib
from unittest import mock

import pytest
from matplotlib.text import Text
from reference.small import refused
from test_history import small

import fedjax_srp as srp
from fedjax_srp.lab.commands.cli import main
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.parts.checks import printable
from fedjax_srp.results import json_files
from fedjax_srp.results.history import History
from fedjax_srp.results.locks import FolderLockedError, held

EVIL = "\x1b]0;title\x07\x1b[31m"
NAMES = (f"a{EVIL}b", "a\nb", "a\u202eb")


def is_clean(text):
    return all(letter == "\n" or letter.isprintable() for letter in text)


def test_only_what_cannot_be_printed_is_replaced():
    assert printable("ünï 漢字 \U0001f600 ≤ ±") == "ünï 漢字 \U0001f600 ≤ ±"
    for name in NAMES:
        assert is_clean(printable(name))
        assert "\n" not in printable(name)
    assert printable("a\nb", kept="\n") == "a\nb"


def packed_in(page):
    """Return the data of a page, see `page.data.packed`."""
    packed = re.search(r'id="content">([^<]+)<', page.read_text("utf-8"))
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def texts(value):
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from texts(each)


@pytest.mark.filterwarnings("ignore:Glyph")  # fonts lack letters
@pytest.mark.parametrize(
    "place", ["method", "evaluation", "data set", "several data sets", "folder"]
)
def test_a_report_has_no_control_characters(place, tmp_path):
    name = "".join(NAMES)
    given = {
        "method": {"name": name},
        "evaluation": {"accuracies": {name: small().accuracies["fine_tune"]}},
        "data set": {"config": {"dataset": name}},
        "several data sets": {"config": {"dataset": name}},
        "folder": {},
    }[place]
    if place == "several data sets":
        small(config={"dataset": "other"}).save(tmp_path / "other")
    small(**given).save(tmp_path / (name if place == "folder" else "run"))
    if place == "folder":
        unfinished = tmp_path / f"{name} unfinished" / "checkpoint"
        unfinished.mkdir(parents=True)
        (unfinished / "arguments.json").write_text("{}")
    assert is_clean(report(str(tmp_path), out=str(tmp_path / "out")))
    for path in (tmp_path / "out").iterdir():
        assert path.name.isprintable()
        if path.suffix == ".txt":
            assert is_clean(path.read_text("utf-8"))
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                assert all(cell.isprintable() for row in csv.reader(file) for cell in row)
        if path.suffix == ".html":
            assert all(map(str.isprintable, texts(packed_in(path))))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_what_python_shows_of_a_folder_has_none(tmp_path):
    """The text of an object, its figure, its tables, and errors that list what there is."""
    made = small(
        name=f"a{EVIL}",
        accuracies={f"b{EVIL}": small().accuracies["fine_tune"]},
        metrics={f"c{EVIL}": [1.0, 0.5, 0.25, 0.125]},
        score_name=f"d{EVIL}",
        client_names=[f"e{EVIL}", "f", "g"],
        config={f"g{EVIL}": 1},
    )
    loaded = History.load(made.save(tmp_path))
    assert is_clean(repr(loaded))
    for draw in (loaded.plot, lambda: srp.plots.accuracy_over_time(loaded)):
        assert all(is_clean(text.get_text()) for text in draw().findobj(Text))
    for name in ("history.csv", "clients.csv"):
        assert is_clean((tmp_path / name).read_text("utf-8"))
    for refused_call in (
        lambda: loaded.scores("x"),
        lambda: loaded.time_to(0.5, metric="x"),
        lambda: small(config={}).save(tmp_path),
        lambda: dataclasses.replace(made, config={}).save(tmp_path),
    ):
        with pytest.raises(ValueError, match=r"\[31m") as error:
            refused_call()
        assert is_clean(str(error.value))
    with pytest.raises(KeyError) as error:
        loaded.metrics["x"]
    assert is_clean(error.value.args[0])


def test_metrics_that_differ_in_control_characters_alone_are_refused():
    with refused("rename"):
        small(metrics={"a\x1b": [1.0] * 4, "a\x07": [2.0] * 4})


def test_the_holder_of_a_lock_is_shown_without_control_characters(tmp_path):
    with (
        mock.patch("socket.gethostname", return_value=EVIL),
        held(tmp_path, "out"),
        pytest.raises(FolderLockedError) as error,
        held(tmp_path, "out"),
    ):
        pass
    assert "[31m" in str(error.value)
    assert is_clean(str(error.value))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_errors_and_warnings_of_the_command_line_have_none(tmp_path, capsys, monkeypatch):
    small(accuracies={f"{EVIL}one": small().accuracies["fine_tune"]}).save(
        tmp_path / "run"
    )
    assert main(["report", str(tmp_path), "--evaluation", "two"], set_up_cores=False) == 2
    said = capsys.readouterr().err
    assert "one" in said
    assert is_clean(said)
    summary = json_files.read_json(tmp_path / "run" / "summary.json")
    del summary["files"]["config.json"]
    json_files.write_json(
        tmp_path / "run" / "summary.json", summary | {"files": {f"{EVIL}two": [0, ""]}}
    )
    assert main(["report", str(tmp_path)], set_up_cores=False) == 2
    said = capsys.readouterr().err
    assert "damaged" in said
    assert is_clean(said)


def test_a_grid_file_of_names_with_control_characters_prints_none(tmp_path, capsys):
    variants = (
        '[axes]\nmethod = ["fedavg"]\n[variants."a\\u001b[31m"]\nno_such_option = 1\n'
    )
    (tmp_path / "grid.toml").write_text(variants)
    arguments = [
        "grid",
        str(tmp_path / "grid.toml"),
        "--out",
        str(tmp_path / "out"),
        "--dry-run",
    ]
    assert main(arguments, set_up_cores=False) == 2
    said = capsys.readouterr().err
    assert "[31m" in said
    assert is_clean(said)


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "..", "", 7, "a\0b"])
def test_an_index_that_names_a_folder_elsewhere_is_refused(name, tmp_path):
    json_files.write_json(tmp_path / "grid.json", {"unit": {"point": name}})
    with refused("out='.*': its grid.json names .*; give another out"):
        units._read_index(tmp_path)
    if isinstance(name, str):
        json_files.write_json(tmp_path / "grid.json", {name: {"point": "run"}})
        with refused("out='.*': its grid.json names .*; give another out"):
            units._read_index(tmp_path)
