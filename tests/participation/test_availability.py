"""Rounds of every policy with clients that come, leave and fail, against an event simulation in plain Python."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.recorded_orders import stream
from reference import arena
from reference.arena import Asked
from reference.small import made_algorithm, numbers
from worlds import COST, KEY, WORLDS, N, conditions

import fedjax_srp as srp
from fedjax_srp import ClientOutput, RoundInfo, clocks, named_key, participation
from fedjax_srp.participation import cohorts
from fedjax_srp.rounds.cohort import cohort_fault, slowest, wasted_time

ROUNDS = 25


def fastest(ranking, ids, size=None):
    return sorted(ids, key=lambda i: (ranking[i], i))[:size]


class Choice:
    """The choice of each policy in plain Python; `available` are ids, `times` those of the round."""

    def __init__(self, policy):
        self.policy, self.stage, self.losses = policy, 0, np.full(N, np.inf)
        self.best = np.inf  # loss of the stage

    def drawn(self, key, available, size):
        if size == N:
            return available
        draws = np.asarray(cohorts.random_floats(key, N))
        return sorted(available, key=lambda i: -draws[i])[:size]

    def of(self, policy, key, available, times, stays, number, metrics):
        expected, realised = times
        name = policy.name
        if name == "deadline":
            inner = self.of(policy.policy, key, available, times, stays, number, metrics)
            quorum = min(inner.quorum or N, policy.quorum or N)
            return inner._replace(quorum=quorum, limit=policy.limit)
        if name == "full":
            return Asked(available)
        if name == "uniform":
            return Asked(self.drawn(key, available, policy.k))
        if name == "fastest":
            pool = self.drawn(key, available, policy.pool or N)
            return (
                Asked(pool, policy.k)
                if policy.by == "realised"
                else Asked(fastest(expected, pool, policy.k))
            )
        if name == "doubling":
            pool, self.stage = policy.pool or N, number // policy.rounds_per_stage
            size = min(policy.initial * 2**self.stage, pool)
            asked = self.drawn(key, available, pool)
            return (
                Asked(asked, size)
                if policy.by == "realised"
                else Asked(fastest(expected, asked, size))
            )
        if name == "growing":
            return Asked(available, min(policy.initial * 2**self.stage, N))
        if name == "tiered":
            tier, ids = int(metrics["tier"]), fastest(expected, range(N))
            size = N // policy.tiers
            of_tier = ids[
                tier * size : (tier + 1) * size if tier < policy.tiers - 1 else N
            ]
            assert set(of_tier) & set(available)
            key_clients = jax.random.split(key)[1]
            return Asked(
                self.drawn(key_clients, [i for i in available if i in of_tier], policy.k)
            )
        if name == "power_of_choice":
            candidates = self.drawn(key, available, policy.candidates)
            return Asked(sorted(candidates, key=lambda i: -self.losses[i])[: policy.k])
        if name == "statistical_accuracy":
            available = fastest(
                expected, available, min(policy.initial * 2**self.stage, N)
            )
        elif name != "partial_work":
            raise NotImplementedError(name)
        on_time = max(1, math.ceil(policy.on_time * len(available)))
        fits = arena.units_that_fit(
            available, realised, stays, COST, policy.max_work, on_time
        )
        return Asked(available, work=fits)

    def learn(self, reported, losses):
        self.losses[reported] = losses[reported]
        if self.policy.name == "statistical_accuracy" and reported:
            self.stage = min(self.stage + 1, 3)
        if self.policy.name == "growing" and reported:
            loss = losses[reported].mean()
            if loss < self.best * (1 - 1e-4):
                self.best = loss
            else:
                self.stage, self.best = min(self.stage + 1, 3), np.inf


POLICIES = {
    "full": participation.Full(),
    "uniform": participation.Uniform(5),
    "fastest": participation.Fastest(4),
    "fastest_expected": participation.Fastest(4, by="expected"),
    "over_selection": participation.Fastest(3, pool=6),
    "doubling": participation.Doubling(2, 4),
    "doubling_pool": participation.Doubling(2, 4, pool=9),
    "doubling_expected": participation.Doubling(2, 4, by="expected"),
    "growing": participation.Growing(2, participation.LossPlateau(patience=0)),
    "tiered": participation.Tiered(3, tiers=3),
    "power_of_choice": participation.PowerOfChoice(3, candidates=6),
    "partial_work": participation.PartialWork(4, on_time=0.4),
    "statistical_accuracy": participation.StatisticalAccuracy(
        2,
        strong_convexity=1e9,
        accuracy_constant=1.0,
        samples_per_client=1,
        max_work=3,
        on_time=0.5,
    ),
    "deadline": participation.Deadline(0.9),
    "deadline_uniform": participation.Deadline(1.2, policy=participation.Uniform(5)),
    "quorum": participation.Deadline(quorum=3, policy=participation.Uniform(6)),
    "both": participation.Deadline(1.5, 2, participation.PartialWork(4, on_time=0.4)),
    "deadline_doubling": participation.Deadline(0.8, policy=participation.Doubling(2, 4)),
    "deadline_expected": participation.Deadline(
        0.8, 5, participation.Doubling(2, 4, by="expected")
    ),
    "oort": participation.Oort(4),
    "oort_without_cutoff": participation.Oort(4, cutoff=0.0),
}


@functools.cache
def selector(name):
    policy = POLICIES[name]

    def select(key, state, times):
        cohort, state = policy.select(key, state, times)
        duration = slowest(cohort, times) if cohort.duration is None else cohort.duration
        wasted = None if cohort.asked is None else wasted_time(cohort, times, duration)
        return cohort, state, duration, wasted, cohort_fault(cohort, times)

    return jax.jit(select), jax.jit(policy.update)


def play(name, world):
    """Yield the rounds of a policy in a world: its cohorts, and the outcomes of the simulation in Python."""
    policy, clock = POLICIES[name], WORLDS[world]
    select, update = selector(name)
    key_policy, key_clock = (
        named_key(named_key(KEY, name), "init") for name in ("participation", "clock")
    )
    state, clock_state = policy.init(key_policy, N), clock.init(key_clock, N)
    choice, now = Choice(policy), 0.0
    for number in range(ROUNDS):
        key, key_clock = (
            stream(KEY, stage, jnp.int32(number)) for stage in ("participation", "clock")
        )
        round_ = conditions(world, key_clock, clock_state, now)
        times, clock_state, available, stays, wait = round_
        expected, realised = (np.asarray(value).tolist() for value in times[:2])
        cohort, state, duration, wasted, fault = select(key, state, times)
        assert fault.tolist() == [0, 0]
        metrics = policy.metrics(state)
        if name.startswith("oort"):  # test_answers.py compares its draws
            asked = Asked(
                cohort.client_ids[
                    : int(cohort.size if cohort.asked is None else cohort.asked)
                ].tolist()
            )
            assert set(asked.clients) <= set(available)
            assert len(asked.clients) == min(4, len(available))
        else:
            asked = choice.of(
                policy, key, available, (expected, realised), stays, number, metrics
            )
        outcome = arena.play_round(asked, realised, stays, COST)
        yield cohort, float(duration), wasted, outcome, wait, times
        reported = sorted(outcome.reported)
        losses = np.random.default_rng(number).uniform(size=N)
        reports = jnp.full(N, jnp.nan).at[np.array(reported, int)].set(losses[reported])
        info = RoundInfo(
            jnp.int32(number), cohort.stage, cohort.size, duration, True, jnp.where(cohort.size > 0, 1.0, jnp.nan),
            True, {}, dict.fromkeys(policy.needs, reports),
        )  # fmt: skip
        state = update(state, info)
        if name.startswith("oort"):
            assert (
                np.flatnonzero(np.asarray(state.last) == number + 1).tolist() == reported
            )
        choice.learn(reported, losses)
        now += wait + outcome.duration


# every policy in one world, one policy in all
SHORT = [f"{name}-{list(WORLDS)[i % len(WORLDS)]}" for i, name in enumerate(POLICIES)]


@pytest.mark.short(
    *SHORT,
    "uniform-*",
    "tiered-day_and_night",
    "power_of_choice-day_and_night",
    "over_selection-always",
)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", POLICIES)
def test_rounds_equal_an_event_simulation(name, world):
    with jax.enable_x64(True):
        empty_rounds = delayed_rounds = 0
        for cohort, duration, wasted, outcome, wait, times in play(name, world):
            ids = cohort.client_ids[: int(cohort.size)].tolist()
            if times.available is None:  # the cohort is ordered by the ranking times
                ids, outcome.reported[:] = sorted(ids), sorted(outcome.reported)
            assert ids == outcome.reported
            assert duration == pytest.approx(outcome.duration, rel=1e-9, abs=1e-9)
            assert wasted is not None or (world == "always" and name != "over_selection")
            if wasted is not None and (world, name) != ("always", "deadline_doubling"):
                assert float(wasted) == pytest.approx(outcome.wasted, rel=1e-9, abs=1e-9)
            if times.wait is not None:
                assert float(times.wait) == pytest.approx(wait, rel=1e-9, abs=1e-9)
            empty_rounds, delayed_rounds = (
                empty_rounds + (not outcome.reported),
                delayed_rounds + (wait > 0),
            )
        assert delayed_rounds > 0 or world in ("always", "failing", "hardly", "markov")
        assert empty_rounds > 0 or world != "hardly"


# The engine.

VALUES = np.arange(1.0, N + 1)
SUMS = made_algorithm(  # the server sums the means, a client counts its rounds
    init=lambda key, data: jnp.zeros(()),
    init_client=lambda key, server, value: jnp.int32(0),
    client=lambda key, broadcast, state, value, context: ClientOutput(value, state + 1),
    server=lambda key, server, mean, context: server + mean,
)


def run(name, world, num_rounds=ROUNDS, **options):
    parts = {"participation": POLICIES[name], "clock": WORLDS[world], "evaluations": ()}
    given = (
        parts
        | {"num_rounds": num_rounds, "eval_every": 5, "key": KEY, "progress": False}
        | options
    )
    return srp.simulate(SUMS, numbers(*VALUES), keep_clients=True, **given)


@pytest.mark.short("deadline_uniform-*")
@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("deadline_uniform", "intervals_failing"),
        ("doubling", "day_and_night"),
        ("full", "hardly"),
    ],
)
def test_simulate_has_the_same_rounds(name, world):
    with jax.enable_x64(True):
        history, counts, total = run(name, world), np.zeros(N), 0.0
        for number, (_, _, _, outcome, wait, _) in enumerate(play(name, world)):
            assert history.cohort_size[number] == len(outcome.reported)
            assert history.compute_time[number] == pytest.approx(
                wait + outcome.duration, rel=1e-6
            )
            assert history.metrics["wasted_time"][number] == pytest.approx(
                outcome.wasted, rel=1e-6, abs=1e-6
            )
            counts[outcome.reported] += 1
            total += np.mean(VALUES[outcome.reported]) if outcome.reported else 0.0
        assert history.client_states.tolist() == counts.tolist()
        assert float(history.server_state) == pytest.approx(total)


def test_results_do_not_depend_on_chunks_devices_seeds_or_checkpoints(tmp_path):
    name, world = "deadline_doubling", "markov"
    one = run(name, world, devices=1)
    others = [run(name, world, chunk_size=5, devices=2)]
    run(name, world, 10, devices=1, checkpoint_dir=tmp_path)
    others.append(run(name, world, devices=1, checkpoint_dir=tmp_path))
    parts = {"participation": POLICIES[name], "clock": WORLDS[world]}
    seeds = {
        "keys": KEY[None],
        "num_rounds": ROUNDS,
        "evaluations": (),
        "progress": False,
        "devices": 1,
    }
    others += srp.simulate_seeds(SUMS, numbers(*VALUES), **seeds, **parts)
    for other in others:
        assert other.compute_time.tolist() == one.compute_time.tolist()
        assert other.cohort_size.tolist() == one.cohort_size.tolist()
    assert np.array_equal(others[1].client_states, one.client_states)


def test_markov_is_stationary_and_its_announced_intervals_hold():
    """Shares, mean stays and memory at any step; clients are available until the announced end of an interval."""
    model, n = clocks.Markov(on=3.0, off=1.0), 20_000
    state, now, before = model.init(KEY, n), 0.0, None
    for number, step in enumerate([0.0, 0.1, 2.0, 0.5, 50.0, 0.01]):
        now += step
        presence, state = model.sample(
            jax.random.fold_in(KEY, number), state, jnp.asarray(now)
        )
        arrives, leaves = (
            np.asarray(presence.arrives, float),
            np.asarray(presence.leaves, float),
        )
        available = arrives == 0
        assert abs(available.mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / n)
        assert abs(leaves[available].mean() - 3.0) < 4 * 3.0 / np.sqrt(available.sum())
        assert abs(arrives[~available].mean() - 1.0) < 4 * 1.0 / np.sqrt(
            (~available).sum()
        )
        if before is not None:
            came, left = before
            # P(available at t + step | available at t)
            stay = 0.75 + 0.25 * np.exp(-(1 / 3 + 1) * step)
            error = 4 * np.sqrt(stay * (1 - stay) / (came == 0).sum())
            assert abs(available[came == 0].mean() - stay) < error + 1e-9
            certain = (came <= step - 1e-5) & (left > step + 1e-5)
            assert available[certain].all()
            np.testing.assert_allclose(leaves[certain], left[certain] - step, atol=1e-4)
        before = arrives, leaves


def test_a_client_fails_at_a_uniform_time_of_its_work():
    fixed, n, rate = clocks.Fixed(clocks.Uniform(1.0, 3.0)), 20_000, 0.3
    clock = clocks.Failing(fixed, rate)
    times, _ = clock.sample(KEY, clock.init(KEY, n), jnp.zeros(()))
    when = np.asarray(times.stays / times.realised)
    fails = np.isfinite(when)
    assert abs(fails.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / n)
    assert abs(when[fails].mean() - 1 / 2) < 4 / np.sqrt(12 * fails.sum())
    assert 0.99 < when[fails].max() <= 1


def test_clients_with_whole_days_are_always_available():
    model = clocks.DayNight(24.0, share=1.0)
    phases = model.init(KEY, 10_000)
    for now in (
        0.0,
        7.0,
        24e4,
    ):  # in float32 some clients are less than a rounding error before their next day
        presence, _ = model.sample(KEY, phases, jnp.asarray(now))
        assert (np.asarray(presence.arrives) == 0).all()
        assert np.isinf(presence.leaves).all()
