"""Parts that break the contract of `base.py`, with what the error of each names, and algorithms that keep it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from reference.small import made_clock, made_policy, numbers, whole_server

from fedjax_srp import (
    ClientOutput,
    ClientTimes,
    Cohort,
    Exchange,
    Phase,
    nothing,
)

VALUES = np.array([3.0, -1.0, 4.0, 1.5], np.float32)
DATA = numbers(*VALUES)
EACH = jnp.ones(4)


def client_of(**given):
    """Return a client function whose output has its number as message, or these fields."""
    return lambda key, broadcast, state, value, context: ClientOutput(
        **{"message": value} | given
    )


KEEP = lambda key, state, mean, context: state


def returning(value):
    return lambda key, broadcast, state, example, context: value


def in_round(
    broadcast=whole_server, client=None, server=lambda key, state, mean, context: state
):
    return {
        "broadcast": broadcast,
        "client": client_of() if client is None else client,
        "server": server,
    }


PHASE = Phase("pass", whole_server, client_of(), KEEP)


def with_state(state):
    """Return an algorithm whose clients start with a state of two parts and return this one."""
    begin = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    return {
        "init_client": lambda key, server, value: begin,
        **in_round(client=client_of(state=state)),
    }


def judged(personalize):
    return {"evaluations": {"mine": personalize}}


PARTS = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
FEW, NO_TEXT = (lambda one: one), "returned a value of type <class 'str'>"
BROKEN_ALGORITHMS = {
    # Return values of a client.
    "bare_message": (in_round(client=returning(jnp.zeros(2))), "round.client"),
    "object_as_state": (in_round(client=client_of(state=object())), "round.client"),
    "state_lacks": (with_state({"a": jnp.zeros(3)}), "(they differ in ['b'])"),
    "state_of_other_shape": (
        with_state({"a": jnp.zeros(4), "b": jnp.zeros(())}),
        "the state {a: float32[4], b: float32[]}",
    ),
    "weight_of_other_parts": (
        in_round(client=client_of(message=PARTS, weight={"a": 1.0, "c": 1.0})),
        "with the weight {a: float32[], c: float32[]}",
    ),
    "weight_by_entry": (
        in_round(client=client_of(message=PARTS, weight={"a": EACH[:, None], "b": 1.0})),
        "the weight {a: float32",
    ),
    "weight_by_example": (
        in_round(
            client=client_of(weight=EACH), server=lambda key, state, mean, context: mean
        ),
        "round.server (which gets a mean for each group, by the weight float32[4]; give a",
    ),
    "weight_key": (
        in_round(client=lambda key, *rest: ClientOutput(rest[2], weight=key)),
        "with the weight key<fry>[]",
    ),
    "info_list": (in_round(client=client_of(info=[1.0])), "info: [float32[]]"),
    "info_vector": (in_round(client=client_of(info={"loss": EACH})), "info: 'loss'"),
    "info_as_metric": (
        {
            **in_round(client=client_of(info={"loss": 1.0})),
            "metrics": lambda server, data: {"loss": server},
        },
        "'loss' is recorded twice",
    ),
    "info_column": (in_round(client=client_of(info={"elapsed": 1.0})), "'elapsed'"),
    # Return values of the server and of other methods.
    "server_shape": (in_round(server=lambda *args: EACH), "round.server"),
    "mean_of_integers": (
        {
            "init": lambda key, data: jnp.int32(0),
            **in_round(
                client=client_of(message=jnp.int32(2)),
                server=lambda key, state, mean, context: mean,
            ),
        },
        "round.server",
    ),
    "finish_state": (
        {"finish": (nothing, client_of(state=EACH), lambda *a: a[1])},
        "finish.client",
    ),
    "prepare_server": (
        {"prepare": (nothing, client_of(), lambda *a: EACH)},
        "prepare.server",
    ),
    "evaluation_array": (
        judged(lambda key, server, state, value: value),
        "evaluation 'mine'",
    ),
    "predict_shape": (judged(lambda *args: lambda x: EACH), "data.score"),
    "metrics_vector": ({"metrics": lambda server, data: {"w": EACH}}, "metrics"),
    "communicates_vector": (
        {"communicates": lambda server, context: EACH > 0},
        "communicates",
    ),
    # Errors of Python and JAX come in one line, with the function.
    "init_few": ({"init": FEW}, "init: "),
    "client_few": (in_round(client=FEW), "round.client: "),
    "id_in_a_broadcast": (
        in_round(broadcast=lambda server, context: server + context.client_id),
        "round.broadcast: ",
    ),
    "if_on_an_array": (
        in_round(client=lambda *args: client_of()(*args) if args[3] > 0 else None),
        "round.client: ",
    ),
    # Phases.
    "phases_alone": ({"phases": PHASE}, "phases"),
    "phases_none": ({"phases": ()}, "phases=()"),
    "phases_twice": ({"phases": (PHASE, PHASE)}, "'pass'"),
    "start_as_round": ({"start_phases": (PHASE._replace(name="round"),)}, "'round'"),
    "phase_gradient": ({"phases": (PHASE._replace(name="gradient"),)}, "'gradient'"),
    "phase_over": ({"phases": (PHASE._replace(over="all"),)}, "pass.over='all'"),
    "start_over": ({"start_phases": (PHASE._replace(over="next"),)}, "pass.over='next'"),
    "round_charged": ({"phases": (PHASE._replace(charged=True),)}, "pass.charged=True"),
    "exchange_few": (
        {"phases": (PHASE._replace(exchange=Exchange(FEW, FEW)),)},
        "pass.exchange",
    ),
    "charges_tuple": ({"charges": (None, None)}, "charges"),
}


COHORT = Cohort(
    jnp.arange(2, dtype=jnp.int32), jnp.int32(2), jnp.ones(2, jnp.int32), jnp.int32(0)
)


def policy_of(**functions):
    given = {
        "name": "mine",
        "init": lambda key, num_clients: jnp.zeros(2),
        "select": lambda key, state, times: (COHORT, state),
        "update": lambda state, info: state,
    }
    return made_policy(**given | functions)


def picking(**change):
    return {"select": lambda key, state, times: (COHORT._replace(**change), state)}


def ids(*shape, dtype=jnp.int32):
    return jnp.zeros(shape, dtype)


BROKEN_POLICIES = {
    "bare_cohort": ({"select": lambda key, state, times: COHORT}, "select"),
    "float_ids": (picking(client_ids=jnp.zeros(2)), "client_ids"),
    "ids_of_two_axes": (picking(client_ids=ids(2, 1)), "client_ids = int32[2, 1]"),
    "no_ids": (picking(client_ids=ids(0)), "client_ids = int32[0]"),
    "pool_too_large": (picking(client_ids=ids(5), work=ids(5)), "int32[5]"),
    "size_vector": (picking(size=ids(1)), ".size"),
    "work_of_other_length": (picking(work=ids(3)), ".work"),
    "durations": (picking(duration=EACH), ".duration"),
    "state_shape": ({"select": lambda *args: (COHORT, EACH)}, "select"),
    "update_dtype": ({"update": lambda state, info: state > 0}, "update"),
    "select_by_mask": (
        {"select": lambda key, state, times: COHORT.client_ids[times.realised[:2] > 1]},
        "select: ",
    ),
    "metrics_column": (
        {"metrics": lambda state: {"stage": state[0]}},
        "'stage'",
    ),
}


LOSS = {"client": client_of(), "metrics": lambda server, data: {"loss": jnp.zeros(())}}


def clock_of(**functions):
    sample = lambda key, state, now: (ClientTimes(EACH, EACH), state)
    return made_clock(
        **{
            "name": "mine",
            "init": lambda key, num_clients: jnp.zeros(2),
            "sample": sample,
        }
        | functions
    )


def times(expected=EACH, realised=EACH, **more):
    return {
        "sample": lambda key, state, now: (ClientTimes(expected, realised, **more), state)
    }


BROKEN_CLOCKS = {
    "only_times": ({"sample": lambda *args: ClientTimes(EACH, EACH)}, "sample"),
    "too_many": (times(jnp.ones(5)), ".expected"),
    "integers": (times(jnp.ones(4, int)), ".expected"),
    "communication_of_some": (times(communication=jnp.ones(3)), ".communication"),
    "by_work_of_some": (times(by_work=jnp.ones((3, 2))), ".by_work"),
    "unknown": (times(realised=None), ".realised"),
    "state_shape": ({"sample": lambda *args: (ClientTimes(EACH, EACH), EACH)}, "sample"),
}


MAKERS = {
    "algorithm": (
        BROKEN_ALGORITHMS,
        "algorithm 'few_lines': ",
        lambda given: ({"client": client_of()} | given, {}),
    ),
    "policy": (
        BROKEN_POLICIES,
        "policy 'mine': ",
        lambda given: (LOSS, {"participation": policy_of(**given)}),
    ),
    "clock": (
        BROKEN_CLOCKS,
        "clock 'mine': ",
        lambda given: (LOSS, {"clock": clock_of(**given)}),
    ),
}


# Algorithms that keep the contract.


class Odd(NamedTuple):
    """Values that training does not produce: a key, a flag, a short integer, an empty tuple."""

    key: jax.Array
    flag: jax.Array
    short: jax.Array
    nothing: tuple[()] = ()


def odd(key):
    return Odd(key, jnp.bool_(True), jnp.int8(-3))


HONEST = {
    "numbers_of_python": {
        "init": lambda key, data: {"w": 0.0, "round": 0, "odd": True},
        **in_round(
            server=lambda key, server, mean, context: server | {"w": 1.0, "round": 1}
        ),
        "metrics": lambda server, data: {"w": 1.0, "three": 3, "odd": True},
        "evaluations": {
            "w": lambda key, server, state, value: (
                lambda test: server["w"].astype(test.dtype)
            )
        },
    },
    "numbers_in_client_states": {
        "init_client": lambda key, server, value: (0, 1.0, False),
        **in_round(
            client=client_of(
                state=(1, 2.0, True), weight=1, info={"a": 1, "b": 2.0, "c": True}
            )
        ),
    },
    "keys_and_flags": {
        "init": lambda key, data: odd(key),
        "init_client": lambda key, server, value: odd(key),
        **in_round(
            lambda server, context: server,
            lambda key, server, state, value, context: ClientOutput(
                value, state._replace(key=key)
            ),
            lambda key, server, mean, context: server._replace(key=key),
        ),
    },
    "nothing": {
        "init": lambda key, data: (),
        **in_round(nothing, client_of(message=(), state=(), info={})),
        "evaluations": {"own": lambda key, server, state, value: lambda test: test},
    },
    "any_parameters": {
        "init": lambda *args: jnp.zeros(()),
        **in_round(
            client=functools.partial(
                lambda scale, *args, **more: ClientOutput(scale * args[3]), 2.0
            )
        ),
        "metrics": lambda server, data, scale=2.0: {"w": scale * server},
    },
    "weights_of_parts": in_round(
        client=client_of(message={"a": PARTS, "b": EACH}, weight={"a": True, "b": 2})
    ),
    "complex": {
        "init": lambda key, data: 1j,
        **in_round(client=client_of(message=jnp.ones(2, complex))),
    },
}
