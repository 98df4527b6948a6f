"""The formulas of the papers, against simulations, limits and values by hand."""

import inspect
import math
import re

import numpy as np
import pytest

from fedjax_srp import theory

A, N, CHAT = 0.02, 256, 1.1


def test_every_function_has_a_kind_and_cites_its_source():
    kinds = {"exact", "exact recursion", "valid bound", "printed bound"}
    assert set(theory.KIND.values()) == kinds
    source = r"[Ee]q\.|Theorem|Lemma|Proposition|section"
    for name in theory.KIND:
        assert re.search(source, getattr(theory, name).__doc__), name
    public = {name for name, made in vars(theory).items() if inspect.isfunction(made)}
    assert public == set(theory.KIND)


# Times


@pytest.mark.parametrize(
    ("i", "n"),
    [
        (1, 1),
        (1, 256),
        (2, 257),
        (1, 10**9),
        (300, 2**31 - 1),
        (255, 255),
        (10**4, 10**4),
    ],
)
def test_order_statistics(i, n):
    expected = math.fsum(1 / k for k in range(n - i + 1, n + 1))
    found = theory.order_statistic_mean(i, n, rate=2.0)
    assert found == pytest.approx(expected / 2, rel=1e-12, abs=0)


# The first cohort


@pytest.mark.parametrize(
    ("dim", "num_clients", "sigma_max", "expected"),
    [
        (100, 256, 1.0, 37),  # 200 / 5.5452 = 36.07
        (400, 1024, 2.0, 58),  # 800 / (6.9315 * 2) = 57.71
        (5, 10**6, 1.0, 1),  # 10 / 13.8155
        (20, 17, 1.0, 15),  # 40 / 2.8332 = 14.12
    ],
)
def test_initial_clients_by_hand(dim, num_clients, sigma_max, expected):
    assert theory.initial_clients(dim, num_clients, sigma_max) == expected


# The recursion


def test_contraction_rate_and_its_range():
    step = theory.max_step_size(2.0)
    assert step == 1 / 32
    assert theory.contraction_rate(step, 0.6, 2.0) == pytest.approx(0.64 * 4 / 64)
    assert (
        theory.contraction_rate(step, 0.0, 2.0) == 1 / 16
    )  # the most that this step size allows


@pytest.mark.short("0.01-3", "0.25-64")
@pytest.mark.parametrize("ratio", [1, 3, 64])
@pytest.mark.parametrize("a", [0.01, 0.25])
def test_fixed_point_is_fixed_and_attracts(a, ratio):
    x, s = theory.fixed_point(a, ratio), math.sqrt(1 - a)
    assert x == pytest.approx(a / (math.sqrt(ratio) * s * (1 - s)))
    assert x > 2 / math.sqrt(ratio)  # so above 1 in the stages 0, 1 and 2
    assert theory.contraction(x, a, ratio) == pytest.approx(x)
    assert theory.distances(a, np.full(5000, ratio))[-1] == pytest.approx(x, rel=1e-6)


@pytest.mark.parametrize("communication", [0.0, 3.0])
@pytest.mark.parametrize(("num_clients", "initial"), [(64, 1), (100, 5)])
def test_stages_progress_equally_fast_where_they_switch(
    num_clients, initial, communication
):
    """The definition of X (eq. 196), also where the last stage does not double."""
    plan = theory.schedule(A, num_clients, initial, CHAT, communication)
    crossings = theory.switching_distances(A, num_clients, initial, communication)
    assert crossings[0] == math.inf

    def speed(x, stage):
        after = theory.contraction(x, A, plan.cohort_sizes[stage] / initial)
        return (x - after) / plan.stage_times[stage]

    for r, x in enumerate(crossings[1:]):
        assert speed(x, r) == pytest.approx(speed(x, r + 1))


# Schedules


