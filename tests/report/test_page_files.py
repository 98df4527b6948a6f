"""The report page as a file, without a browser."""

import base64
import dataclasses
import json
import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from report.made_up import made

import fedjax_srp as srp
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.report import drawing, page


def test_the_page_of_histories_equals_that_of_their_folders(tmp_path):
    histories = [
        made(name, seed, 6, 5) for name in ("srpfl", "fedrep") for seed in range(2)
    ]
    for place, history in enumerate(histories):
        history.save(tmp_path / f"histories[{place}]")
    report(str(tmp_path), None, (0, 10), None)
    own = srp.plots.report_page(histories, tmp_path / "own.html", communications=(0, 10))
    found = [content(path) for path in (own, tmp_path / "report.html")]
    for one in found:
        for row in one["comparisons"][0]["rows"]:
            for run in row["runs"]:
                run["folder"] = Path(run["folder"]).name
                del run["environment"]  # known to saved runs only
    assert found[0] == found[1]
    linear = made("fedrep", 0, 6, 5, score_name="squared error", smaller_is_better=True)
    by_errors = "no run that was evaluated by accuracy, but by 'squared error', where less is better; draw them with"
    with pytest.raises(ValueError, match=f"histories has {by_errors}"):
        srp.plots.report_page(linear, tmp_path / "own.html")
    linear.save(tmp_path / "linear" / "run")
    with pytest.raises(
        ValueError,
        match="none of its runs was evaluated by accuracy, but by 'squared error'",
    ):
        report(str(tmp_path / "linear"), None, (0, 10), None)
    never = made("fedrep", 0, 6, 5)
    never = dataclasses.replace(never, accuracies={}, eval_round=never.eval_round[:0])
    with pytest.raises(
        ValueError,
        match=r"by accuracy; run with evaluations \(--evaluations, eval_every\)",
    ):
        srp.plots.report_page(never, tmp_path / "own.html")
    with pytest.raises(
        ValueError,
        match=r"histories\[0\] and histories\[1\] hold the same run, fedrep with seed 0",
    ):
        srp.plots.report_page([made("fedrep", 0, 6, 5)] * 2, tmp_path / "own.html")


def test_links_and_pipes_are_written_through(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "writer", lambda *_: lambda place: place.write_text("new"))
    link, pipe = tmp_path / "latest", tmp_path / "pipe"
    (tmp_path / "file").write_text("old")
    link.symlink_to("file")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        page.write(path, [])
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert pipe.is_fifo()
    assert os.read(reader, 9) == b"new"
    os.close(reader)


def content(path):
    """The data in a page."""
    text = re.search(r'id="content">([^<]*)<', path.read_text()).group(1)
    return json.loads(zlib.decompress(base64.b64decode(text)))


def test_numbers_of_each_evaluation_exclude_clients_without_test_points(tmp_path):
    made_up = made("fedrep", 0, 6, 5, own=True)
    counts = made_up.test_count.copy()
    counts[0] = 0
    scores = {
        name: np.where(counts > 0, values, np.nan)
        for name, values in made_up.accuracies.items()
    }
    run = dataclasses.replace(made_up, accuracies=scores, test_count=counts)
    found = content(srp.plots.report_page(run, tmp_path / "own.html"))
    (row,) = found["comparisons"][0]["rows"]
    assert row["runs"][0]["test_points"] == np.median(counts[1:]) != np.median(counts)
    for name, values in scores.items():
        quantiles = row["distributions"][name]
        np.testing.assert_array_equal(
            quantiles, np.quantile(values[-1, 1:], found["quantiles"])
        )
        numbers = row["runs"][0]["evaluations"][name]
        np.testing.assert_array_equal(numbers["clients"], values[-1, 1:])
        expected = (
            run.mean_scores(name),
            run.worst_scores(name),
            run.slowest_scores(name),
            run.speed_quartiles(name),
        )
        for kind, of_run in zip(
            ("mean", "worst", "slowest", "quartiles"), expected, strict=True
        ):
            np.testing.assert_array_equal(np.array(numbers[kind], float), of_run)


def test_texts_of_runs_are_not_parsed_as_html(tmp_path):
    evil = "</script><b>"
    run = made("fedrep", 0, 6, 5)
    run = dataclasses.replace(
        run, name=evil, config=run.config | {"data": {"name": evil}}
    )
    text = srp.plots.report_page(
        {"a": run}, tmp_path / "own.html", title=evil
    ).read_text()
    assert "<b>" not in text.replace(library(text), "")
    assert content(tmp_path / "own.html")["comparisons"][0]["rows"][0]["name"] == evil


def library(text):
    """The longest script of a page, which is Bokeh."""
    return max(re.findall(r"<script>(.*?)</script>", text, re.DOTALL), key=len)


def test_the_only_row_of_a_method_has_its_colour():
    plain = drawing.styles(["srpfl", "fedrep", "flanp_fedavg"])
    found = drawing.styles(
        [
            "SRPFL, clock=fixed",
            "FLANP (FedAvg), clock=fixed",
            "FedRep, mu=0",
            "FedRep, mu=1",
        ]
    )
    looks = [*found.values()]
    assert looks[:2] == [plain[name] for name in ("srpfl", "flanp_fedavg")]
    assert len(set(looks)) == 4
    assert plain["fedrep"] not in looks


def test_rows_of_a_sweep_are_solid_with_doubling_and_share_colours_with_their_twins():
    rates = (0.1, 0.2, 0.3)
    found = drawing.styles(
        [
            f"{name}, learning_rate={rate}"
            for name in ("SRPFL", "FedRep")
            for rate in rates
        ]
    )
    assert [style.linestyle for style in found.values()] == ["-"] * 3 + ["--"] * 3
    colors = [style.color for style in found.values()]
    assert colors[:3] == colors[3:]
    assert len(set(colors)) == 3
    many = drawing.styles(
        f"{name}, seed={seed}" for seed in range(20) for name in ("SRPFL", "FedRep")
    )
    assert len(many) == 40


@pytest.mark.parametrize("suffix", ["", ", clock=fixed"])
def test_labels_may_have_brackets_and_commas(suffix):
    names = ("flanp", "flanp_fedavg_criterion", "flanp_fednova")
    plain = drawing.styles(names)
    found = drawing.styles([f"{srp.methods.label(name)}{suffix}" for name in names])
    assert [*found.values()] == [*plain.values()]
