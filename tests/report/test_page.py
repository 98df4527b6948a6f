"""The report page in a browser, against the files, `report.table` and `History`."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report.browser import CHROMIUM, browser
from report.made_up import made

from fedjax_srp.commands.report import report
from fedjax_srp.report import drawing, page, repeats, shares, table

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install chromium to test the page")

COSTS, TARGETS = (0, 0.37, 10, 123.4), (0.02, 0.6, 0.93, 0.949)
AXIS = "drawing.model('rounds', 'x').document.roots()[0].left.find((one) => 'axis_label' in one)"
METHODS = ("srpfl", "fedrep", "lg_srpfl", "lg_fedavg", "flanp_fedavg", "fedavg", "fedbuff", "flanp_fedavg_ft", "apfl")


def compared(histories, target=0.6, costs=(0, 10)):
    """A comparison of histories in memory."""
    rows = repeats.rows([repeats.of(run, Path(f"{place}")) for place, run in enumerate(histories)])
    return page.Comparison("digits, made up", rows, table.Target(target, "as asked"), costs)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def large():
    """Nine methods, four seeds, 500 rounds, each evaluated."""
    return compared([made(name, seed, 500, 100, own=name == "fedrep") for name in METHODS for seed in range(4)])


@pytest.fixture(scope="module")
def opened(tab, large, tmp_path_factory):
    path = page.write(tmp_path_factory.mktemp("page") / "report.html", [large])
    assert path.stat().st_size < 2e6  # as docs/report.md says
    tab.errors.clear()
    tab.open(path)
    yield tab
    assert not tab.errors


@pytest.fixture
def show(tab, tmp_path):
    """Return a function that opens the page of runs, or of several comparisons."""

    def shown(runs=(), target=0.6, comparisons=(), title="", **how):
        tab.open(page.write(tmp_path / "report.html", comparisons or [compared(runs, target)], title), **how)

    return shown


@pytest.fixture(autouse=True)
def no_errors(tab):
    tab.errors.clear()
    yield
    assert not tab.errors


def choose(tab, state):
    """Change the address, and wait until the page is drawn again."""
    before = tab.ask("Number(document.body.dataset.drawn)")
    tab.ask(f"location.hash = {json.dumps(state)}")
    tab.wait(f"Number(document.body.dataset.drawn) > {before}")


def cells(tab, name="table"):
    """The texts of a table of the page, one list per row."""
    rows = (
        f"[...document.querySelectorAll('#{name} tr')].map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return [[text.strip() for text in row] for row in tab.ask(rows)]


def text_of(tab, name):
    """The text of an element of the page."""
    return tab.ask(f"document.getElementById('{name}').innerText")


def in_printed_order(rows):
    """The rows of the page's table in the columns of the printed table: times after accuracies, without `runs`."""
    accuracy = rows[0].index("accuracy %")
    order = [0, *range(accuracy, accuracy + 3), *range(1, accuracy), *range(accuracy + 4, len(rows[0]))]
    return [[row[place] for place in order] for row in rows]


def rendered(comparison, target, costs):
    """The rows of the table that `report` prints, with the heading, and its data frame."""
    frame = table.comparison(comparison.rows.histories, target, costs, comparison.rows.twins)
    text = table.render(frame, table.Target(target, "as asked"))
    words = [re.split(r"\s{2,}", line.strip()) for line in text.split("\n\n")[0].splitlines() if set(line) != {"-"}]
    return words, frame


def source(tab, figure, name):
    """The columns of a data source of a figure."""
    read = "(value) => ArrayBuffer.isView(value) ? [...value] : value"
    columns = f"Object.entries(drawing.model('{figure}', '{name}').data)"
    return json.loads(
        tab.ask(f"JSON.stringify(Object.fromEntries({columns}.map(([key, all]) => [key, [...all].map({read})])))")
    )


