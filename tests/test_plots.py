"""Lines, labels and limits of figures."""

import io
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from reference.histories import made_history
from reference.small import refused

from fedjax_srp import History, plots
from fedjax_srp.lab.report import drawing, panels, table


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


def test_a_line_passes_through_the_evaluations_and_marks_stages():
    history = run()
    (ax,) = plots.accuracy_over_time(history, communication=10.0).axes
    (with_target,) = plots.accuracy_over_time(history, target=0.25).axes
    assert len(with_target.lines) == len(ax.lines) + 1
    assert [*with_target.lines[-1].get_ydata()] == [0.25, 0.25]
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
    """Of 0.1, 0.2 and 0.6, whose mean is 0.3: ((0.2)^2 + (0.1)^2 + (0.3)^2) / 2."""
    runs = [
        run(scores=(first, 0.6), metrics={"distance": np.full(4, first)})
        for first in (0.1, 0.2, 0.6)
    ]
    given = {"digits": runs} if draw is plots.figure3 else runs
    (band,) = draw(given, spread="std").axes[0].collections
    vertices = band.get_paths()[0].vertices
    at_first = vertices[vertices[:, 0] == vertices[:, 0].min(), 1]
    expected = 0.3 + np.sqrt(0.07) * np.array([-1, 1])
    np.testing.assert_allclose([at_first.min(), at_first.max()], expected, rtol=1e-12)
    ax = draw(given, spread="seeds").axes[0]  # one by one
    assert not ax.collections
    assert len([line for line in ax.get_lines() if len(line.get_xdata()) > 1]) == 3


def test_repeats_are_a_mean_and_a_band_to_the_end_of_the_longest():
    """Evaluated at 2 and 6, 4 and 8, 2 and 6: all have begun at 4, and one goes on from 6 to 8."""
    repeats = [
        run(),
        run(compute_time=(2.0, 2.0, 2.0, 2.0), scores=(0.4, 0.8)),
        run(scores=(0.0, 0.4)),
    ]
    (ax,) = plots.accuracy_over_time(repeats).axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    full, held = lines["FedRep (3 runs)"], lines["_held"]
    np.testing.assert_allclose(full.get_xdata(), [4.0, 6.0])
    np.testing.assert_allclose(full.get_ydata(), [1.0 / 3, 1.6 / 3])
    np.testing.assert_allclose(held.get_xdata(), [6.0, 8.0])
    np.testing.assert_allclose(held.get_ydata()[-1], 1.8 / 3)
    (band,) = ax.collections
    vertices = band.get_paths()[0].vertices
    np.testing.assert_allclose([vertices[:, 1].min(), vertices[:, 1].max()], [0.2, 0.8])
    assert vertices[:, 0].max() == 8.0


@pytest.mark.parametrize(
    ("draw", "rounds"),
    [
        (plots.accuracy_over_time, [2, 4]),
        (plots.metric_over_time, [1, 2, 3, 4]),
        (History.plot, [2, 4]),  # without the lab
    ],
)
def test_curves_over_rounds(draw, rounds):
    (ax,) = draw(run(), x="rounds").axes
    line, marks = ax.get_lines()
    assert list(line.get_xdata()) == rounds
    assert list(marks.get_xdata()) == [2]
    assert "round" in ax.get_xlabel()


def test_the_axis_names_the_split_of_the_evaluation():
    tuned = run("fedavg", config={"data": {"options": {"validation": 0.2}}})
    for histories, expected in (
        ([run()], "test"),
        ([tuned], "validation"),
        ([run(), tuned], "test/validation"),
    ):
        (ax,) = plots.accuracy_over_time(histories).axes
        assert expected in ax.get_ylabel()


