"""Measurements: functions at all combinations of values."""

import math

import numpy as np
import pandas as pd
import pytest
from reference.small import refused

import fedjax_srp as srp

CALLS = []


def rectangle(width, height, unit="m"):
    CALLS.append((width, height))
    if height is None:
        raise ZeroDivisionError("no height")
    return {"area": width * height, "ratio": math.inf if not height else width / height}


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


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
