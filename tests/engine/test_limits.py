"""Rounds of evaluation, and limits that end a run."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from reference import small
from test_simulate import ALGORITHM, CLOCK, CLOSE, DATA, DOUBLING, simulate

import fedjax_srp as srp
from fedjax_srp.driver import outcome
from fedjax_srp.driver.settings import Settings
from fedjax_srp.results import sealed_folders


def test_a_run_stops_at_the_first_evaluation_beyond_its_limits():
    assert (
        simulate(num_rounds=20, time_limit=8.9).num_rounds == 4
    )  # 9 time units after round 3
    assert simulate(num_rounds=20, time_limit=4).num_rounds == 2
    assert (
        simulate(num_rounds=20, target=2.5).num_rounds == 6
    )  # mean number of rounds: 8/14 at 2, 12/7, 26/7 at 6
    assert simulate(num_rounds=4, time_limit=1e9, target=1e9).num_rounds == 4


def test_a_batch_ends_when_each_seed_has_reached_one_of_the_limits():
    records = {
        "eval_round": np.array([[1, 2, 3, 4]] * 2),
        "compute_time": np.array([[1.0] * 4, [1.0, 9.0, 1.0, 1.0]]),
    }
    accuracies = SimpleNamespace(evaluations=("global",), data=None)
    errors = SimpleNamespace(
        evaluations=("global",), data=SimpleNamespace(smaller_is_better=True)
    )

    def end(scores, target=None, time_limit=None, run=accuracies):
        settings = Settings(num_rounds=4, time_limit=time_limit, target=target)
        run = SimpleNamespace(**vars(run), settings=settings)
        return outcome.ended_after(records | {"means/global": np.array(scores)}, run)

    one_by_target = [[0.1, 0.2, 0.9, 0.9], [0.1] * 4]
    assert (
        end(one_by_target, target=0.8, time_limit=5.0) == 3
    )  # the other one by its time, before
    assert end(one_by_target, target=0.8) is None
    assert end(one_by_target, time_limit=11.0) is None
    assert end(one_by_target, time_limit=3.0) == 3
    once = [[0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.9, 0.1]]
    assert end(once, target=0.5) == 3
    assert end(once, target=0.95) is None
    assert end(once, target=0.1, run=errors) == 2  # reached from above


def test_seeds_have_the_limits_of_one_run():
    options = {
        "keys": jax.random.split(small.KEY, 2),
        "participation": DOUBLING,
        "clock": CLOCK,
        "progress": False,
    }
    for limits, grid in (
        ({"time_limit": 8.9}, [2, 4]),
        ({"target": 2.5}, [2, 4, 6]),
        ({"num_rounds": 9, "eval_first": 1, "eval_last": 2}, [1, 2, 4, 6, 8, 9]),
    ):
        given = options | {"num_rounds": 20, "eval_every": 2, "devices": 1} | limits
        for history in srp.simulate_seeds(ALGORITHM, DATA, **given):
            assert history.eval_round.tolist() == grid


@pytest.mark.parametrize(
    ("eval_every", "eval_first", "eval_last", "grid"),
    [
        (3, 3, 0, [1, 2, 3, 6, 7]),
        (3, 2, 0, [1, 2, 3, 6, 7]),
        (2, 3, 0, [1, 2, 3, 4, 6, 7]),
        (9, 1, 0, [1, 7]),
        (2, 9, 0, range(1, 8)),
        (3, 0, 2, [3, 6, 7]),
        (3, 0, 3, [3, 5, 6, 7]),
        (9, 2, 1, [1, 2, 7]),
        (4, 0, 9, range(1, 8)),
        (2, 6, 2, range(1, 8)),
    ],
)
def test_the_grid_of_evaluations_is_dense_at_first_and_at_last(
    eval_every, eval_first, eval_last, grid
):
    settings = Settings(
        num_rounds=7, eval_every=eval_every, eval_first=eval_first, eval_last=eval_last
    )
    evaluations = settings.evaluated_rounds()
    assert evaluations == list(grid)
    plain = dataclasses.replace(settings, eval_last=0)
    longer = []  # a run of 99 rounds evaluates nowhere else up to there
    for after in range(1, 8):
        undisturbed = [r for r in evaluations if r <= after] == [
            r for r in range(1, after + 1) if plain.longer_evaluates_after(r)
        ]
        if plain.longer_evaluates_after(after) and undisturbed:
            longer.append(after)
    assert [after for after in range(1, 8) if settings.can_resume_after(after)] == longer


def test_a_run_with_a_dense_end_is_continued(tmp_path):
    options = {"eval_every": 2, "eval_last": 3, "checkpoint_dir": tmp_path / "run"}
    short = simulate(num_rounds=6, **options)
    np.testing.assert_array_equal(short.eval_round, [2, 4, 5, 6])
    again, continued = (
        simulate(num_rounds=6, **options),
        simulate(num_rounds=9, **options),
    )
    assert again.seconds_per_round != again.seconds_per_round  # nan: no round was run
    np.testing.assert_array_equal(again.eval_round, [2, 4, 5, 6])
    undisturbed = simulate(num_rounds=9, eval_every=2, eval_last=3)
    np.testing.assert_array_equal(continued.eval_round, [2, 4, 6, 7, 8, 9])
    np.testing.assert_array_equal(continued.accuracy, undisturbed.accuracy)
    with pytest.raises(ValueError, match="eval_last=3"):
        simulate(num_rounds=9, **options | {"eval_last": 0})


def test_a_longer_run_that_cannot_continue_a_shorter_one_starts_again(
    tmp_path, monkeypatch
):
    """The shorter run was evaluated after round 1, the longer one is not."""
    options = {"eval_every": 2, "eval_last": 2, "checkpoint_dir": tmp_path / "run"}
    np.testing.assert_array_equal(simulate(num_rounds=2, **options).eval_round, [1, 2])

    def killed(*args, **options):
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch
    ):  # between its first records and its first snapshot
        patch.setattr(sealed_folders, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            simulate(num_rounds=4, **options)
    undisturbed = simulate(num_rounds=4, eval_every=2, eval_last=2)
    for _ in range(2):
        longer = simulate(num_rounds=4, **options)
        np.testing.assert_array_equal(longer.eval_round, [2, 3, 4])
        np.testing.assert_array_equal(longer.accuracy, undisturbed.accuracy)
    assert np.isnan(longer.seconds_per_round)  # all rounds were stored


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


def test_a_killed_longer_run_leaves_no_snapshot_that_looks_damaged(tmp_path, capsys):
    """It went back to round 4, and its log replaced that of the snapshot after round 7."""
    options = {"eval_every": 2, "eval_last": 3, "checkpoint_dir": tmp_path / "run"}
    first = simulate(num_rounds=7, **options)

    def killed(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(num_rounds=10, **options, callback=killed)
    again = simulate(num_rounds=7, **options)
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(again.eval_round, [2, 4, 5, 6, 7])
    np.testing.assert_array_equal(again.accuracy, first.accuracy)


def test_a_dense_grid_brackets_early_times_and_changes_nothing_else():
    plain, dense = simulate(evaluations="all"), simulate(evaluations="all", eval_first=3)
    np.testing.assert_array_equal(dense.eval_round, [1, 2, 3, 4, 5])
    for field in ("round", "cohort_size", "compute_time"):
        np.testing.assert_array_equal(getattr(dense, field), getattr(plain, field))
    np.testing.assert_allclose(dense.metrics["w"], plain.metrics["w"], **CLOSE)
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
    assert dense.config["schedule"]["eval_first"] == 3
    assert plain.config["schedule"]["eval_first"] == 0