@pytest.mark.short("0-0.02", "0.37-0.6", "123.4-0.949")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cost", COSTS)
def test_the_table_equals_that_of_report_at_any_cost_and_target(opened, large, cost, target):
    choose(opened, f"C={cost}&target={100 * target:.1f}")
    costs = sorted({*large.communications, cost})
    expected, frame = rendered(large, target, costs)
    assert in_printed_order(cells(opened)) == expected
    header, *rows = cells(opened)
    assert header[1] == "time at C = 0"  # visible on a phone
    assert [row[header.index("runs")] for row in rows] == [str(runs) for runs in frame["runs"]]


def test_the_table_of_shares(opened, large):
    header, *rows = cells(opened, "shares")
    assert header[1:] == list(shares.HEADER)
    histories = large.rows.histories.values()
    expected = [shares.texts(shares.shares(runs, large.target.accuracy)) for runs in histories]
    assert sorted(row[1:] for row in rows) == sorted(expected)


def test_censored_bounded_and_impossible_times_are_in_the_table(opened):
    texts = []
    for target in TARGETS:
        choose(opened, f"C=5&target={100 * target:.1f}")
        texts += [text for row in cells(opened) for text in row]
    for kind in (r"not reached", r"[123] of 4 seeds", r"≤ [\d.]+ ± [\d.]+", r"[\d.]+ ± [\d.]+ \([\d.]+x\)", r"-"):
        assert any(re.fullmatch(kind, text) for text in texts), kind


def test_times_equal_those_of_the_histories_exactly(opened, large):
    histories = [run for runs in large.rows.histories.values() for run in runs if not run.asynchronous]
    script = """(cost, targets) => comparison.rows.filter((row) => row.takes_cost).flatMap((row) => row.runs)
        .map((run) => [[...numbers.elapsed(run, cost)],
            targets.map((target) => String(numbers.timeTo(run, 'fine_tune', target, cost)))])"""
    for cost in COSTS:
        answers = opened.ask(f"({script})({cost}, {list(TARGETS)})")
        for run, (elapsed, times) in zip(histories, answers, strict=True):
            np.testing.assert_array_equal(elapsed[1:], run.elapsed(cost))
            assert [float(time) for time in times] == [run.time_to(target, cost) for target in TARGETS]


def test_short_times_are_printed_as_python_prints_them(opened):
    """Times with mean and deviation, against `table.render`."""
    own = {"atOnce": 0, "reached": 2, "runs": 2}
    for mean, deviation, text in ((0.0046, 0.00057, "0.0046 ± 0.0006"), (0.06, None, "0.060"), (0, 0, "0.0 ± 0.0")):
        times = json.dumps([[mean, deviation]]).replace("null", "NaN")
        row = json.dumps(own)[:-1] + f', "times": {times}}}'
        assert opened.ask(f"numbers.timeText({row}, undefined, 0)") == text


def test_numbers_are_printed_as_python_prints_them(opened):
    random = np.random.default_rng(0)
    values = [*(random.uniform(0, 200, 200)), *(n / 4 for n in range(60)), *(n / 2 for n in range(60))]
    values += [1e-9, 1e6, 0.05, 9.9e20, 1e21, -1.5e22, 1e300]
    for digits in (0, 1, 2):
        answers = opened.ask(f"{[float(value) for value in values]}.map((value) => numbers.fixed(value, {digits}))")
        assert answers == [f"{value:.{digits}f}" for value in values]


