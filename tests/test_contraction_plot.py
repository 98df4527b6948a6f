"""The plot of the predicted contraction over a measured run, with marks where stages begin."""

import numpy as np
import pytest
from reference.histories import made_history
from reference.small import refused

from fedjax_srp import plots, theory

SIZES = (4, 4, 4, 8, 8, 16, 16, 16)


def run(scale=1.0, sizes=SIZES, metric="distance"):
    metrics = {metric: scale * 0.8 ** np.arange(1, len(sizes) + 1)}
    return made_history(
        np.zeros(len(sizes)),
        np.ones(len(sizes)),
        clients=16,
        cohort_size=sizes,
        metrics=metrics,
    )


def drawn(ax):
    return {
        line.get_label(): line
        for line in ax.get_lines()
        if not line.get_label().startswith("_")
    }


def test_prediction_measurement_and_stages():
    a, initial = 0.05, 0.01
    (ax,) = plots.contraction_over_run(run(), a, initial).axes
    lines, distance = drawn(ax), run().metrics["distance"]
    np.testing.assert_array_equal(lines["measured"].get_ydata(), distance)
    ratios = np.array(SIZES) / initial
    predicted = theory.distances(a, ratios[1:], distance[0])
    np.testing.assert_allclose(lines["eq. 9, a = 0.05"].get_ydata()[1:], predicted)
    floors = [theory.fixed_point(a, ratio) for ratio in ratios]
    np.testing.assert_allclose(lines["its fixed point"].get_ydata(), floors)
    starts = [
        line.get_xdata()[0] for line in ax.get_lines() if len(line.get_xdata()) == 2
    ]
    assert starts == [0, 3, 5]
    assert [text.get_text().strip() for text in ax.texts] == ["n = 4", "n = 8", "n = 16"]
    assert ax.get_yscale() == "log"


def test_values_above_1_are_cut():
    (ax,) = plots.contraction_over_run(
        run(), 0.05
    ).axes  # n0 = 4: fixed points of 1 and more
    assert np.isnan(drawn(ax)["its fixed point"].get_ydata()).all()
    assert drawn(ax)["eq. 9, a = 0.05"].get_ydata().max() <= 1


def test_a_distance_of_0_gives_a_linear_axis():
    (ax,) = plots.contraction_over_run(run(0.0, sizes=(16,) * 4), 0.05, 0.01).axes
    assert ax.get_yscale() == "linear"
    assert [text.get_text().strip() for text in ax.texts] == ["n = 16"]


REFUSED = {
    "no runs": [],
    "no rounds": run(sizes=()),
    "other participants": [run(), run(sizes=(16,) * 8)],
    "another metric": [run(), run(metric="gradient_norm")],
    "diverged": [run(), run(np.nan)],
    "nobody": run(sizes=(4, 0, 0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_runs_without_a_prediction_are_refused(case):
    with refused("give|the same participants"):
        plots.contraction_over_run(REFUSED[case], 0.05)