@pytest.mark.short("$$")
@pytest.mark.parametrize("text", [r"$\frac{1}{$", "$$", r"a \$ b", "50 $ and 60 $"])
def test_labels_are_not_parsed_as_mathematics(text):
    scores = {text: np.full((2, 2), 0.5)}
    named = run(text, metrics={text: np.ones(4)}, accuracies=scores)
    target = table.Target(0.5, "as asked")
    for figure in (
        plots.accuracy_over_time({text: named}),
        plots.metric_over_time(named),
        plots.figure3({text: {text: named}}),
        panels.figure({text: [named], "other": [run()]}, target, (0,), text),
        named.plot(),
    ):
        figure.savefig(io.BytesIO())
    (ax,) = plots.accuracy_over_time({text: named}).axes
    label = ax.get_legend().get_texts()[0]
    assert label._preprocess_math(label.get_text()) == (text, False)


def test_twins_share_a_colour_and_doubling_is_solid():
    names = ["srpfl", "fedrep", "lg_srpfl", "lg_fedavg", "flanp_fedavg", "fedavg"]
    others = ["hf_maml", "mine", "yours"]
    (ax,) = plots.accuracy_over_time([run(name) for name in names + others]).axes
    lines = list(drawn(ax).values())
    for solid, dashed in zip(lines[:6:2], lines[1:6:2], strict=True):
        assert solid.get_color() == dashed.get_color()
        assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert len({line.get_color() for line in lines}) == 3 + 3
    assert list(drawn(ax))[-3:] == ["HF-MAML", "mine", "yours"]
    for names in ([f"method {i}" for i in range(18)], ["mine", "fedbuff"]):
        styles = drawing.styles(names)  # a colour of the cycle may be a method's own
        assert len({*styles.values()}) == len(names)


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


def test_positive_metrics_have_a_logarithmic_axis():
    metrics = {"distance": [1.0, 0.5, np.nan, np.inf], "other": [1.0] * 4}
    history = run(accuracies={}, metrics=metrics)
    (ax,) = history.plot(communication=1.0).axes
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), history.elapsed(1.0))
    np.testing.assert_array_equal(line.get_ydata(), [1.0, 0.5, np.nan, np.nan])
    assert (ax.get_yscale(), ax.get_ylabel()) == ("log", "distance")
    assert run(accuracies={}, compute_time=[np.inf] * 4).plot()._repr_png_()


LINEAR = {  # case -> metric of each repeat
    "signed": [[1.0, -1.0, 0.5, 2.0]],
    "zero in the band, but not the mean": [[0.5] * 4, [0.0] * 4],
    "nothing in common": [[0.5, 0.5, np.nan, np.nan], [np.nan] * 4],
    "infinite": [[np.inf] * 4],
}


@pytest.mark.parametrize("metrics", LINEAR.values(), ids=LINEAR)
def test_other_metrics_have_a_linear_axis(metrics):
    figure = plots.metric_over_time(
        {"a": [run(metrics={"distance": values}) for values in metrics]}
    )
    assert figure.axes[0].get_yscale() == "linear"
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_figure3_is_a_grid_with_one_legend():
    histories = [run(name) for name in ("srpfl", "fedrep")]
    by_dataset = {"MNIST": histories, "digits": {"fedrep": [run(), run()], "mine": run()}}
    figure = plots.figure3(by_dataset, (0, 10, 100))
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


def test_axes_of_the_caller_are_used():
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.accuracy_over_time(run(), ax=right) is figure
    assert run().plot(ax=right) is figure
    assert not left.lines


def test_figures_leave_settings_unchanged():
    before = dict(matplotlib.rcParams)
    plots.accuracy_over_time([run(), run("srpfl")])._repr_png_()
    assert dict(matplotlib.rcParams) == before


def test_a_large_legend_lies_below_and_not_on_the_data():
    labels = [f"rate {i}" for i in range(10)]
    figure = plots.accuracy_over_time({label: run() for label in labels})
    figure.draw_without_rendering()
    (ax,), (legend,) = figure.axes, figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 < ax.xaxis.get_label().get_window_extent().y0
    assert ax.get_window_extent().height > 200  # the figure grew
    assert labels == [text.get_text() for text in legend.get_texts()][:10]