@pytest.mark.parametrize("cost", [0, 25])
def test_the_curves_equal_those_of_the_figures(opened, large, cost):
    choose(opened, f"C={cost}")
    lines, bands = source(opened, "time", "lines"), source(opened, "time", "bands")
    place = banded = 0
    curve = drawing.accuracy_curve(cost, None)
    histories = large.rows.histories
    over_time = {name: runs for name, runs in histories.items() if not (cost and runs[0].asynchronous)}
    for name, runs in over_time.items():
        curves = [curve(run) for run in runs]
        found = drawing.band(curves)
        for running, part in drawing.pieces(found.running):
            np.testing.assert_array_equal(lines["xs"][place], found.x[part])
            np.testing.assert_allclose(lines["ys"][place], 100 * found.mean[part], rtol=1e-12)
            assert lines["width"][place] == pytest.approx(2 * (1 + 2 * running / len(runs)) / 3)
            assert lines["color"][place] == drawing.styles(histories)[name].color
            place += 1
        outline = 100 * np.concatenate([found.low, found.high[::-1]])
        np.testing.assert_allclose(bands["ys"][banded], outline, rtol=1e-12)
        banded += 1
    assert (place, banded) == (len(lines["xs"]), len(bands["xs"]))
    assert len(lines["xs"]) > len(over_time)
    assert "Thinner: some runs have ended and keep their last value." in text_of(opened, "curves-note")


