"""Rounds of evaluation, and limits that end a run."""

import jax
import numpy as np
import pytest
from test_simulate import ALGORITHM, CLOSE, DATA, DOUBLING, simulate

import fedjax_srp as srp


def test_a_run_stops_at_the_first_evaluation_beyond_its_limits():
    assert (
        simulate(num_rounds=20, time_limit=8.9).num_rounds == 4
    )  # 9 time units after round 3
    assert simulate(num_rounds=20, time_limit=4).num_rounds == 2
    assert (
        simulate(num_rounds=20, target=2.5).num_rounds == 6
    )  # mean number of rounds: 8/14 at 2, 12/7, 26/7 at 6
    assert simulate(num_rounds=4, time_limit=1e9, target=1e9).num_rounds == 4


def test_seeds_end_when_each_has_reached_a_limit():
    clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
    keys = jax.random.split(jax.random.key(1), 3)
    options = {"participation": DOUBLING, "clock": clock, "num_rounds": 20}
    options["time_limit"] = 9.0
    alone = [simulate(key=key, **options).eval_round.tolist() for key in keys]
    assert len({*map(len, alone)}) > 1
    options |= {"eval_every": 2, "devices": 1, "progress": False}
    for history in srp.simulate_seeds(ALGORITHM, DATA, keys=keys, **options):
        assert history.eval_round.tolist() == max(alone)


@pytest.mark.parametrize(
    ("eval_every", "eval_first", "eval_last", "grid"),
    [
        (3, 3, 0, [1, 2, 3, 6, 7]),
        (2, 9, 0, range(1, 8)),
        (3, 0, 3, [3, 5, 6, 7]),
        (9, 2, 1, [1, 2, 7]),
        (2, 6, 2, range(1, 8)),
    ],
)
def test_the_grid_of_evaluations_is_dense_at_first_and_at_last(
    eval_every, eval_first, eval_last, grid
):
    options = {"eval_every": eval_every, "eval_first": eval_first}
    history = simulate(num_rounds=7, eval_last=eval_last, **options)
    assert history.eval_round.tolist() == list(grid)


def test_a_run_with_a_dense_end_is_continued(tmp_path):
    options = {"eval_every": 2, "eval_last": 3, "checkpoint_dir": tmp_path / "run"}
    short = simulate(num_rounds=6, **options)
    np.testing.assert_array_equal(short.eval_round, [2, 4, 5, 6])
    continued = simulate(num_rounds=9, **options)
    undisturbed = simulate(num_rounds=9, eval_every=2, eval_last=3)
    np.testing.assert_array_equal(continued.eval_round, [2, 4, 6, 7, 8, 9])
    np.testing.assert_array_equal(continued.accuracy, undisturbed.accuracy)
    with pytest.raises(ValueError, match="eval_last=3"):
        simulate(num_rounds=9, **options | {"eval_last": 0})


@pytest.mark.parametrize(
    "ending", [{"time_limit": 12.0}, {"callback": lambda progress: progress.round == 4}]
)
def test_a_run_that_ended_early_is_not_a_shorter_one_with_fewer_evaluations(
    ending, tmp_path
):
    """The longer run was not evaluated after round 3, a run of 4 rounds is."""
    options = {"eval_every": 2, "eval_last": 3}
    ended = simulate(num_rounds=7, **options, **ending, checkpoint_dir=tmp_path / "run")
    np.testing.assert_array_equal(ended.eval_round, [2, 4])
    undisturbed = simulate(num_rounds=4, **options)
    shorter = simulate(num_rounds=4, **options, checkpoint_dir=tmp_path / "run")
    np.testing.assert_array_equal(shorter.eval_round, [2, 3, 4])
    np.testing.assert_array_equal(shorter.accuracy, undisturbed.accuracy)


def test_a_dense_grid_brackets_early_times_and_changes_nothing_else():
    plain, dense = simulate(evaluations="all"), simulate(evaluations="all", eval_first=3)
    np.testing.assert_array_equal(dense.eval_round, [1, 2, 3, 4, 5])
    for field in ("round", "cohort_size", "compute_time"):
        np.testing.assert_array_equal(getattr(dense, field), getattr(plain, field))
    np.testing.assert_allclose(
        dense.scores("model")[[1, 3, 4]], plain.scores("model"), **CLOSE
    )
    np.testing.assert_allclose(
        dense.scores("model")[:, 0], dense.metrics["w"], **CLOSE
    )  # each after its own round
    # 2, 2 and 4 clients take part: 8 of 7 clients' rounds are done after the third, and not after the second.
    assert (
        plain.time_to(1.0, evaluation="rounds"),
        dense.time_to(1.0, evaluation="rounds"),
    ) == (14, 9)
