"""Rounds that overlap, with clients that come, leave and fail, event by event against plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.recorded_orders import stream
from reference import arena
from reference.small import made_algorithm, made_policy, numbers, refused
from worlds import KEY, WORLDS, N, conditions

import fedjax_srp as srp
from fedjax_srp import ClientOutput, Phase, clocks, named_key, participation
from fedjax_srp.participation import cohorts
from fedjax_srp.rounds.cohort import cohort_fault

ROUNDS = 60
POLICIES = {
    "each": participation.Buffered(1),
    "three": participation.Buffered(3),
    "everybody": participation.Buffered(N),
    "one_of_four": participation.Buffered(1, concurrency=4),
    "three_of_four": participation.Buffered(3, concurrency=4),
    "tiers": participation.AsynchronousTiers(2, tiers=3),
}
COMING = [world for world in WORLDS if world != "always"]


def drawn(key, among):
    """Ids in the order in which the policies draw them."""
    draws = np.asarray(cohorts.random_floats(key, N))
    return sorted(among, key=lambda i: -draws[i])


def tiers_of(expected, policy):
    order = sorted(range(N), key=lambda i: (expected[i], i))
    size = N // policy.tiers
    return [order[m * size : (m + 1) * size] for m in range(policy.tiers)]


@functools.cache
def selector(name):
    policy = POLICIES[name]

    def select(key, state, times):
        cohort, state = policy.select(key, state, times)
        return cohort, state, cohort_fault(cohort, times)

    return jax.jit(select)


def play(name, world):
    """Yield the rounds of a policy in a world: its cohort, and those of the simulation in Python."""
    policy, clock, select = POLICIES[name], WORLDS[world], selector(name)
    key_policy, key_clock = (
        named_key(named_key(KEY, part), "init") for part in ("participation", "clock")
    )
    state, clock_state = policy.init(key_policy, N), clock.init(key_clock, N)
    now, is_tiered = 0.0, name == "tiers"
    queue = (
        arena.TierQueue(policy.tiers)
        if is_tiered
        else arena.Buffer(policy.k, policy.concurrency)
    )
    for number in range(ROUNDS):
        key, key_clock = (
            stream(KEY, part, jnp.int32(number)) for part in ("participation", "clock")
        )
        times, clock_state, available, stays, wait = conditions(
            world, key_clock, clock_state, now
        )
        realised = times.realised.tolist()
        cohort, state, fault = select(key, state, times)
        assert fault.tolist() == [0, 0]
        order, start = drawn(key, available), now + wait
        if is_tiered:
            of_tiers = tiers_of(times.expected.tolist(), policy)
            members = [[i for i in order if i in tier][: policy.k] for tier in of_tiers]
            tier, step = queue.step(number, start, members, realised, stays)
            assert int(cohort.stage) == tier
        else:
            step = queue.step(number, start, order, realised, stays)
        yield cohort, start, step
        now = step.end


@pytest.mark.short("*-intervals_failing", "three_of_four-*", "*-hardly", "tiers-markov")
@pytest.mark.parametrize("world", COMING)
@pytest.mark.parametrize("name", POLICIES)
def test_overlapping_rounds_equal_an_event_simulation(name, world):
    with jax.enable_x64(True):
        smaller = empty = 0
        for cohort, start, step in play(name, world):
            ids = cohort.client_ids[: int(cohort.size)].tolist()
            assert ids == [job.client for job in step.jobs]
            begun = cohort.jobs.client_ids[: int(cohort.jobs.size)].tolist()
            assert begun == sorted(step.begun)
            lasted = pytest.approx(step.end - start, rel=1e-9, abs=1e-9)
            assert float(cohort.duration) == lasted
            assert float(cohort.jobs.wasted) == pytest.approx(
                step.wasted, rel=1e-9, abs=1e-9
            )
            empty += not ids
            smaller += len(ids) < getattr(POLICIES[name], "k", 1)
        assert smaller > 0 or world == "failing" or name in ("each", "one_of_four")
        assert empty > 0 or world != "hardly"


@pytest.mark.parametrize(
    "policy", [participation.Buffered(1), participation.AsynchronousTiers(1, tiers=2)]
)
def test_a_job_goes_on_while_the_server_waits_for_a_client(policy):
    first = srp.ClientTimes(
        expected=jnp.array([1.0, 4.0]),
        realised=jnp.array([1.0, 4.0]),
        available=jnp.array([True, True]),
        stays=jnp.array([jnp.inf, jnp.inf]),
        wait=jnp.zeros(()),
    )
    # at time 1 nobody is there for 2 time units, and client 1 still has 3 to work
    second = first._replace(
        realised=jnp.array([4.0, 4.0]),
        available=jnp.array([True, False]),
        wait=jnp.asarray(2.0),
    )
    state = policy.init(KEY, 2)
    for times, client in ((first, 0), (second, 1)):
        cohort, state = policy.select(KEY, state, times)
        assert cohort.client_ids[: cohort.size].tolist() == [client]
        assert float(cohort.duration) == 1.0


# The engine: a client sends the server's number at the beginning of its job, which is the number of steps so far.
# The server also adds up the rounds in which jobs begin.


def add_rounds(key, server, mean, context):
    return server[0], server[1], server[2] + mean * context.cohort_size.astype(float)


BEGIN = Phase(
    "finish",
    lambda server, context: server[0],
    lambda key, steps, state, value, context: ClientOutput(context.round + 1, steps),
    add_rounds,
    over="next",
)


def step_of_server(key, server, mean, context):
    return server[0] + 1, server[1] + mean, server[2]


ROUND = Phase(
    "round",
    lambda server, context: (),
    lambda key, broadcast, state, value, context: ClientOutput(state),
    step_of_server,
)
STEPS = made_algorithm(
    init=lambda key, data: (jnp.zeros(()),) * 3,
    init_client=lambda key, server, value: jnp.zeros(()),
    asynchronous=True,
    phases=(ROUND, BEGIN),
)


def run(participation, clock, algorithm=STEPS, **options):
    parts = {"participation": participation, "clock": clock, "evaluations": ()}
    options = {"num_rounds": ROUNDS, "key": KEY, "progress": False} | options
    return srp.simulate(algorithm, numbers(*range(N)), **parts, **options)


@pytest.mark.parametrize(
    ("name", "world", "options"),
    [
        ("three", "intervals_failing", {"devices": 2, "chunk_size": 1}),
        ("three_of_four", "markov", {"chunk_size": 3}),
        ("tiers", "markov", {}),
    ],
)
def test_a_job_has_the_model_of_its_beginning(name, world, options):
    with jax.enable_x64(True):
        history = run(POLICIES[name], WORLDS[world], **options)
        steps, total, at_round, old, rounds = 0, 0.0, [], 0, 0
        for number, (_, _, step) in enumerate(play(name, world)):
            at_round.append(steps)
            rounds += number * len(step.begun)
            assert history.cohort_size[number] == len(step.jobs)
            assert history.metrics["wasted_time"][number] == pytest.approx(
                step.wasted, rel=1e-6, abs=1e-6
            )
            if step.jobs:
                models = [at_round[job.round] for job in step.jobs]
                total += np.mean(models)
                old += sum(steps - model for model in models)
                steps += 1
        assert old > 0
        assert [float(part) for part in history.server_state] == [
            steps,
            pytest.approx(total),
            rounds,
        ]


def test_clients_that_are_always_there_are_those_of_a_clock_without_absence():
    clock = clocks.Dynamic(clocks.Exponential(1.0))
    always = clocks.Available(clock, clocks.DayNight(24.0, share=1.0))
    for name in ("three", "tiers"):
        plain, coming = run(POLICIES[name], clock), run(POLICIES[name], always)
        assert coming.compute_time.tolist() == plain.compute_time.tolist()
        assert not coming.metrics["wasted_time"].any()
        assert coming.server_state[1] == plain.server_state[1]


def test_a_policy_of_its_own_says_which_jobs_begin():
    full = participation.Full()
    policy = made_policy("mine", full.init, full.select, full.update, asynchronous=True)
    with refused("policy 'mine': rounds overlap, and a client that leaves"):
        run(policy, WORLDS["markov"])