def test_arrow_keys_on_a_slider_move_the_curves_and_the_table(opened):
    choose(opened, "C=0")
    before = source(opened, "time", "lines"), cells(opened)
    for slider, shown in (("cost-slider", "state.cost"), ("target-slider", "state.target")):
        at_first, drawn = opened.ask(shown), opened.ask("Number(document.body.dataset.drawn)")
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
    histories = [made(name, seed, 12, 10, 3, own=name == "fedrep") for name in ("srpfl", "fedrep") for seed in range(2)]
    folders = [run.save(tmp_path / f"run{place}") for place, run in enumerate(histories)]
    report(str(tmp_path), 0.5, (0, 10), None)
    tab.open(tmp_path / "report.html")
    printed = (tmp_path / "table.txt").read_text().split("\n\n")[0].splitlines()
    expected = [re.split(r"\s{2,}", line.strip()) for line in printed if set(line) != {"-"}]
    assert in_printed_order(cells(tab)) == expected
    clients = [pd.read_csv(folder / "clients.csv") for folder in folders]
    rounds = [pd.read_csv(folder / "history.csv") for folder in folders]
    for place, runs in enumerate((slice(0, 2), slice(2, 4))):
        last = pd.concat([f[(f["round"] == 12) & (f["evaluation"] == "fine_tune")] for f in clients[runs]])
        quantiles = 100 * last["accuracy"].quantile([0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
        assert cells(tab, "quantiles")[1 + place][1:] == [f"{value:.1f}" for value in quantiles]
        mean = np.mean([f["accuracy_fine_tune"].dropna().iloc[-1] for f in rounds[runs]])
        assert cells(tab, "judged")[1 + place][1].startswith(f"{100 * mean:.1f} ± ")
        drawn = source(tab, "rounds", "lines")
        curves = [f["accuracy_fine_tune"].dropna().to_numpy() for f in rounds[runs]]
        np.testing.assert_allclose(drawn["ys"][place], 100 * np.mean(curves, axis=0), rtol=1e-12)
    drawn, strokes = source(tab, "quarters", "dots")["y"], source(tab, "quarters", "spread")
    quarters = 100 * np.array([[quarter_means(f) for f in clients[runs]] for runs in (slice(0, 2), slice(2, 4))])
    np.testing.assert_allclose(drawn, quarters.mean(1).ravel())
    for end, sign in (("low", -1), ("high", 1)):
        np.testing.assert_allclose(strokes[end], (quarters.mean(1) + sign * quarters.std(1, ddof=1)).ravel())
    own = [f["accuracy_own_head"].dropna().iloc[-1] for f in rounds[2:]]
    assert cells(tab, "judged")[2][2] == f"{100 * np.mean(own):.1f} ± {100 * np.std(own, ddof=1):.1f}"
    dots = source(tab, "clients", "dots")
    ends = [f[(f["round"] == 12) & (f["evaluation"] == "fine_tune")]["accuracy"] for f in clients]
    np.testing.assert_allclose(sorted(np.repeat(dots["x"], dots["count"])), sorted(100 * pd.concat(ends)))
    choose(tab, "judged=own_head")
    assert [row[0] for row in cells(tab)] == ["method", "FedRep"]
    assert in_printed_order(cells(tab))[1][1] == cells(tab, "judged")[2][2]
    config = json.loads((folders[0] / "config.json").read_text())
    tab.ask("document.querySelectorAll('#runs details').forEach((one) => { one.open = true; })")
    tab.wait("document.querySelectorAll('#runs pre').length === 4")
    shown = json.loads(tab.ask("document.querySelector('#runs pre').innerText"))
    assert shown == {"config": config["config"], "environment": config["environment"]}


def quarter_means(frame):
    """Accuracy of each quarter of the clients in a clients.csv, the fastest first, weighted by test points."""
    last = frame[(frame["round"] == 12) & (frame["evaluation"] == "fine_tune")].sort_values("expected_time")
    parts = (last.iloc[ids] for ids in np.array_split(np.arange(len(last)), 4))
    return [np.average(part["accuracy"], weights=part["test_count"]) for part in parts]


def test_a_sweep_is_filtered_by_its_options(tab, show):
    def sweep(rate, seed):
        run = made("fedrep", seed, 6, 5)
        return dataclasses.replace(run, config=run.config | {"options": {"learning_rate": rate}})

    rates = compared([*(sweep(rate, seed) for rate in (0.1, 0.5) for seed in range(2)), made("fedavg", 0, 6, 5)])
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
    assert "10000 clients are too many for dots" in text_of(tab, "clients-note")
    assert "10000 clients in 100 bands" in text_of(tab, "map-note")
    assert source(tab, "clients", "dots")["x"] == []


@pytest.mark.parametrize("score", ["worst", "slowest"])
def test_curves_of_a_tenth_of_the_clients(tab, score, show):
    """Curves of single runs, chosen by the control and by the address, on a phone."""
    runs = [made(name, 0, 30, 40) for name in ("srpfl", "fedrep")]
    show(runs, state="whole=1", width=390, phone=True)
    assert tab.ask(f"{AXIS}.axis_label") == "mean test accuracy (%)"
    tab.ask(f"element('score').value = '{score}', element('score').dispatchEvent(new Event('change')), true")
    tab.wait(f"location.hash.includes('curves={score}')")
    for state in (None, f"curves={score}&whole=1&C=2"):  # by the control, and by the address
        if state:
            choose(tab, state)
        tab.wait(f"{AXIS}.axis_label === 'test accuracy of the {score} tenth (%)'")
        assert tab.ask("document.getElementById('score').selectedOptions[0].text") == f"{score} tenth"
        over_time, over_rounds = source(tab, "time", "lines"), source(tab, "rounds", "lines")
        for place, run in enumerate(runs):
            expected = 100 * getattr(run, f"{score}_scores")()
            assert not np.allclose(expected, 100 * run.mean_scores(), atol=0.1)
            np.testing.assert_array_equal(over_time["xs"][place], run.eval_elapsed(2 if state else 0))
            np.testing.assert_array_equal(over_rounds["xs"][place], run.eval_round)
            for lines in (over_time, over_rounds):
                np.testing.assert_allclose(lines["ys"][place], expected, rtol=1e-12)
    assert tab.ask("document.documentElement.scrollWidth") <= 390


def test_no_sideways_scrolling_on_a_phone(tab, large, show):
    show(comparisons=[large], width=390, phone=True)
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    widths = tab.ask("[...document.querySelectorAll('.figure > *')].map((one) => one.getBoundingClientRect().width)")
    assert min(widths) > 300


@pytest.mark.short("500")
@pytest.mark.parametrize("width", [1280, 500])
def test_long_names_without_blanks_are_broken(tab, width, show):
    runs = [made("long_name_" * 11 + str(place), 0, 6, 5, finite=np.arange(6) < 3) for place in range(3)]
    comparison = compared(runs)._replace(title="data_" * 60)
    show(comparisons=[comparison], title="title_" * 60, width=width)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    lines = "[...document.querySelectorAll('.choice label')].map((one) => one.getBoundingClientRect().height)"
    assert max(tab.ask(lines)) < 40  # but the text next to a control is not


@pytest.mark.short("400-True")
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (400, True)])
def test_long_names_leave_room_for_the_figures(tab, width, phone, show):
    def sweep(rate):
        run = made("flanp_fedavg", 0, 6, 5, own=True)
        options = {"learning_rate": rate, "fine_tune_learning_rate": 10 * rate}
        options["participation_initial"] = int(100 * rate)
        return dataclasses.replace(run, config=run.config | {"options": options})

    show([sweep(0.123456), sweep(0.2)], width=width, phone=phone)
    names = [row[0] for row in cells(tab)[1:]]
    assert min(map(len, names)) > 70
    assert tab.ask("document.documentElement.scrollWidth") <= width
    ends = tab.ask(
        "[...document.querySelectorAll('select, #table td:nth-child(3)')].filter((one) => one.offsetParent)"
        ".map((one) => one.getBoundingClientRect().right)"
    )  # of controls, and of the accuracies in the table
    assert len(ends) > 4
    assert max(ends) <= width
    for figure in ("clients", "evaluations"):
        drawn = source(tab, figure, "names")
        assert [text.replace("\n", " ") for text in drawn["text"]] == names
        room = tab.ask(f"document.getElementById('{figure}').clientWidth")
        assert 6 * max(len(line) for text in drawn["text"] for line in text.split("\n")) < room