def test_schedule_agrees_with_equation_206():
    """In the stages between the first used one and the last; each start is a fraction of a round below X_r."""
    plan, printed = theory.schedule(A, N, 1, CHAT), theory.stage_rounds(A, N, 1)
    used = next(r for r, t in enumerate(plan.rounds_per_stage) if t)
    for r in range(used + 1, 8):
        assert abs(plan.rounds_per_stage[r] - printed[r]) < 1
    assert plan.rounds_per_stage[:3] == [
        0,
        0,
        0,
    ]  # without communication the first three stages are empty
    assert np.isnan(printed[[0, 8]]).all()


# Times and bounds


@pytest.mark.parametrize("chat", [1.05, 1.1, 1.4])
@pytest.mark.parametrize("c", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("exponent", [4, 8, 14, 20])
def test_printed_bound_of_srpfl_held_here(exponent, c, chat):
    assert theory.schedule(A, 2**exponent, 1, chat, c).time <= theory.srpfl_time_bound(
        A, 2**exponent, chat, c
    )


@pytest.mark.parametrize(
    ("num_clients", "initial", "a", "chat", "options"),
    [
        (256, 1, A, CHAT, {"rate": 2.0, "communication": 3.0, "initial_distance": 0.7}),
        (100, 5, A, CHAT, {}),  # the last stage does not double
        (4096, 16, A, CHAT, {"communication": 100.0}),
        (8, 8, A, CHAT, {}),  # one stage, whose fixed point is above 1: no rounds
        (1030, 1, 0.05, 1.4, {}),  # the last switch, from 1024 clients, lies below eps
    ],
)
def test_schedule_is_the_choice_of_the_best_stage_in_every_round(
    num_clients, initial, a, chat, options
):
    """The stage with the most progress in eq. 9 per unit of time."""
    sizes = [initial]
    while sizes[-1] < num_clients:
        sizes.append(min(2 * sizes[-1], num_clients))
    rate, cost = options.get("rate", 1.0), options.get("communication", 0.0)
    waits = [sum(1 / np.arange(num_clients - n + 1.0, num_clients + 1)) for n in sizes]
    times = np.array(waits) / rate + cost
    s, noise = math.sqrt(1 - a), a / np.sqrt(np.array(sizes) / initial)
    target = chat * noise[-1] / (s * (1 - s))
    distance = alone = options.get("initial_distance", 1.0)
    rounds, rounds_alone = [0] * len(sizes), 0
    while distance > target:
        after = distance * s + noise / s
        best = int(np.argmax((distance - after) / times))
        rounds[best] += 1
        distance = after[best]
    while alone > target:
        alone = alone * s + noise[-1] / s
        rounds_alone += 1
    plan = theory.schedule(a, num_clients, initial, chat, **options)
    assert plan.rounds_per_stage == rounds
    assert plan.time == pytest.approx(np.dot(rounds, times))
    fedrep_time = theory.fedrep_time(a, num_clients, initial, chat, **options)
    assert fedrep_time == pytest.approx(rounds_alone * times[-1])


def test_printed_bounds_of_srpfl_by_hand():
    """N = 256 = 2^8, chat - 1 = 1/10, a = 0.02; c = 3 and rate 2."""
    log_n, gap, per_round = 8 * math.log(2), math.log(10), math.log(100 / 98)
    bound = theory.srpfl_time_bound(A, N, CHAT, c=3.0, rate=2.0)
    assert bound == pytest.approx(log_n * (6 * 4 + 4 * gap) / per_round / 2)
    assert theory.fedrep_time_bound(A, N, CHAT, rate=2.0) == pytest.approx(
        log_n * (log_n + 2 * gap) / per_round / 2
    )
    assert theory.speedup_bound(N, CHAT, c=3.0) == pytest.approx(
        (6 * 4 + 4 * gap) / (log_n + 2 * gap)
    )


def test_flanp_times():
    times = np.array([5.0, 1.0, 4.0, 2.0, 3.0])  # in any order
    r, tau = 12 * 3 * math.log(6), 1.5 * 10 * 0.5 / 2
    assert theory.flanp_time(
        times, 1, kappa=3, samples=10, noise=0.5, c=2
    ) == pytest.approx(r * tau * (1 + 2 + 4 + 5))
    constant = 7.5 / 2 * 3 * 10 * 0.5 * math.log(5 / 2 * 0.7 * 5 * 10)
    assert theory.fedgate_time(times, 3, 10, 0.5, 2, initial_gap=0.7) == pytest.approx(
        constant * 5
    )  # eq. 4
    np.testing.assert_array_equal(times, [5.0, 1.0, 4.0, 2.0, 3.0])


def test_ratio_of_flanp_and_its_bound_by_hand():
    """N = 4, s = 10, c = 2, Delta0 = 0.7: R tau is 18 log 6 and 7.5 log 70 times the same, T_(i) = 1/4, 7/12, 25/12."""
    logs = math.log(6) / math.log(70)
    assert theory.flanp_ratio(4, 10, 2.0, 0.7) == pytest.approx(
        18 / 7.5 * logs * (3 + 7 + 25) / 25
    )
    assert theory.flanp_ratio(4, 10, 2.0, 0.7, initial=2) == pytest.approx(
        18 / 7.5 * logs * (7 + 25) / 25
    )
    assert theory.flanp_ratio_bound(4, 10, 2.0, 0.7) == pytest.approx(
        12 / 5 * logs * (2 + 1 / 4)
    )


def test_bound_of_flanp_may_fail_where_n_is_no_power_of_two():
    def excess(n):
        given = (n, 100, 1.0, 1.0)
        return theory.flanp_ratio(*given) / theory.flanp_ratio_bound(*given)

    assert max(excess(2**q) for q in range(7)) <= 1
    assert excess(33) > 1.002
    assert max(excess(n) for n in (10, 50, 100)) < 1  # of the paper's tables


def test_step_sizes_of_flanp():
    """Theorem 1, by hand: four of its five bounds are the smallest somewhere; the fifth is not, since kappa >= 1."""
    cases = [
        ((1, 1.0, 1.0, 1.0), 1 / (12 * math.sqrt(2) * 5 * 3)),
        ((10**8, 0.25, 1.0, 1.0), 1 / (12 * math.sqrt(3) * 8)),
        ((4, 0.25, 1.0, 1e9), 2 / math.sqrt(60e9)),
        ((1, 1e-9, 1e-9, 1e-30), (1 / 96e-18) ** (1 / 3)),
        ((1, 1e9, 1e9, 1e-30), 1 / (12 * math.sqrt(2) * 5 * 2e9 * 1e9)),
    ]
    for given, expected in cases:
        assert theory.flanp_alpha(*given) == pytest.approx(expected)
    for n in (1, 1000):
        alpha = theory.flanp_alpha(n, 0.1, 2.0, 3.0)
        eta, gamma = theory.flanp_step_sizes(n, 0.1, 2.0, 3.0, local_steps=40.0)
        assert eta * math.sqrt(n) * 40 == pytest.approx(alpha)
        assert eta * gamma * 40 == pytest.approx(1 / 4)
    assert theory.flanp_local_steps(100.0, 0.5, 2.0) == 37.5


def test_rounds_of_a_stage_suffice_without_noise():
    """Gradient descent by 1 / (2L) on the slowest direction: 3 V, the warm start of a doubling, falls to V / 2."""
    for kappa in (1.0, 5.0, 300.0):
        assert 3 * (1 - 1 / (2 * kappa)) ** (2 * theory.flanp_stage_rounds(kappa)) < 0.5
    assert theory.flanp_stage_rounds(5.0) == pytest.approx(60 * math.log(6))


def test_warm_start_of_flanp():
    for m in (1, 3, 20):  # 3 V_ms for n = 2m, as Proposition 1 goes on
        assert theory.flanp_warm_gap(2 * m, m, 10.0, 2.0) == pytest.approx(
            3 * 2 / (10 * m)
        )
    assert theory.flanp_warm_gap(5, 4, 10.0, 2.0) == pytest.approx(
        2 / 5 * (2 / 10 + 2 / 40) + 2 / 40
    )


def test_rounds_of_one_and_two_stages_are_unknown():
    assert np.isnan(theory.stage_rounds(A, 8, 8)).tolist() == [True]
    assert np.isnan(theory.stage_rounds(A, 16, 8)).tolist() == [True, True]
