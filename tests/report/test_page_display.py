"""The report page in a browser, of few or odd runs: filters, long names, ends of axes, dots and notes."""

import dataclasses
import math
import re

import numpy as np
import pytest
from report.made_up import made
from report.page_reading import (
    AXIS,
    IN_BROWSER,
    bounds,
    cells,
    choose,
    compared,
    in_printed_order,
    rendered,
    source,
    text_of,
)

from fedjax_srp.lab.report import page

pytestmark = IN_BROWSER


def test_a_sweep_is_filtered_by_its_options(tab, show):
    def sweep(rate, seed):
        run = made("fedrep", seed, 6, 5)
        method = {"algorithm": {"learning_rate": rate}}
        return dataclasses.replace(run, config=run.config | {"method": method})

    rates = compared(
        [
            *(sweep(rate, seed) for rate in (0.1, 0.5) for seed in range(2)),
            made("fedavg", 0, 6, 5),
        ]
    )
    other = compared([made("apfl", 0, 6, 5, cohort_size=[2] * 6)])
    show(comparisons=[rates, other], state="only.learning_rate=0.5")
    assert [row[0] for row in cells(tab)[1:]] == ["FedRep, learning_rate=0.5"]
    drawn = tab.ask("Number(document.body.dataset.drawn)")
    everything = "(one) => { one.value = ''; one.dispatchEvent(new Event('change')); }"
    tab.ask(f"document.querySelectorAll('#filters select').forEach({everything})")
    tab.wait(f"Number(document.body.dataset.drawn) > {drawn}")
    assert len(cells(tab)) == 4
    tab.ask("document.querySelector('#legend input').click()")
    tab.wait("document.querySelectorAll('#table tbody tr').length === 2")
    choose(tab, "off=0,1,2")
    assert len(cells(tab)) == 1
    choose(tab, "data=1")
    assert [row[0] for row in cells(tab)[1:]] == ["APFL"]
    assert "do not tell who took part" in text_of(tab, "map-note")
    assert source(tab, "map", "image")["x"] == []


def test_ten_thousand_clients_are_shown_as_quantiles(tmp_path, tab):
    comparison = compared([made("srpfl", seed, 40, 10_000, 20) for seed in range(2)])
    path = page.write(tmp_path / "report.html", [comparison])
    assert path.stat().st_size < 2e6
    tab.open(path)
    assert "100 bands" in text_of(tab, "map-note")
    assert source(tab, "clients", "dots")["x"] == []


@pytest.mark.short("500")
@pytest.mark.parametrize("width", [1280, 500])
def test_long_names_without_blanks_are_broken(tab, width, show):
    runs = [
        made("long_name_" * 11 + str(place), 0, 6, 5, finite=np.arange(6) < 3)
        for place in range(3)
    ]
    comparison = compared(runs)._replace(title="data_" * 60)
    show(comparisons=[comparison], title="title_" * 60, width=width)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    lines = "[...document.querySelectorAll('.choice label')].map((one) => one.getBoundingClientRect().height)"
    assert max(tab.ask(lines)) < 40  # but the text next to a control is not


def test_time_is_cut_after_the_target_with_a_note(tab, show):
    rise = {"fine_tune": np.tile(np.linspace(0.1, 0.9, 9)[:, None], 5)}
    run = made("fedrep", 0, 9, 5, accuracies=rise)
    length = float(run.elapsed()[-1])
    show([run])  # target 0.6, reached in round 6 of 9
    end = 1.25 * run.time_to(0.6)
    assert bounds(tab, "time") == pytest.approx([0, end])
    assert bounds(tab, "cohort") == pytest.approx([0, length])
    assert f"{end:.3g} of {length:.3g}" in text_of(tab, "cut-note")
    choose(tab, "whole=1")
    assert bounds(tab, "time") == pytest.approx([0, length])
    assert not text_of(tab, "cut-note")
    tab.ask("document.getElementById('whole').click()")
    tab.wait("!location.hash.includes('whole')")
    assert bounds(tab, "time") == pytest.approx([0, end])
    choose(tab, "target=90")  # 1.25 times its time is beyond the end
    assert bounds(tab, "time") == pytest.approx([0, length])
    assert not text_of(tab, "cut-note")


def test_numbers_beyond_bounds_are_drawn_and_printed(tab, show):
    long = made("fedrep", 0, 6, 5, compute_time=np.full(6, 2e30), host_seconds=math.nan)
    comparison = compared([long, made("srpfl", 0, 6, 5)], target=0.2)
    show(comparisons=[comparison])
    expected, _ = rendered(comparison, 0.2, (0, 10))
    header, *found = cells(tab)
    assert in_printed_order(cells(tab))[1:] == expected[1:]
    assert found[1][-1] == "-"
    assert bounds(tab, "time")[1] > 2e30
    choose(tab, "C=1e25")
    assert re.fullmatch(
        r"\d{26} \(2\d{5}\.\dx\)", cells(tab)[1][header.index("time at C = 10") + 1]
    )
    tab.ask("document.activeElement.blur()")
    tab.ask(
        "(box => { box.value = '1e21'; box.dispatchEvent(new Event('input')); })(document.getElementById('cost'))"
    )
    tab.wait("document.getElementById('state').textContent.startsWith('C = 1e+21')")
    choose(tab, "C=Infinity")
    assert text_of(tab, "state").startswith("C = 0")