def bounds(tab, figure, axis="x"):
    """The range of an axis of a figure."""
    return tab.ask(f"[drawing.model('{figure}', '{axis}').start, drawing.model('{figure}', '{axis}').end]")


def test_time_is_cut_after_the_target_with_a_note(tab, show):
    rise = {"fine_tune": np.tile(np.linspace(0.1, 0.9, 9)[:, None], 5)}
    run = made("fedrep", 0, 9, 5, accuracies=rise)
    length = float(run.elapsed()[-1])
    show([run])  # target 0.6, reached in round 6 of 9
    end = 1.25 * run.time_to(0.6)
    assert bounds(tab, "time") == pytest.approx([0, end])
    assert bounds(tab, "cohort") == pytest.approx([0, length])
    words = rf"Time ends at {end:.3g} of {length:.3g} time units, .*tick 'whole runs'.*"
    assert re.fullmatch(words, text_of(tab, "cut-note"))
    choose(tab, "whole=1")
    assert bounds(tab, "time") == pytest.approx([0, length])
    assert not text_of(tab, "cut-note")
    tab.ask("document.getElementById('whole').click()")
    tab.wait("!location.hash.includes('whole')")
    assert bounds(tab, "time") == pytest.approx([0, end])
    choose(tab, "target=90")  # 1.25 times its time is beyond the end
    assert bounds(tab, "time") == pytest.approx([0, length])
    assert not text_of(tab, "cut-note")


@pytest.mark.long
def test_a_cut_that_would_hide_most_of_every_run_is_off_by_default(tmp_path, tab):
    rise = {"fine_tune": np.tile(np.linspace(0.58, 0.9, 36)[:, None], 5)}
    run = made("fedrep", 0, 36, 5, accuracies=rise)
    longer = made("apfl", 0, 40, 5, accuracies={"own_model": np.full((40, 5), 0.9)})
    path = page.write(tmp_path / "report.html", [compared([run, longer])])
    length = max(float(one.elapsed()[-1]) for one in (run, longer))
    end = 1.25 * max(one.time_to(0.6) for one in (run, longer))
    assert end < 0.2 * min(float(one.elapsed()[-1]) for one in (run, longer))
    tab.open(path)
    assert bounds(tab, "time") == pytest.approx([0, length])
    assert tab.ask("document.getElementById('whole').checked")
    tab.ask("document.getElementById('whole').click()")
    tab.wait("location.hash.includes('whole=0')")
    assert bounds(tab, "time") == pytest.approx([0, end])
    tab.open(path, "whole=0")
    assert bounds(tab, "time") == pytest.approx([0, end])


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
    assert re.fullmatch(r"\d{26} \(2\d{5}\.\dx\)", cells(tab)[1][header.index("time at C = 10") + 1])
    tab.ask("document.activeElement.blur()")
    tab.ask("(box => { box.value = '1e21'; box.dispatchEvent(new Event('input')); })(document.getElementById('cost'))")
    tab.wait("document.getElementById('state').textContent.startsWith('C = 1e+21')")


