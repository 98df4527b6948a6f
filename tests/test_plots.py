"""Lines, labels and limits of figures."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from reference.histories import made_history
from reference.small import refused

from fedjax_srp.lab.report import drawing, panels, plots, table


def run(
    name="fedrep",
    compute_time=(1.0, 1.0, 2.0, 2.0),
    scores=(0.2, 0.6),
    eval_round=(2, 4),
    **fields,
):
    """Return a history of two clients, by default with four rounds in two stages."""
    given = {
        "name": name,
        "eval_round": eval_round,
        "client_time": [1.0, 2.0],
        "test_count": [3, 4],
    }
    given |= {
        "stage": (0, 0, 1, 1),
        "metrics": {"distance": 0.5 ** np.arange(len(compute_time))},
    }
    return made_history(scores, compute_time, clients=2, **given | fields)


def drawn(ax):
    """Return {label: line}, without the stage marks."""
    return {
        line.get_label(): line
        for line in ax.get_lines()
        if not line.get_label().startswith("_")
    }


def legend_texts(owner):
    return [text.get_text() for text in owner.get_texts()]


def test_a_line_passes_through_the_evaluations_and_marks_stages():
    history = run()
    (ax,) = plots.accuracy_over_time(history, communication=10.0).axes
    line = drawn(ax)["FedRep"]
    np.testing.assert_array_equal(line.get_xdata(), history.eval_elapsed(10.0))
    np.testing.assert_array_equal(line.get_ydata(), history.mean_accuracy)
    (marks,) = (line for line in ax.get_lines() if line.get_label() == "_stages")
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == (
        [22.0],
        [0.2],
    )  # stage 1 begins after round 2
    assert "10" in ax.get_xlabel()
    assert "fine_tune" in ax.get_ylabel()


@pytest.mark.parametrize(
    "draw", [plots.accuracy_over_time, plots.metric_over_time, plots.figure3]
)
def test_a_band_may_show_the_standard_deviation(draw):
    scores = [(0.1, 0.5), (0.2, 0.6), (0.6, 0.7)]
    runs = [
        run(scores=pair, metrics={"distance": np.full(4, pair[0])}) for pair in scores
    ]
    figure = draw({"digits": runs} if draw is plots.figure3 else runs, spread="std")
    ax = figure.axes[0]
    (band,) = ax.collections
    first = band.get_paths()[0].vertices
    at_first = first[first[:, 0] == first[:, 0].min(), 1]
    deviation = np.sqrt(
        0.07
    )  # of 0.1, 0.2 and 0.6, whose mean is 0.3: ((0.2)^2 + (0.1)^2 + (0.3)^2) / 2
    np.testing.assert_allclose(
        [at_first.min(), at_first.max()], [0.3 - deviation, 0.3 + deviation], rtol=1e-12
    )
    assert (
        "standard deviation"
        in (ax.get_legend() or figure.legends[0]).get_title().get_text()
    )


def test_repeats_are_a_mean_and_a_band_to_the_end_of_the_longest():
    repeats = [
        run(),
        run(compute_time=(2.0, 2.0, 2.0, 2.0), scores=(0.4, 0.8)),
        run(scores=(0.0, 0.4)),
    ]
    (ax,) = plots.accuracy_over_time(repeats).axes
    full, held = (
        line
        for line in ax.get_lines()
        if line.get_label() in ("FedRep (3 runs)", "_held")
    )
    # evaluated at 2 and 6, 4 and 8, 2 and 6: all have begun at 4, and one goes on from 6 to 8
    np.testing.assert_allclose(full.get_xdata(), [4.0, 6.0])
    np.testing.assert_allclose(
        full.get_ydata(), [(0.4 + 0.4 + 0.2) / 3, (0.6 + 0.6 + 0.4) / 3]
    )
    np.testing.assert_allclose(held.get_xdata(), [6.0, 8.0])
    assert held.get_ydata()[-1] == pytest.approx(
        np.mean([history.final_accuracy for history in repeats])
    )
    (band,) = ax.collections
    vertices = band.get_paths()[0].vertices
    np.testing.assert_allclose([vertices[:, 1].min(), vertices[:, 1].max()], [0.2, 0.8])
    assert vertices[:, 0].max() == 8.0


@pytest.mark.parametrize(
    "draw", [plots.accuracy_over_time, plots.metric_over_time, plots.figure3]
)
def test_repeats_may_be_drawn_one_by_one(draw):
    repeats = [run(), run(compute_time=(2.0, 2.0, 2.0, 2.0), scores=(0.4, 0.8))]
    figure = draw(
        {"digits": repeats} if draw is plots.figure3 else repeats, spread="seeds"
    )
    ax = figure.axes[0]
    ends = [line.get_xdata()[-1] for line in ax.get_lines()]
    assert ends == [6.0, 8.0]
    assert not ax.collections


@pytest.mark.parametrize("draw", [plots.accuracy_over_time, plots.metric_over_time])
def test_curves_over_rounds(draw):
    (ax,) = draw(run(), x="rounds").axes
    line = drawn(ax)["FedRep"]
    assert list(line.get_xdata()) == (
        [1, 2, 3, 4] if draw is plots.metric_over_time else [2, 4]
    )
    (marks,) = (line for line in ax.get_lines() if line.get_label() == "_stages")
    assert list(marks.get_xdata()) == [2]
    assert "round" in ax.get_xlabel()


def test_one_run_is_drawn_without_the_lab():
    (ax,) = run().plot(x="rounds").axes
    line, marks = ax.get_lines()
    assert list(line.get_xdata()) == [2, 4]
    assert list(marks.get_xdata()) == [2]
    assert ax.get_xlabel() == "round"
    assert "fine_tune" in ax.get_ylabel()
    (ax,) = run(accuracies={}, eval_round=[]).plot().axes
    assert ax.get_ylabel() == "distance"
    assert ax.get_yscale() == "log"


def test_the_axis_names_the_split_of_the_evaluation():
    tuned = run("fedavg", config={"data": {"options": {"validation": 0.2}}})
    for histories, expected in (
        ([run()], "test"),
        ([tuned], "validation"),
        ([run(), tuned], "test/validation"),
    ):
        (ax,) = plots.accuracy_over_time(histories).axes
        assert expected in ax.get_ylabel()


@pytest.mark.short("$$", "50 $ and 60 $")
@pytest.mark.parametrize(
    "text", [r"$\frac{1}{$", "$$", r"$x^2$", r"a \$ b", "50 $ and 60 $"]
)
def test_labels_are_not_parsed_as_mathematics(text, tmp_path):
    scores = {text: np.full((2, 2), 0.5)}
    named = run(text, metrics={text: np.ones(4)}, accuracies=scores)
    for figure in (
        plots.accuracy_over_time({text: [named, named]}),
        plots.metric_over_time(named),
        plots.figure3({text: {text: named}}),
        panels.figure(
            {text: [named], "other": [run()]}, table.Target(0.5, "as asked"), (0,), text
        ),
    ):
        figure.savefig(tmp_path / "figure.png")
    named.save(tmp_path / "run")
    assert (tmp_path / "run" / "accuracy.png").exists()
    (ax,) = plots.accuracy_over_time({text: named}).axes
    label = ax.get_legend().get_texts()[0]
    assert label._preprocess_math(label.get_text()) == (text, False)


def test_nan_in_one_repeat_is_a_gap():
    eval_round, scores = (1, 2, 4), (0.1, 0.2, 0.3)
    repeats = [
        run(eval_round=eval_round, scores=scores),
        run(eval_round=eval_round, scores=(0.1, np.nan, 0.3)),
    ]
    (ax,) = plots.accuracy_over_time({"a": repeats}).axes
    assert np.isnan(drawn(ax)["a (2 runs)"].get_ydata()[1])


@pytest.mark.parametrize(("end", "apart"), [(4.1, False), (4.0, True)])
def test_repeats_are_apart_where_one_begins_after_another_has_ended(end, apart):
    def curve(*x):
        return drawing.Curve(np.array(x), np.ones(len(x)), np.array([]))

    assert drawing.do_not_overlap([curve(2.0, end), curve(4.0, 20.0)]) is apart
    assert not drawing.do_not_overlap([curve(4.0, 20.0)])
    assert drawing.do_not_overlap(
        [curve(1.0)] * 2
    )  # a single evaluation is no stretch of time


def test_twins_share_a_colour_and_doubling_is_solid():
    names = [
        "srpfl",
        "fedrep",
        "lg_srpfl",
        "lg_fedavg",
        "flanp_fedavg",
        "fedavg",
        "flanp_fedavg_ft",
        "fedavg_ft",
    ]
    (ax,) = plots.accuracy_over_time(
        [run(name) for name in [*names, "hf_maml", "mine", "yours"]]
    ).axes
    lines = list(drawn(ax).values())
    for solid, dashed in zip(lines[:8:2], lines[1:8:2], strict=True):
        assert solid.get_color() == dashed.get_color()
        assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert len({line.get_color() for line in lines}) == 4 + 3
    assert list(drawn(ax))[-3:] == ["HF-MAML", "mine", "yours"]


def test_every_label_of_a_dict_is_a_line():
    (ax,) = plots.accuracy_over_time(
        {"step 0.1": run(), "step 0.01": run(), "fedrep": run(), "FedRep": run()}
    ).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in drawn(ax).values()}
    assert len(looks) == 4
    for names in (
        [f"method {i}" for i in range(18)],
        ["mine", "fedbuff"],
        ["flanp_fedavg", "flanp_fedavg_criterion"],
    ):
        assert len({*drawing.styles(names).values()}) == len(
            names
        )  # also where a colour of the cycle is a method's own


def test_labels_name_evaluations_and_divergence():
    other = run(
        "fedavg",
        accuracies={"global": np.full((2, 2), 0.5)},
        finite=[True, True, False, False],
    )
    (ax,) = plots.accuracy_over_time([run(), other]).axes
    assert list(drawn(ax)) == [
        "FedRep (fine_tune)",
        "FedAvg (global, diverged in round 3)",
    ]
    with pytest.raises(
        ValueError, match=r"'fine_tune' of this run of 'fedavg'; .*='all' records"
    ):
        plots.accuracy_over_time([run(), other], evaluation="fine_tune")


LONG = "a method whose options are all written out, learning_rate=.1, fine_tune_epochs=5"


def legend_box(figure, ax):
    """Return the boxes of a legend and its axes, in pixels; assert that the legend is within the figure."""
    figure.draw_without_rendering()
    legend = ax.get_legend() or figure.legends[0]
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1
    return box, ax.get_window_extent()


@pytest.mark.parametrize(
    "labels",
    [[f"rate {i}" for i in range(10)], ["a", LONG], [f"{LONG} {i}" for i in range(12)]],
)
def test_a_large_legend_lies_below_and_not_on_the_data(labels):
    from matplotlib.figure import Figure

    assert len(LONG) == 80
    histories = {label: run(stage=(0, 0, 0, 0)) for label in labels}
    figure = plots.accuracy_over_time(histories)
    legend, axes = legend_box(figure, figure.axes[0])
    assert legend.y1 < figure.axes[0].xaxis.get_label().get_window_extent().y0
    assert axes.height > 200  # the figure grew, the axes kept their height
    assert [text.replace("\n", " ") for text in legend_texts(figure.legends[0])] == labels
    tight = Figure(figsize=(8, 9)).subplots()
    plots.accuracy_over_time(histories, ax=tight)
    legend, axes = legend_box(tight.figure, tight)
    assert axes.y0 < legend.y0


def test_runs_that_are_no_repeats_are_averaged_on_demand_only():
    def made(rate, seed, checksum="1a"):
        config = {
            "method": {"algorithm": {"learning_rate": rate}},
            "data": {"checksum": checksum},
            "key": [0, seed],
        }
        return run(config=config)

    one, other = made(0.1, 0), made(0.5, 0)
    (ax,) = plots.accuracy_over_time([one, made(0.1, 1)]).axes
    assert list(drawn(ax)) == ["FedRep (2 runs)"]
    for mixed in ([one, other], [one, one], [one, made(0.1, 1, "2b")]):
        with refused("histories.*give|hold the same run"):
            plots.accuracy_over_time(mixed)
    (ax,) = plots.accuracy_over_time({"both": [one, other]}).axes
    assert list(drawn(ax)) == ["both (2 runs)"]


def test_axes_of_the_caller_are_used():
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.accuracy_over_time(run(), ax=right) is figure
    assert run().plot(ax=right) is figure
    assert not left.lines


def test_positive_metrics_have_a_logarithmic_axis():
    history = run(
        accuracies={},
        metrics={"distance": [1.0, 0.5, np.nan, np.inf], "other": [1.0] * 4},
    )
    (ax,) = history.plot(communication=1.0).axes
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), history.elapsed(1.0))
    np.testing.assert_array_equal(line.get_ydata(), [1.0, 0.5, np.nan, np.nan])
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "distance")


LINEAR = {  # case -> metric of each repeat
    "signed": [[1.0, -1.0, 0.5, 2.0]],
    "zero": [[1.0, 0.5, 0.0, 0.0]],
    "zero in the band, but not the mean": [[0.5] * 4, [0.0] * 4],
    "nothing in common": [[0.5, 0.5, np.nan, np.nan], [np.nan] * 4],
    **{str(value): [[value] * 4] for value in (np.nan, np.inf, -np.inf)},
}


@pytest.mark.parametrize("metrics", LINEAR.values(), ids=LINEAR)
def test_other_metrics_have_a_linear_axis(metrics):
    figure = plots.metric_over_time(
        {"a": [run(metrics={"distance": values}) for values in metrics]}
    )
    assert figure.axes[0].get_yscale() == "linear"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_run_that_takes_forever_has_a_figure():
    assert run(accuracies={}, compute_time=[np.inf] * 4).plot()._repr_png_()


def test_labels_are_converted_to_text():
    histories = {0.1: run(), ("a", 2): run(), None: run()}
    (ax,) = plots.accuracy_over_time(histories).axes
    assert list(drawn(ax)) == ["0.1", "('a', 2)", "None"]


def test_figure3_is_a_grid_with_one_legend():
    histories = [run(name) for name in ("srpfl", "fedrep")]
    figure = plots.figure3(
        {"MNIST": histories, "digits": {"fedrep": [run(), run()], "mine": run("mine")}},
        (0, 10, 100),
    )
    assert len(figure.axes) == 6
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[:3] == ["MNIST, C = 0", "digits, C = 0", "MNIST, C = 10"]
    (legend,) = figure.legends
    assert {"SRPFL", "FedRep", "mine"} <= {text.get_text() for text in legend.get_texts()}
    for ax, communication in zip(figure.axes[::2], (0, 10, 100), strict=True):
        np.testing.assert_array_equal(
            drawn(ax)["SRPFL"].get_xdata(), run().eval_elapsed(communication)
        )
    assert len({drawn(ax)["FedRep"].get_color() for ax in figure.axes}) == 1


def test_figures_leave_settings_unchanged():
    before = dict(matplotlib.rcParams)
    plots.accuracy_over_time([run(), run("srpfl")])._repr_png_()
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_imported_for_a_figure_and_pyplot_never():
    code = """
import sys
from fedjax_srp import plots
from fedjax_srp.results import history
assert "matplotlib" not in sys.modules and "pandas" not in sys.modules
one = [1.0]
plots.accuracy_over_time(history.History("a", [1], [0], [1], one, [True], [True], one, {}, [1], {"global": [one]}, [1]))
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
