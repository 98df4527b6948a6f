"""Numbers of the report page in a browser, against the files, `report.table` and `History`; its controls."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from report.made_up import made
from report.page_reading import (
    AXIS,
    IN_BROWSER,
    cells,
    choose,
    compared,
    in_printed_order,
    rendered,
    source,
    text_of,
)

from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.report import drawing, page
from fedjax_srp.lab.report import fairness as shares

pytestmark = IN_BROWSER

COSTS, TARGETS = (0, 0.37, 10, 123.4), (0.02, 0.6, 0.93, 0.949)
METHODS = (
    "srpfl",
    "fedrep",
    "lg_srpfl",
    "lg_fedavg",
    "flanp_fedavg",
    "fedavg",
    "fedbuff",
    "flanp_fedavg_ft",
    "apfl",
)


@pytest.fixture(scope="module")
def large():
    """Nine methods, four seeds, 500 rounds, each evaluated."""
    return compared(
        [
            made(name, seed, 500, 100, own=name == "fedrep")
            for name in METHODS
            for seed in range(4)
        ]
    )


@pytest.fixture(scope="module")
def opened(tab, large, tmp_path_factory):
    path = page.write(tmp_path_factory.mktemp("page") / "report.html", [large])
    assert 2e6 < path.stat().st_size < 2.15e6  # as docs/report.md says
    tab.errors.clear()
    tab.open(path)
    yield tab
    assert not tab.errors


@pytest.mark.short("0-0.02", "0.37-0.6", "123.4-0.949")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cost", COSTS)
def test_the_table_equals_that_of_report_at_any_cost_and_target(
    opened, large, cost, target
):
    choose(opened, f"C={cost}&target={100 * target:.1f}")
    costs = sorted({*large.communications, cost})
    expected, frame = rendered(large, target, costs)
    assert in_printed_order(cells(opened)) == expected
    header, *rows = cells(opened)
    assert [row[header.index("runs")] for row in rows] == [
        str(runs) for runs in frame["runs"]
    ]


def test_the_table_of_shares(opened, large):
    header, *rows = cells(opened, "shares")
    assert header[1:] == list(shares.HEADER)
    histories = large.rows.histories.values()
    expected = [
        shares.texts(shares.shares(runs, large.target.accuracy)) for runs in histories
    ]
    assert sorted(row[1:] for row in rows) == sorted(expected)


def test_censored_bounded_and_impossible_times_are_in_the_table(opened):
    texts = []
    for target in TARGETS:
        choose(opened, f"C=5&target={100 * target:.1f}")
        texts += [text for row in cells(opened) for text in row]
    for kind in (
        r"not reached",
        r"[123] of 4 seeds",
        r"≤ [\d.]+ ± [\d.]+",
        r"[\d.]+ ± [\d.]+ \([\d.]+x\)",
        r"-",
    ):
        assert any(re.fullmatch(kind, text) for text in texts), kind


@pytest.mark.filterwarnings("ignore:.*is an upper bound")
def test_times_equal_those_of_the_histories_exactly(opened, large):
    histories = [
        run
        for runs in large.rows.histories.values()
        for run in runs
        if not run.asynchronous
    ]
    script = """(cost, targets) => comparison.rows.filter((row) => row.takes_cost).flatMap((row) => row.runs)
        .map((run) => [[...numbers.elapsed(run, cost)],
            targets.map((target) => String(numbers.timeTo(run, 'fine_tune', target, cost)))])"""
    for cost in COSTS:
        answers = opened.ask(f"({script})({cost}, {list(TARGETS)})")
        for run, (elapsed, times) in zip(histories, answers, strict=True):
            np.testing.assert_array_equal(elapsed[1:], run.elapsed(cost))
            assert [float(time) for time in times] == [
                run.time_to(target, cost) for target in TARGETS
            ]


def test_short_times_are_printed_as_python_prints_them(opened):
    """Times with mean and deviation, against `table.render`."""
    own = {"atOnce": 0, "reached": 2, "runs": 2}
    for mean, deviation, text in (
        (0.0046, 0.00057, "0.0046 ± 0.0006"),
        (0.06, None, "0.060"),
        (0, 0, "0.0 ± 0.0"),
    ):
        times = json.dumps([[mean, deviation]]).replace("null", "NaN")
        row = json.dumps(own)[:-1] + f', "times": {times}}}'
        assert opened.ask(f"numbers.timeText({row}, undefined, 0)") == text


def test_numbers_are_printed_as_python_prints_them(opened):
    random = np.random.default_rng(0)
    values = [
        *(random.uniform(0, 200, 200)),
        *(n / 4 for n in range(60)),
        *(n / 2 for n in range(60)),
    ]
    values += [1e-9, 1e6, 0.05, 9.9e20, 1e21, -1.5e22, 1e300]
    for digits in (0, 1, 2):
        answers = opened.ask(
            f"{[float(value) for value in values]}.map((value) => numbers.fixed(value, {digits}))"
        )
        assert answers == [f"{value:.{digits}f}" for value in values]


@pytest.mark.parametrize("cost", [0, 25])
def test_the_curves_equal_those_of_the_figures(opened, large, cost):
    choose(opened, f"C={cost}")
    lines, bands = source(opened, "time", "lines"), source(opened, "time", "bands")
    place = banded = 0
    curve = drawing.accuracy_curve(cost, None)
    histories = large.rows.histories
    over_time = {
        name: runs
        for name, runs in histories.items()
        if not (cost and runs[0].asynchronous)
    }
    for name, runs in over_time.items():
        curves = [curve(run) for run in runs]
        found = drawing.band(curves)
        for running, part in drawing.pieces(found.running):
            np.testing.assert_array_equal(lines["xs"][place], found.x[part])
            np.testing.assert_allclose(
                lines["ys"][place], 100 * found.mean[part], rtol=1e-12
            )
            assert lines["width"][place] == pytest.approx(
                2 * (1 + 2 * running / len(runs)) / 3
            )
            assert lines["color"][place] == drawing.styles(histories)[name].color
            place += 1
        outline = 100 * np.concatenate([found.low, found.high[::-1]])
        np.testing.assert_allclose(bands["ys"][banded], outline, rtol=1e-12)
        banded += 1
    assert (place, banded) == (len(lines["xs"]), len(bands["xs"]))
    assert len(lines["xs"]) > len(over_time)


def test_arrow_keys_on_a_slider_move_the_curves_and_the_table(opened):
    choose(opened, "C=0")
    before = source(opened, "time", "lines"), cells(opened)
    for slider, shown in (
        ("cost-slider", "state.cost"),
        ("target-slider", "state.target"),
    ):
        at_first, drawn = (
            opened.ask(shown),
            opened.ask("Number(document.body.dataset.drawn)"),
        )
        opened.ask(f"document.getElementById('{slider}').focus()")
        opened.press("ArrowRight", 39)
        opened.wait(f"Number(document.body.dataset.drawn) > {drawn}")
        assert opened.ask(shown) > at_first
    after = source(opened, "time", "lines"), cells(opened)
    assert max(after[0]["xs"][0]) > max(before[0]["xs"][0])
    assert after[1] != before[1]
    span = opened.ask("drawing.model('time', 'target').location")
    assert span == pytest.approx(100 * opened.ask("state.target"))
    assert re.search(r"C=.*&target=60\.1", opened.ask("location.hash"))


def test_every_control_is_reached_with_the_tab_key(opened):
    choose(opened, "")
    opened.ask("document.activeElement.blur()")
    count = """[...document.querySelectorAll('input, select, button')].filter((control) => control.offsetParent)
        .map((control, place) => { control.dataset.place = place; }).length"""
    wanted, reached = {str(place) for place in range(opened.ask(count))}, set()
    assert len(wanted) > 15
    for _ in range(2 * len(wanted) + 40):
        opened.press("Tab", 9)
        reached.add(opened.ask("document.activeElement.dataset.place"))
    assert wanted <= reached


def test_clients_and_quarters_equal_those_of_the_files(tmp_path, tab):
    histories = [
        made(name, seed, 12, 10, 3, own=name == "fedrep")
        for name in ("srpfl", "fedrep")
        for seed in range(2)
    ]
    folders = [run.save(tmp_path / f"run{place}") for place, run in enumerate(histories)]
    report(str(tmp_path), 0.5, (0, 10), None)
    tab.open(tmp_path / "report.html")
    printed = (tmp_path / "table.txt").read_text().split("\n\n")[0].splitlines()
    expected = [
        re.split(r"\s{2,}", line.strip()) for line in printed if set(line) != {"-"}
    ]
    assert in_printed_order(cells(tab)) == expected
    clients = [pd.read_csv(folder / "clients.csv") for folder in folders]
    rounds = [pd.read_csv(folder / "history.csv") for folder in folders]
    for place, runs in enumerate((slice(0, 2), slice(2, 4))):
        last = pd.concat(
            [
                f[(f["round"] == 12) & (f["evaluation"] == "fine_tune")]
                for f in clients[runs]
            ]
        )
        quantiles = 100 * last["accuracy"].quantile([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
        assert cells(tab, "quantiles")[1 + place][1:] == [
            f"{value:.1f}" for value in quantiles
        ]
        mean = np.mean([f["accuracy_fine_tune"].dropna().iloc[-1] for f in rounds[runs]])
        assert cells(tab, "judged")[1 + place][1].startswith(f"{100 * mean:.1f} ± ")
        drawn = source(tab, "rounds", "lines")
        curves = [f["accuracy_fine_tune"].dropna().to_numpy() for f in rounds[runs]]
        np.testing.assert_allclose(
            drawn["ys"][place], 100 * np.mean(curves, axis=0), rtol=1e-12
        )
    drawn, strokes = (
        source(tab, "quarters", "dots")["y"],
        source(tab, "quarters", "spread"),
    )
    quarters = 100 * np.array(
        [[quarter_means(f) for f in clients[runs]] for runs in (slice(0, 2), slice(2, 4))]
    )
    np.testing.assert_allclose(drawn, quarters.mean(1).ravel())
    for end, sign in (("low", -1), ("high", 1)):
        np.testing.assert_allclose(
            strokes[end], (quarters.mean(1) + sign * quarters.std(1, ddof=1)).ravel()
        )
    own = [f["accuracy_own_head"].dropna().iloc[-1] for f in rounds[2:]]
    assert (
        cells(tab, "judged")[2][2]
        == f"{100 * np.mean(own):.1f} ± {100 * np.std(own, ddof=1):.1f}"
    )
    dots = source(tab, "clients", "dots")
    ends = [
        f[(f["round"] == 12) & (f["evaluation"] == "fine_tune")]["accuracy"]
        for f in clients
    ]
    np.testing.assert_allclose(
        sorted(np.repeat(dots["x"], dots["count"])), sorted(100 * pd.concat(ends))
    )
    choose(tab, "judged=own_head")
    assert [row[0] for row in cells(tab)] == ["method", "FedRep"]
    assert in_printed_order(cells(tab))[1][1] == cells(tab, "judged")[2][2]
    config = json.loads((folders[0] / "config.json").read_text())
    tab.ask(
        "document.querySelectorAll('#runs details').forEach((one) => { one.open = true; })"
    )
    tab.wait("document.querySelectorAll('#runs pre').length === 4")
    shown = json.loads(tab.ask("document.querySelector('#runs pre').innerText"))
    assert shown == {"config": config["config"], "environment": config["environment"]}


def quarter_means(frame):
    """Accuracy of each quarter of the clients in a clients.csv, the fastest first, weighted by test points."""
    last = frame[
        (frame["round"] == 12) & (frame["evaluation"] == "fine_tune")
    ].sort_values("expected_time")
    parts = (last.iloc[ids] for ids in np.array_split(np.arange(len(last)), 4))
    return [np.average(part["accuracy"], weights=part["test_count"]) for part in parts]


@pytest.mark.parametrize("score", ["worst", "slowest"])
def test_curves_of_a_tenth_of_the_clients(tab, score, show):
    """Curves of single runs, chosen by the control and by the address, on a phone."""
    runs = [made(name, 0, 30, 40, own=True) for name in ("srpfl", "fedrep")]
    show(runs, state="whole=1", width=390, phone=True)
    tab.ask(
        f"element('score').value = '{score}', element('score').dispatchEvent(new Event('change')), true"
    )
    tab.wait(f"location.hash.includes('curves={score}')")
    for state in (
        None,
        f"curves={score}&whole=1&C=2",
    ):  # by the control, and by the address
        if state:
            choose(tab, state)
        tab.wait(f"{AXIS}.axis_label.includes('{score} tenth')")
        over_time, over_rounds = (
            source(tab, "time", "lines"),
            source(tab, "rounds", "lines"),
        )
        for place, run in enumerate(runs):
            expected = 100 * getattr(run, f"{score}_scores")()
            assert not np.allclose(expected, 100 * run.mean_scores(), atol=0.1)
            np.testing.assert_array_equal(
                over_time["xs"][place], run.eval_elapsed(2 if state else 0)
            )
            np.testing.assert_array_equal(over_rounds["xs"][place], run.eval_round)
            for lines in (over_time, over_rounds):
                np.testing.assert_allclose(lines["ys"][place], expected, rtol=1e-12)


def test_break_even_costs(tab, show):
    """At the break-even cost mean times to the target are equal; below and above it, different lines are faster."""
    rounds, runs = np.arange(1, 21), []
    for name, time, speed in (
        ("srpfl", 1.0, 0.04),
        ("fedrep", 10.0, 0.1),
    ):  # more, cheaper rounds
        scores = {"fine_tune": np.minimum(speed * rounds, 0.9)[:, None].repeat(4, 1)}
        fields = {
            "eval_round": rounds,
            "accuracies": scores,
            "communicated": np.ones(20, bool),
        }
        runs += [
            made(name, seed, 20, 4, compute_time=np.full(20, time + seed), **fields)
            for seed in range(2)
        ]
    show(runs, state="target=60")
    text = text_of(tab, "table-notes")
    even = float(re.search(r"need the same time: SRPFL and FedRep ([\d.]+\d)", text)[1])

    def times(cost):
        return [
            np.mean([run.time_to(0.6, cost) for run in of_row])
            for of_row in (runs[:2], runs[2:])
        ]

    srpfl, fedrep = times(even)
    assert srpfl == pytest.approx(fedrep, rel=0.01)
    (less, more), (less_above, more_above) = times(0.5 * even), times(2 * even)
    assert (less < more) != (less_above < more_above)
    show(runs, state="target=8")  # FedRep reaches it by its first evaluation
    assert "≤" in text_of(tab, "table-notes")
    assert "Break-even" not in text_of(tab, "table-notes")