@pytest.mark.long
def test_runs_with_one_evaluation_are_dots(tab, show):
    def last(name, seed):
        run = made(name, seed, 6, 5)
        scores = {key: values[-1:] for key, values in run.accuracies.items()}
        return dataclasses.replace(run, eval_round=[6], accuracies=scores)

    runs = [last(name, seed) for name in ("srpfl", "fedrep") for seed in range(2)]
    show(runs)
    for figure, xs in (("time", [run.elapsed()[-1] for run in runs]), ("rounds", [6] * 4)):
        dots = source(tab, figure, "dots")
        np.testing.assert_allclose(dots["x"], xs)
        np.testing.assert_allclose(dots["y"], [100 * run.final_accuracy for run in runs])
        assert dots["marker"] == ["circle", "circle", "square", "square"]  # twins have one colour
        assert bounds(tab, figure)[1] > max(xs)
    note = text_of(tab, "curves-note")
    assert "Dots, or squares for dashed lines: evaluations that are joined to no other." in note
    assert "Thin lines" not in note
    assert "mean of" not in note
    scores = np.tile([[0.1], [0.2], [np.nan], [0.4], [np.nan], [0.6]], 5)
    show([made("fedrep", 0, 6, 5, accuracies={"a": scores})])
    assert source(tab, "rounds", "dots")["x"] == [4, 6]  # 1 and 2 are joined


def test_a_page_without_known_accuracies(tab, show):
    scores = {name: np.full((3, 5), math.nan) for name in ("a", "b")}
    for fields in ({"accuracies": scores}, {"test_count": np.zeros(5)}):
        show([made("fedrep", 0, 3, 5, **fields)], target=math.nan)
        text = tab.ask("document.querySelector('main').innerText")
        assert "No client has a known accuracy." in text
        assert "too many" not in text
        assert "C = 0, an unknown target, judged by" in text
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
    run = dataclasses.replace(run, name=text, config=run.config | {"name": text, "dataset": text})
    path = page.write(tmp_path / "report.html", [compared([run])], text)
    assert not re.search(r"https?://[^\"]*mathjax", path.read_text())
    tab.open(path)
    assert cells(tab)[1][0] == text
    assert [name.replace("\u200b", "") for name in source(tab, "clients", "names")["text"]] == [text]


def test_the_page_names_the_data_of_the_scores(tab, show):
    run = made("fedrep", 0, 6, 5)
    tuned = dataclasses.replace(run, config=run.config | {"dataset_options": {"validation": 0.2}})
    for history, judged in ((run, "test"), (tuned, "validation")):
        show([history])
        assert f"on {judged} data." in text_of(tab, "state")
        assert tab.ask(f"{AXIS}.axis_label") == f"mean {judged} accuracy (%)"


