"""Measurements: functions at all combinations of values."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.lab.grids import execute
from fedjax_srp.results import json_files

CALLS = []


def rectangle(width, height, unit="m"):
    CALLS.append((width, height))
    if height is None:
        raise ZeroDivisionError("no height")
    return {"area": width * height, "ratio": math.inf if not height else width / height}


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


@pytest.mark.parametrize("left_out", [[1, 2], np.arange(1, 3)])
def test_an_array_is_an_axis_and_a_rule_of_its_numbers(tmp_path, left_out):
    axes = {"width": np.arange(4), "height": [1]}
    exclude = [{"width": left_out}]
    srp.measure(rectangle, axes=axes, exclude=exclude, out=tmp_path, progress=False)
    assert CALLS == [(0, 1), (3, 1)]


def test_cases_are_measured_once_and_their_table_is_tidy(tmp_path):
    axes = {"width": [1.0, 2.0], "height": [0, 4]}
    given = {"out": tmp_path, "progress": False, "options": {"unit": "cm"}}
    exclude = [{"width": 2.0, "height": 0}]
    found = srp.measure(rectangle, axes=axes, exclude=exclude, **given)
    assert found.table[["width", "height", "area"]].to_numpy().tolist() == [
        [1, 0, 0],
        [1, 4, 4],
        [2, 4, 8],
    ]
    assert found.table["ratio"].tolist() == [math.inf, 0.25, 0.5]
    written = pd.read_csv(tmp_path / "measurements.csv")
    assert written["area"].tolist() == [0, 4, 8]
    more = srp.measure(rectangle, axes=axes | {"width": [2.0, 3.0]}, **given)
    assert CALLS == [(1, 0), (1, 4), (2, 4), (2, 0), (3, 0), (3, 4)]
    assert more.cases["width=2, height=4"].id == found.cases["width=2, height=4"].id
    other = given | {"options": {"unit": "m"}}
    assert srp.measure(rectangle, axes=axes, dry_run=True, **other).results == {}
    assert len(CALLS) == 6


def test_failures_are_listed_and_measured_again(tmp_path, capsys):
    axes = {"width": [1.0], "height": [None, 2]}
    for _ in range(2):
        found = srp.measure(rectangle, axes=axes, out=tmp_path, progress=False, retries=1)
        assert [failure.name for failure in found.failures] == ["width=1, height=None"]
        assert "ZeroDivisionError: no height; see" in found.failures[0].error
        assert list(found.results) == ["width=1, height=2"]
    assert CALLS == [(1, None), (1, 2), (1, None), (1, None), (1, None)]
    assert capsys.readouterr().err.count("failed: width=1, height=None: ") == 2
    left = srp.measure(rectangle, axes=axes, out=tmp_path, dry_run=True)
    assert 0 <= left.seconds < 60  # by the one that is measured
    assert "2 cases, 1 to measure" in capsys.readouterr().err


def test_results_are_json_also_with_numbers_of_numpy(tmp_path):
    def found(kind):
        return {"value": np.float32(0.5), "row": np.arange(2)} if kind else {1, 2}

    given = {"out": tmp_path, "progress": False}
    done = srp.measure(found, axes={"kind": [True, False]}, **given)
    assert done.results == {"kind=True": {"value": 0.5, "row": [0, 1]}}
    assert "result={1, 2} is not JSON; return numbers" in done.failures[0].error


def test_variants_objects_and_several_rows(tmp_path):
    def several(law, count):
        return [{"n": n, "law": str(law)} for n in range(count)]

    found = srp.measure(
        several,
        axes={"law": {"first": {1, 2}, "second": len}},
        variants={"one": {"count": 1}, "two": {"count": 2}},
        out=tmp_path,
        progress=False,
    )
    table = found.table
    assert table["variant"].tolist() == ["one", "one", "two", "two", "two", "two"]
    assert table["option_law"].tolist() == ["first", "second"] + 2 * ["first"] + 2 * [
        "second"
    ]
    assert table["n"].tolist() == [0, 0, 0, 1, 0, 1]


GIVEN = {"axes": {"width": [1, 2], "height": [1]}}


def test_a_named_value_is_measured_again_when_it_changes(tmp_path):
    given = {"options": {"height": 1}, "out": tmp_path, "progress": False}
    for width in (1, 2, 1):
        found = srp.measure(rectangle, axes={"width": {"x": width}}, **given)
        assert found.results["width=x"]["area"] == width
        assert found.table["width"].tolist() == ["x"]
    assert CALLS == [(1, 1), (2, 1)]


def test_rules_may_concern_variants_that_are_not_chosen(tmp_path):
    found = srp.measure(
        rectangle,
        axes={"width": [1, 2], "variant": ["low"]},
        variants={"low": {"height": 1}, "high": {"height": 9}},
        exclude=[{"variant": "high", "width": 2}],
        out=tmp_path,
        progress=False,
    )
    assert [result["area"] for result in found.results.values()] == [1, 2]


def test_a_result_of_another_record_is_not_taken(tmp_path):
    """Such as one with the same eight digits, by chance."""
    given = GIVEN | {"out": tmp_path, "progress": False}
    found = srp.measure(rectangle, **given)
    file = found.cases["width=1, height=1"].folder / "measurement.json"
    kept = json_files.read_json(file)
    kept["record"]["arguments"]["width"] = 7
    json_files.write_json(file, kept)
    again = srp.measure(rectangle, dry_run=True, **given)
    assert list(again.results) == ["width=2, height=1"]


def counted(width, data_dir):
    CALLS.append((width, data_dir))
    return {"files": len(list(data_dir.iterdir()))}


def test_data_elsewhere_make_no_new_cases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = Path("data")
    here.mkdir()
    given = {"out": tmp_path / "out", "progress": False}
    for folder in (here, here.resolve(), None):
        options = {"data_dir": folder}
        found = srp.measure(counted, axes={"width": [1]}, options=options, **given)
        assert found.results == {"width=1": {"files": 0}}
    assert [(1, here)] == CALLS
    with refused("axes: data_dir=.* is not JSON; name it"):
        srp.measure(counted, axes={"data_dir": [here]}, options={"width": 1}, **given)


def test_workers_divide_the_time_that_is_left(tmp_path):
    given = {"options": {"height": 1}, "out": tmp_path, "progress": False}
    srp.measure(rectangle, axes={"width": [1]}, **given)
    more = {"axes": {"width": [1, 2, 3]}, "dry_run": True}
    alone, shared = (srp.measure(rectangle, workers=n, **more, **given) for n in (0, 2))
    assert alone.seconds > 0
    assert shared.seconds == alone.seconds / 2


def test_workers_are_refused_where_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "HAS_WORKERS", False)
    with refused("workers=2: this system has no worker processes; give workers=0"):
        srp.measure(rectangle, **GIVEN, out=tmp_path, workers=2, progress=False)
    assert not CALLS


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (rectangle, {"axes": {"width": [1]}}, "axes: rectangle: .*'height'.* arguments"),
        (rectangle, {"axes": {"w": [1]}}, "axes: rectangle: .* arguments"),
        (rectangle, {"axes": {"width": []}}, r"axes: width=\[\] must be a list"),
        (
            rectangle,
            {"axes": {"width": [1], "height": [{1, 2}]}},
            "axes: height=.* is not JSON; name it",
        ),
        (
            rectangle,
            {"axes": {"width": [1, 1], "height": [1]}},
            "width=1, height=1 is twice in them; remove one",
        ),
        (lambda width: width, {"axes": {"width": [1]}}, "function=.* give a `def`"),
        (
            rectangle,
            {"axes": {"width": [1]}, "options": {"width": 1}},
            "width is both an option and an axis",
        ),
        (
            rectangle,
            {"axes": {"width": [1, 1.0], "height": [1]}},
            "axes: width=1, height=1 is twice in them.*name them",
        ),
        (rectangle, GIVEN | {"exclude": [{"widht": 2}]}, "exclude: 'widht' is no.*width"),
        (rectangle, GIVEN | {"exclude": [{"width": 9}]}, "exclude: width=9 matches no"),
        (rectangle, GIVEN | {"exclude": [{}]}, "exclude: {} must be a table"),
        (rectangle, GIVEN | {"exclude": [3]}, "exclude: 3 must be a table"),
        (
            rectangle,
            GIVEN | {"exclude": [{"height": 1}]},
            "exclude leaves out all cases; remove a rule",
        ),
        (
            rectangle,
            GIVEN | {"variants": {"a": {"width": 3}}},
            "variant 'a': width is also an axis; remove",
        ),
        (rectangle, GIVEN | {"variants": {"a": 3}}, "variant 'a': 3 must be a table"),
        (
            rectangle,
            {
                "axes": {"width": [1], "variant": [["a"]]},
                "variants": {"a": {"height": 1}},
            },
            r"unknown variant \['a'\].*choose from a",
        ),
    ],
)
def test_wrong_cases_are_refused_before_any_is_measured(
    function, given, message, tmp_path
):
    with refused(message):
        srp.measure(function, **given, out=tmp_path, progress=False)
    assert not CALLS


@pytest.mark.long
def test_workers_measure_functions_of_a_test(tmp_path):
    def double(x):
        return {"twice": 2 * x}

    found = srp.measure(
        double, axes={"x": [1, 2, 3]}, out=tmp_path, workers=2, progress=False
    )
    assert found.table["twice"].tolist() == [2, 4, 6]
