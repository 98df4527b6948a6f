"""Times of groups of clients: in Python, in the report's files and in the page's own functions."""

import base64
import json
import math
import shutil
import subprocess
import zlib
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from report.made_up import made
from report.page_reading import compared

from fedjax_srp.lab.report import drawing, group_times, panels, table
from fedjax_srp.lab.report.page import data
from fedjax_srp.lab.report.panels import figure

TARGET = 0.6
COSTS = (0, 10)
RUNS = [
    made(name, seed, rounds=30, clients=40, every=2)
    for name in ("srpfl", "fedrep")
    for seed in (0, 1)
]
NODE = shutil.which("node")
PROGRAM = """
const number = (value) => (Number.isFinite(value) ? value : String(value));
const summaries = async () => {
  const content = await numbers.unpack(process.argv[1]);
  const {rows} = content.comparisons[0];
  const found = rows.map((row) => groups.map((of) => {
    const {times, atOnce, reached, accuracy} = numbers.summary(row, "fine_tune", target, costs, of);
    return {times: times.flat().map(number), atOnce, reached, accuracy: accuracy.map(number)};
  }));
  console.log(JSON.stringify(found));
};
summaries();
"""


def test_the_reports_table_of_groups_has_the_times_of_python(tmp_path):
    comparison = compared(RUNS, TARGET, COSTS)
    text, writers = panels.files(comparison, tmp_path)
    for path, write in writers.items():
        if path.name == "groups.csv":
            write(path)
    frame = pd.read_csv(tmp_path / "groups.csv").set_index(["method", "of"])
    for name, runs in comparison.rows.histories.items():
        for of in ("slowest_tenth", "worst_tenth", "third_quarter"):
            row = frame.loc[name, of]
            places = [run.reached(TARGET, of=of) for run in runs]
            assert row["clients"] == {"third_quarter": 10}.get(of, 4)
            assert row["reached"] == sum(place is not None for place in places)
            assert row["reached_at_once"] == places.count(0)
            if None not in places:
                times = [
                    run.eval_elapsed(10)[i] for run, i in zip(runs, places, strict=True)
                ]
                np.testing.assert_allclose(row["time_10"], np.mean(times))
                np.testing.assert_allclose(row["time_10_std"], np.std(times, ddof=1))
    assert "until the mean accuracy of a group reaches 60.0 %" in text
    assert "slowest tenth (4)" in text
    assert "fare worst (4 clients)" in text


@pytest.mark.skipif(NODE is None, reason="no node here: it runs the page's functions")
def test_the_pages_table_follows_the_choice_of_clients():
    comparison = compared(RUNS, TARGET, COSTS)
    script = (
        resources.files("fedjax_srp.lab.report.page").joinpath("numbers.js").read_text()
    )
    values = {"groups": list(data.GROUP_OF), "target": TARGET, "costs": list(COSTS)}
    constants = [f"const {name} = {json.dumps(value)};" for name, value in values.items()]
    program = "\n".join([script, *constants, PROGRAM])
    command = [str(NODE), "-e", program, data.packed([comparison])]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    frame = group_times.frame(comparison.rows.histories, TARGET, COSTS)
    rows = frame.set_index(["method", "of"])
    for (name, runs), of_row in zip(
        comparison.rows.histories.items(), found, strict=True
    ):
        for short, one in zip(data.GROUP_OF, of_row, strict=True):
            of = data.GROUP_OF[short]
            row = rows.loc[name, of]
            columns = ["time_0", "time_0_std", "time_10", "time_10_std"]
            times = [
                float(str(value).replace("Infinity", "inf")) for value in one["times"]
            ]
            np.testing.assert_allclose(times, row[columns].astype(float), rtol=1e-12)
            assert (one["reached"], one["atOnce"]) == (
                row["reached"],
                row["reached_at_once"],
            )
            final = np.mean([run.group_scores(of)[-1] for run in runs])
            np.testing.assert_allclose(one["accuracy"][0], final)
    assert rows["time_0"].nunique() > 4  # the groups differ


def test_the_page_knows_the_sizes_of_groups():
    packed = base64.b64decode(data.packed([compared(RUNS)]))
    (comparison,) = json.loads(zlib.decompress(packed))["comparisons"]
    assert comparison["group_sizes"] == {
        "mean": 40,
        "worst": 4,
        "slowest": 4,
        "fastest_quarter": 10,
        "second_quarter": 10,
        "third_quarter": 10,
        "slowest_quarter": 10,
    }


def test_a_sweep_of_one_method_is_solid_and_twins_are_dashed():
    sweep = [f"FedRep, learning_rate={rate}" for rate in (0.1, 0.2, 0.3)]
    styles = drawing.styles(sweep)
    assert {style.linestyle for style in styles.values()} == {"-"}
    assert len({style.color for style in styles.values()}) == 3
    assert drawing.styles(["fedrep"])["fedrep"].linestyle == "-"
    pair = drawing.styles(["srpfl", "fedrep"])
    assert [style.linestyle for style in pair.values()] == ["-", "--"]
    assert pair["fedrep"].color == drawing.styles(["fedrep"])["fedrep"].color


def test_the_figures_axis_begins_where_curves_begin():
    def bottom(lowest):
        scores = {"fine_tune": np.linspace(lowest, 0.99, 15)[:, None].repeat(6, 1)}
        run = made("fedrep", 0, 30, 6, every=2, accuracies=scores)
        target = table.Target(0.97, "as asked")
        axes = figure({"fedrep": [run]}, target, (0,)).axes
        return axes[0].get_ylim()[0]

    assert bottom(0.95) == pytest.approx(0.95 - 0.01)
    assert bottom(0.7) == pytest.approx(0.7 - 0.05 * 0.3)
    assert bottom(0.1) == pytest.approx(0.97 - 0.4)  # not far below target and end
    assert not math.isnan(bottom(0.0))