@pytest.mark.long
def test_the_page_of_one_run_has_no_notes_about_several(tab, show):
    show([made("fedrep", 0, 6, 5)], target=0.2)
    assert text_of(tab, "about") == "digits, made up: 1 line, 1 run"
    text = "document.querySelector('main').innerText"
    for words in ("standard deviation", "Not reached:", "seed of each line", "coincide"):
        assert words not in tab.ask(text)
    assert "C (time units)" in text_of(tab, "sliders")
    choose(tab, "target=100")
    assert "Not reached:" in tab.ask(text)
    show([made("fedrep", seed, 6, 5) for seed in (0, 1)])
    assert text_of(tab, "about") == "digits, made up: 1 line, 2 runs"
    assert "Mean ± sample standard deviation" in tab.ask(text)
    assert "stroke: standard deviation" in tab.ask(text)


def test_runs_that_diverged(tab, show):
    scores = {"fine_tune": np.full((3, 5), math.nan)}
    broken = made("fedrep", 0, 3, 5, accuracies=scores, finite=np.array([True, False, False]))
    show([broken], target=math.nan)
    assert "Diverged: FedRep, seed 0, in round 2" in text_of(tab, "curves-note")
    assert "not reached" in cells(tab)[1]
    assert cells(tab)[1][0] == "FedRep (diverged in round 2)"
    show([broken, made("fedrep", 1, 3, 5)])
    assert cells(tab)[1][0] == "FedRep (1 diverged)"


def test_break_even_costs(tab, show):
    """At the break-even cost mean times to the target are equal; below and above it, different lines are faster."""
    rounds, runs = np.arange(1, 21), []
    for name, time, speed in (("srpfl", 1.0, 0.04), ("fedrep", 10.0, 0.1)):  # more, cheaper rounds
        scores = {"fine_tune": np.minimum(speed * rounds, 0.9)[:, None].repeat(4, 1)}
        fields = {"eval_round": rounds, "accuracies": scores, "communicated": np.ones(20, bool)}
        runs += [made(name, seed, 20, 4, compute_time=np.full(20, time + seed), **fields) for seed in range(2)]
    show(runs, state="target=60")
    text = text_of(tab, "table-notes")
    even = float(re.search(r"need the same time: SRPFL and FedRep ([\d.]+\d)", text)[1])

    def times(cost):
        return [np.mean([run.time_to(0.6, cost) for run in of_row]) for of_row in (runs[:2], runs[2:])]

    srpfl, fedrep = times(even)
    assert srpfl == pytest.approx(fedrep, rel=0.01)
    (less, more), (less_above, more_above) = times(0.5 * even), times(2 * even)
    assert (less < more) != (less_above < more_above)


def test_logarithmic_time_starts_at_the_first_evaluation(tab, show):
    runs = [made("fedrep", seed, 50, 10) for seed in range(2)]
    show(runs, state="log=1&whole=1")
    start, scale = tab.ask(
        "[drawing.model('time', 'x').start, drawing.model('time', 'x').document.roots()[0].x_scale.type]"
    )
    assert scale == "LogScale"
    assert start == pytest.approx(min(time for run in runs for time in run.eval_elapsed() if time > 0))
    tab.ask("document.getElementById('log').click()")
    tab.wait("drawing.model('time', 'x').document.roots()[0].x_scale.type === 'LinearScale'")
    assert tab.ask("drawing.model('time', 'x').start") == 0


def test_clients_with_few_test_points_have_no_quartiles(tab, show):
    few = dataclasses.replace(made("fedrep", 0, 6, 10), test_count=np.full(10, 9))
    show([few])
    boxes = source(tab, "clients", "boxes")
    assert boxes["q25"] == [None]
    assert boxes["q50"] == [pytest.approx(100 * few.final_accuracy)]
    assert "9 in the median, so that quartiles would say nothing" in tab.ask("document.body.textContent")


def test_dark_and_light_colour_schemes(tab, show):
    show([made("fedrep", 0, 6, 4)])
    found = {}
    for scheme in ("light", "dark"):
        tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        found[scheme] = tab.ask("getComputedStyle(document.body).backgroundColor")
    tab.send("Emulation.setEmulatedMedia", features=[])
    assert found == {"light": "rgb(255, 255, 255)", "dark": "rgb(26, 26, 26)"}