@pytest.mark.long
def test_runs_with_one_evaluation_are_dots(tab, show):
    def last(name, seed):
        run = made(name, seed, 6, 5)
        scores = {key: values[-1:] for key, values in run.accuracies.items()}
        return dataclasses.replace(run, eval_round=[6], accuracies=scores)

    runs = [last(name, seed) for name in ("srpfl", "fedrep") for seed in range(2)]
    show(runs)
    for figure, xs in (
        ("time", [run.elapsed()[-1] for run in runs]),
        ("rounds", [6] * 4),
    ):
        dots = source(tab, figure, "dots")
        np.testing.assert_allclose(dots["x"], xs)
        np.testing.assert_allclose(dots["y"], [100 * run.final_accuracy for run in runs])
        assert dots["marker"] == [
            "circle",
            "circle",
            "square",
            "square",
        ]  # twins have one colour
        assert bounds(tab, figure)[1] > max(xs)
    scores = np.tile([[0.1], [0.2], [np.nan], [0.4], [np.nan], [0.6]], 5)
    show([made("fedrep", 0, 6, 5, accuracies={"a": scores})])
    assert source(tab, "rounds", "dots")["x"] == [4, 6]  # 1 and 2 are joined


def test_a_page_without_known_accuracies(tab, show):
    scores = {name: np.full((3, 5), math.nan) for name in ("a", "b")}
    for fields in ({"accuracies": scores}, {"test_count": np.zeros(5)}):
        show([made("fedrep", 0, 3, 5, **fields)], target=math.nan)
        text = tab.ask("document.querySelector('main').innerText")
        assert "No client has a known accuracy" in text
        for figure, axis in (("quarters", "y"), ("clients", "x"), ("evaluations", "x")):
            if figure != "evaluations" or len(fields.get("accuracies", ())) > 1:
                low, high = bounds(tab, figure, axis)
                assert low <= 0
                assert high >= 100


def test_rounds_before_an_infinite_one_are_drawn(tab, show):
    times = np.array([1.0, 1.0, 1.0, math.inf, 1.0])
    run = made("fedrep", 0, 5, 5, compute_time=times)
    show([run], target=0.999)
    assert bounds(tab, "time") == bounds(tab, "cohort") == [0, 3]
    assert source(tab, "cohort", "lines")["xs"] == [[0, 1, 2, 3]]


EVIL = (r"$$x^2$$", r"\[x\]", r"\(x\)", r"$\frac{1}{$", "$$")


@pytest.mark.short("$$x^2$$", "$$")
@pytest.mark.parametrize("text", EVIL)
def test_labels_with_mathematics_load_nothing_from_the_network(text, tmp_path, tab):
    scores = np.full((6, 5), 0.5)
    run = made("fedrep", 0, 6, 5, accuracies={text: scores, "other": scores})
    run = dataclasses.replace(
        run, name=text, config=run.config | {"data": {"name": text}}
    )
    path = page.write(tmp_path / "report.html", [compared([run])], text)
    assert not re.search(r"https?://[^\"]*mathjax", path.read_text())
    tab.open(path)
    assert cells(tab)[1][0] == text
    assert [
        name.replace("\u200b", "") for name in source(tab, "clients", "names")["text"]
    ] == [text]


def test_the_page_names_the_data_of_the_scores(tab, show):
    run = made("fedrep", 0, 6, 5)
    tuned = dataclasses.replace(
        run, config=run.config | {"data": {"options": {"validation": 0.2}}}
    )
    for history, judged in ((run, "test"), (tuned, "validation")):
        show([history])
        assert f"on {judged} data." in text_of(tab, "state")
        assert tab.ask(f"{AXIS}.axis_label") == f"mean {judged} accuracy (%)"


def test_runs_that_diverged(tab, show):
    scores = {"fine_tune": np.full((3, 5), math.nan)}
    broken = made(
        "fedrep", 0, 3, 5, accuracies=scores, finite=np.array([True, False, False])
    )
    show([broken], target=math.nan)
    assert "Diverged: FedRep, seed 0, in round 2" in text_of(tab, "curves-note")
    assert "not reached" in cells(tab)[1]
    assert cells(tab)[1][0] == "FedRep (diverged in round 2)"
    show([broken, made("fedrep", 1, 3, 5)])
    assert cells(tab)[1][0] == "FedRep (1 diverged)"


def test_logarithmic_time_starts_at_the_first_evaluation(tab, show):
    runs = [made("fedrep", seed, 50, 10) for seed in range(2)]
    show(runs, state="log=1&whole=1")
    start, scale = tab.ask(
        "[drawing.model('time', 'x').start, drawing.model('time', 'x').document.roots()[0].x_scale.type]"
    )
    assert scale == "LogScale"
    assert start == pytest.approx(
        min(time for run in runs for time in run.eval_elapsed() if time > 0)
    )
    tab.ask("document.getElementById('log').click()")
    tab.wait(
        "drawing.model('time', 'x').document.roots()[0].x_scale.type === 'LinearScale'"
    )
    assert tab.ask("drawing.model('time', 'x').start") == 0


def test_clients_with_few_test_points_have_no_quartiles(tab, show):
    few = dataclasses.replace(made("fedrep", 0, 6, 10), test_count=np.full(10, 9))
    show([few])
    boxes = source(tab, "clients", "boxes")
    assert boxes["q25"] == [None]
    assert boxes["q50"] == [pytest.approx(100 * few.final_accuracy)]
