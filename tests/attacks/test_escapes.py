"""Control characters in names of strangers reach no terminal, table or file name."""

import csv

import pytest
from reference.small import refused
from test_history import small

from fedjax_srp.lab.commands.cli import main
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.parts.checks import printable
from fedjax_srp.results import json_files

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
