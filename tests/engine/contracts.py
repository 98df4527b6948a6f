"""Parts that break the contract of `base.py`, with words of the error of each, and algorithms that keep it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from reference.small import made_clock, made_policy, numbers, whole_server

from fedjax_srp.base import (
    ClientOutput,
    ClientTimes,
    Cohort,
    Exchange,
    Phase,
    Uncharged,
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
TWO, TEXT = {"a": jnp.zeros(3), "b": jnp.zeros(())}, lambda *args: "x"
BROKEN_ALGORITHMS = {
    # Return values of a client.
    "bare_message": (
        in_round(client=returning(jnp.zeros(2))),
        "round.client returned float32[2], it must return srp.",
    ),
    "client_tuple": (
        in_round(client=returning((EACH, ()))),
        "round.client returned (float32[4], ()), it must return",
    ),
    "text_inside": (
        in_round(client=client_of(message={"a": "x"})),
        f"round.client: {NO_TEXT}",
    ),
    "object_as_state": (
        in_round(client=client_of(state=object())),
        "round.client: returned a value of type <class 'o",
    ),
    "key_as_message": (
        in_round(client=lambda key, *rest: ClientOutput({"k": key})),
        "message {k: key<fry>[]} with th",
    ),
    "state_lacks": (
        with_state({"a": jnp.zeros(3)}),
        "{a: float32[3], b: float32[]} (they differ in ['b'])",
    ),
    "state_with_more": (
        with_state(TWO | {"c": jnp.zeros(())}),
        "{a: float32[3], b: float32[]} (they differ in ['c'])",
    ),
    "state_of_other_shape": (
        with_state(TWO | {"a": jnp.zeros(4)}),
        "the state {a: float32[4], b: float32[]}, it must",
    ),
    "state_of_other_dtype": (
        with_state(TWO | {"b": jnp.int32(0)}),
        "the state {a: float32[3], b: int32[]}, it must b",
    ),
    "state_where_none_was_made": (
        in_round(client=client_of(state=jnp.zeros(2))),
        "the state float32[2], it must be",
    ),
    "weight_of_other_parts": (
        in_round(client=client_of(message=PARTS, weight={"a": 1.0, "c": 1.0})),
        "the message {a: float32[2], b: float32[3]} with the weight {a: float32[], c: float32[]}: give numbers, with",
    ),
    "weight_none": (
        in_round(client=client_of(weight=None)),
        "the message float32[] with the weight None: give",
    ),
    "weight_by_entry": (
        in_round(client=client_of(message=PARTS, weight={"a": EACH, "b": 1.0})),
        "the weight {a: float32",
    ),
    "weight_key": (
        in_round(client=lambda key, *rest: ClientOutput(rest[2], weight=key)),
        "with the weight key<fry>[]",
    ),
    "info_list": (
        in_round(client=client_of(info=[1.0])),
        "round.client returned info: [float32[]], it must be a dict",
    ),
    "info_vector": (
        in_round(client=client_of(info={"loss": EACH})),
        "info: 'loss' = float32[4], it must be a",
    ),
    "info_key": (
        in_round(client=lambda key, *rest: ClientOutput(rest[2], info={"k": key})),
        "info: 'k' = key<fry>[]",
    ),
    "info_complex": (
        in_round(client=client_of(info={"a": 1j})),
        "info: 'a' = complex64[], it must be a",
    ),
    "info_as_metric": (
        {
            **in_round(client=client_of(info={"loss": 1.0})),
            "metrics": lambda server, data: {"loss": server},
        },
        "'loss' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_twice": (
        {
            **in_round(client=client_of(info={"a": 1.0})),
            "finish": (nothing, client_of(info={"a": 1.0}), KEEP),
        },
        "'a' is recorded twice in a round; rename one, of metrics or of info",
    ),
    "info_column": (
        in_round(client=client_of(info={"elapsed": 1.0})),
        "has 'elapsed', which is a column of history.c",
    ),
    "metrics_column": (
        {"metrics": lambda *args: {"round": 1}},
        "metrics or info has 'round', which is a column of hi",
    ),
    "metrics_run": (
        {"metrics": lambda *args: {"run": 1.0}},
        "has 'run', which is a column of logs (srp.watch)",
    ),
    "metrics_accuracy": (
        {"metrics": lambda *args: {"accuracy_value": 1.0}},
        "which is a column of history.csv",
    ),
    # Return values of the server and of other methods.
    "server_structure": (
        in_round(server=lambda *args: (args[1],)),
        "round.server returned (float32[],), it must be l",
    ),
    "server_shape": (
        in_round(server=lambda *args: EACH),
        "round.server returned float32[4], it must be like what ini",
    ),
    "mean_of_integers": (
        {
            "init": lambda key, data: jnp.int32(0),
            **in_round(
                client=client_of(message=jnp.int32(2)),
                server=lambda key, state, mean, context: mean,
            ),
        },
        "round.server returned float32[], it must be like what init makes: int32[]",
    ),
    "finish_state": (
        {"finish": (nothing, client_of(state=EACH), lambda *a: a[1])},
        "finish.client returned",
    ),
    "finish_server": (
        {"finish": (nothing, client_of(), lambda *a: EACH)},
        "finish.server returned",
    ),
    "prepare_server": (
        {"prepare": (nothing, client_of(), lambda *a: EACH)},
        "prepare.server returned",
    ),
    "prepare_client": (
        {"prepare": (nothing, returning(EACH), lambda *a: a[1])},
        "prepare.client returned",
    ),
    "evaluation_array": (
        judged(lambda key, server, state, value: value),
        "evaluation 'mine' returned float32[]",
    ),
    "predict_of_two": (judged(lambda *args: lambda x, y: x), "evaluation 'mine': "),
    "predict_shape": (
        judged(lambda *args: lambda x: EACH),
        "data.score returned (float32[4], float32[]), it must",
    ),
    "metrics_vector": (
        {"metrics": lambda server, data: {"w": EACH}},
        "metrics returned 'w' = float32[4], it must be ",
    ),
    "metrics_scalar": (
        {"metrics": lambda server, data: server},
        "metrics returned float32[], it must be a dict of",
    ),
    "communicates_float": (
        {"communicates": lambda server, context: server},
        "communicates returned float32[], it mus",
    ),
    "communicates_vector": (
        {"communicates": lambda server, context: EACH > 0},
        "communicates returned bool[4],",
    ),
    # Errors of Python and JAX come in one line, with the function and the line of code.
    "server_text": (
        in_round(server=TEXT),
        f"round.server: {NO_TEXT}, which is not a valid JAX type",
    ),
    "init_few": (
        {"init": FEW},
        "init: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "init_client_few": (
        {"init_client": FEW},
        "init_client: <lambda>() takes 1 positional argument but 3 were given",
    ),
    "client_few": (
        in_round(client=FEW),
        "round.client: <lambda>() takes 1 positional argument but 5 were given",
    ),
    "evaluation_few": (
        judged(FEW),
        "evaluation 'mine': <lambda>() takes 1 positional argument but 4 were given",
    ),
    "metrics_few": (
        {"metrics": FEW},
        "metrics: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "broadcast_none": (
        in_round(broadcast=None),
        "round.broadcast: 'NoneType' object is not callable",
    ),
    # Phases.
    "phases_tuple": (
        {"phases": ((nothing, FEW, FEW),)},
        "must be a tuple of srp.Phase(name, ...)",
    ),
    "phases_alone": ({"phases": PHASE}, "must be a tuple of srp.Phase(name, ...)"),
    "phases_none": (
        {"phases": ()},
        "phases=() has no pass over clients; give at least one srp.Phase",
    ),
    "phases_twice": (
        {"phases": (PHASE, PHASE)},
        "the name 'pass' of a phase is no text, or taken; choose another",
    ),
    "start_as_round": (
        {"start_phases": (PHASE._replace(name="round"),)},
        "the name 'round' of a phase is no text, or",
    ),
    "phase_gradient": (
        {"phases": (PHASE._replace(name="gradient"),)},
        "the name 'gradient' of a phase is no text, or",
    ),
    "phase_number": (
        {"phases": (PHASE._replace(name=3),)},
        "the name 3 of a phase is no text, or taken; choose an",
    ),
    "phase_over": (
        {"phases": (PHASE._replace(over="all"),)},
        "pass.over='all': give 'participants' or 'next'",
    ),
    "start_over": (
        {"start_phases": (PHASE._replace(over="next"),)},
        "pass.over='next': a start has all clients; le",
    ),
    "exchange_few": (
        {"phases": (PHASE._replace(exchange=Exchange(FEW, FEW)),)},
        "pass.exchange: <lambda>() takes 1",
    ),
    "charges_tuple": (
        {"charges": (None, None)},
        "charges=(None, None) must be srp.Charges(...)",
    ),
    "evaluation_number": (judged(3), "evaluation 'mine': 'int' object is not callable"),
    "shapes": (
        in_round(client=lambda *args: ClientOutput(jnp.zeros((2, 3)) @ EACH)),
        "round.client: dot_general requ",
    ),
    "unequal_lengths": (
        in_round(client=lambda *args: ClientOutput(jnp.broadcast_to(EACH, 3))),
        "round.client: Incompatible types for broadcasting: input type=float32[4] and requested type=float32[3] (contr",
    ),
    "if_on_an_array": (
        in_round(client=lambda *args: client_of()(*args) if args[3] > 0 else None),
        "boolean conversion",
    ),
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
    "bare_cohort": (
        {"select": lambda key, state, times: COHORT},
        "it must return (Cohort, state)",
    ),
    "swapped": (
        {"select": lambda key, state, times: (state, COHORT)},
        "returned (float32[2], Cohort(client_ids=int32",
    ),
    "float_ids": (picking(client_ids=jnp.zeros(2)), "(they differ in .client_ids)"),
    "short_ids": (
        picking(client_ids=ids(2, dtype=jnp.int8)),
        "Cohort(client_ids=int8[2], size=int32[], work=int32[2]",
    ),
    "ids_of_two_axes": (
        picking(client_ids=ids(2, 1)),
        "client_ids = int32[2, 1], it must be (pool,), at most 4",
    ),
    "one_id": (picking(client_ids=ids()), "client_ids = int32[], it must be (pool,)"),
    "no_ids": (picking(client_ids=ids(0)), "client_ids = int32[0], it must be (pool,)"),
    "ids_list": (
        picking(client_ids=[0, 1]),
        "client_ids = [int32[], int32[]], it must be (pool,)",
    ),
    "pool_too_large": (
        picking(client_ids=ids(5), work=ids(5)),
        "int32[5], it must be (pool,), at most 4",
    ),
    "size_vector": (picking(size=ids(1)), "(they differ in .size)"),
    "float_stage": (
        picking(stage=jnp.zeros(())),
        "a Cohort has: Cohort(client_ids=int32[2], size=int32[], work=int32",
    ),
    "work_of_other_length": (picking(work=ids(3)), "(they differ in .work)"),
    "text_as_stage": (
        picking(stage="x"),
        "select: returned a value of type <class 'str'>",
    ),
    "durations": (picking(duration=EACH), "(they differ in .duration)"),
    "state_shape": (
        {"select": lambda *args: (COHORT, EACH)},
        "select returned the state float32[4], it must be",
    ),
    "update_dtype": (
        {"update": lambda state, info: state > 0},
        "update returned bool[2], it must be like what init",
    ),
    "init_few": (
        {"init": FEW},
        "init: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "select_by_mask": (
        {"select": lambda key, state, times: COHORT.client_ids[times.realised[:2] > 1]},
        "select: Array boolean indices must be concrete; got bool[2] (contracts.py, line",
    ),
    "select_without_key": (
        {"select": lambda state, times: 0},
        "select: <lambda>() takes 2 positional arguments but 3",
    ),
    "larger_than_all": (
        {"select": lambda key, state, times: jax.lax.top_k(times.realised, 5)},
        "select: k argument to top_k must be no larger than size along axis",
    ),
    "update_few": (
        {"update": FEW},
        "update: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "metrics_vector": (
        {"metrics": lambda state: {"a": state}},
        "metrics returned 'a' = float32[2], it must be a r",
    ),
    "metrics_column": (
        {"metrics": lambda state: {"stage": state[0]}},
        "which is a column of history.csv already",
    ),
    "metrics_twice": (
        {"metrics": lambda state: {"loss": state[0]}},
        "'loss' is recorded twice in a round; rename",
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
    "only_times": (
        {"sample": lambda *args: ClientTimes(EACH, EACH)},
        "it must return (ClientTimes, state)",
    ),
    "plain_times": (
        {"sample": lambda key, state, now: ((EACH, EACH), state)},
        "it must return (ClientTimes, state)",
    ),
    "too_many": (times(jnp.ones(5)), "(they differ in .expected)"),
    "one_number": (
        times(1.0, 1.0),
        "sample returned ClientTimes(expected=float32[], realised=float32[], comm",
    ),
    "integers": (times(jnp.ones(4, int)), "(they differ in .expected)"),
    "communication_of_some": (
        times(communication=jnp.ones(3)),
        "(they differ in .communication)",
    ),
    "by_work_of_some": (times(by_work=jnp.ones((3, 2))), "(they differ in .by_work)"),
    "by_work_without_units": (times(by_work=EACH), "(they differ in .by_work)"),
    "unknown": (times(realised=None), "(they differ in .realised)"),
    "state_shape": (
        {"sample": lambda *args: (ClientTimes(EACH, EACH), EACH)},
        "the state float32[4], it",
    ),
    "init_few": (
        {"init": FEW},
        "init: <lambda>() takes 1 positional argument but 2 were given",
    ),
    "sample_few": (
        {"sample": FEW},
        "sample: <lambda>() takes 1 positional argument but 3 were given",
    ),
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
    "numbers_of_numpy": {
        "init": lambda key, data: np.zeros(3, np.float32),
        **in_round(
            lambda server, context: np.arange(3.0),
            lambda key, table, state, value, context: ClientOutput(table[context.round]),
            lambda key, server, mean, context: np.ones(3, np.float32),
        ),
    },
    "numbers_in_client_states": {
        "init_client": lambda key, server, value: (0, 1.0, False),
        **in_round(
            client=client_of(
                state=(1, 2.0, True), weight=1, info={"a": 1, "b": 2.0, "c": True}
            )
        ),
    },
    "broadcast_of_numbers": in_round(
        lambda server, context: (0.5, 2),
        lambda key, half, state, value, context: ClientOutput(
            half[0].astype(value.dtype) * value
        ),
    ),
    "weak_types": {
        "init": lambda key, data: jnp.asarray(0.0),
        **in_round(
            server=lambda key, server, mean, context: jnp.where(mean > 0, 1.0, 2.0)
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
    "none": {
        "init": lambda key, data: None,
        **in_round(lambda *args: None, client_of(state=None)),
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
    "uncharged": in_round(
        client=client_of(message=(Uncharged(EACH), EACH), weight=(Uncharged(1.0), 1.0))
    ),
    "flag_of_python": {"communicates": lambda server, context: True},
    "complex": {
        "init": lambda key, data: 1j,
        **in_round(client=client_of(message=jnp.ones(2, complex))),
    },
}
