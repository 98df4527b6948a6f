"""Helpers of the tests of algorithms and engine: tiny federations, a scripted policy, and a run with visible state."""

import contextlib
import dataclasses
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.base import (
    Charges,
    Clock,
    Cohort,
    FederatedAlgorithm,
    ParticipationPolicy,
    Phase,
)
from fedjax_srp.driver import record
from fedjax_srp.driver.prepare import Prepared, Request, prepare
from fedjax_srp.driver.programs import program
from fedjax_srp.driver.settings import Settings
from fedjax_srp.parts.options import build
from fedjax_srp.rounds.sharding import lay_out

KEY = jax.random.key(7)
NUM_FEATURES, NUM_CLASSES = 6, 4


class Client(NamedTuple):
    """One client's examples in NumPy, without padding."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def clients_of(counts, test_counts, seed=0, dtype=np.float32):
    """Clients of these sizes: inputs around a centre per class, labels of a rule that differs between clients."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))

    def examples(client, count):
        kind = rng.integers(0, NUM_CLASSES, count)
        x = centres[kind] + 0.7 * rng.normal(size=(count, NUM_FEATURES))
        return x.astype(dtype), ((kind + client % 2) % NUM_CLASSES).astype(np.int32)

    sizes = zip(counts, test_counts, strict=True)
    return [
        Client(*examples(i, count), *examples(i, tests))
        for i, (count, tests) in enumerate(sizes)
    ]


def federation(clients):
    """The clients as `FederatedData`."""

    def deal(name):
        ends = np.cumsum([len(getattr(c, name)) for c in clients])
        return np.split(np.arange(ends[-1]), ends[:-1])

    arrays = (
        np.concatenate([getattr(c, name) for c in clients]) for name in Client._fields
    )
    indices = {"train_indices": deal("y"), "test_indices": deal("y_test")}
    return srp.data.from_arrays(*arrays, **indices, num_classes=NUM_CLASSES)


def model(cut="out", hidden=(5, 4), dtype=jnp.float32):
    """An MLP with a handful of weights."""
    return srp.models.MLP(
        (NUM_FEATURES,), NUM_CLASSES, hidden=hidden, cut=cut, dtype=dtype
    )


def small(name, **fields):
    """An algorithm of `srp.algorithms` with a smaller MLP and few steps."""
    training = srp.Training(srp.SGD(0.1), batch_size=3)
    return getattr(srp.algorithms, name)(model(hidden=(3,)), training, **fields)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Numbers:
    """Federation with one number for each client; a score is `predict(number)`."""

    values: jax.Array  # (num_clients,) float
    score_name = "number"  # no field

    @property
    def num_clients(self):
        return self.values.shape[0]

    def train_client(self, client_id):
        return self.values[client_id]

    def test_client(self, client_id):
        return self.values[client_id]

    def score(self, predict, test):
        return predict(test), jnp.ones((), self.values.dtype)


def numbers(*values):
    return Numbers(jnp.asarray(values, dtype=float))


def whole_server(server, context):
    """Broadcast of the server's unchanged state."""
    return server


def _made(base, name, given, fields=None):
    """Instance of a new subclass of `base`: functions become static methods, everything else class attributes."""
    for attribute in given:
        assert hasattr(base, attribute), f"{base.__name__} has no {attribute}"
    in_class = {
        n: staticmethod(v) if callable(v) and not isinstance(v, type) else v
        for n, v in given.items()
    }
    return srp.part(type(f"Made{base.__name__}", (base,), {"name": name} | in_class))(
        **fields or {}
    )


def made_algorithm(name="made", *, finish=None, prepare=None, **functions):
    """An algorithm of a few functions, without a class.

    Args:
        name: of the algorithm.
        finish: broadcast, client and server of a second phase of the round.
        prepare: those of a phase of the start.
        **functions: without `self`; evaluations by name and the like are attributes.
    """
    if finish is not None:
        first = Phase(
            "round", *(functions[name] for name in ("broadcast", "client", "server"))
        )
        functions["phases"] = (first, Phase("finish", *finish))
    if prepare is not None:
        functions["start_phases"] = (Phase("prepare", *prepare),)
    return _made(FederatedAlgorithm, name, _with_charges(functions))


def _with_charges(given):
    """Put the members of `Charges` among given attributes together."""
    charges = {name: given[name] for name in Charges._fields if name in given}
    others = {name: value for name, value in given.items() if name not in charges}
    return others | ({"charges": Charges(**charges)} if charges else {})


def made_policy(
    name,
    init,
    select,
    update,
    needs_global_gradient=False,
    asynchronous=False,
    metrics=None,
):
    """A policy of three functions, without a class."""
    given = {
        "init": init,
        "select": select,
        "update": update,
        "asynchronous": asynchronous,
    }
    given |= {"needs_global_gradient": needs_global_gradient} | (
        {} if metrics is None else {"metrics": metrics}
    )
    return _made(ParticipationPolicy, name, given)


def made_clock(name, init, sample):
    """A clock of two functions, without a class."""
    return _made(Clock, name, {"init": init, "sample": sample})


def changed(part, **given):
    """Copy of a part with other values of its fields, and with methods or attributes replaced in a new subclass.

    Functions come without `self`. What calls the methods of `part` has its floats as constants.
    """
    given = _with_charges(given)
    of_fields = {
        field.name: getattr(part, field.name) for field in dataclasses.fields(part)
    }
    in_class = {name: value for name, value in given.items() if name not in of_fields}
    new_fields = {name: given.get(name, value) for name, value in of_fields.items()}
    return _made(type(part), in_class.get("name", type(part).name), in_class, new_fields)


def built(cls, *args, **options):
    """Instance of `cls`; options have their short names, such as `epochs` for `training.epochs`."""
    return build(cls, options, *args)


ALGORITHMS = {
    cls.name: cls
    for cls in (getattr(srp.algorithms, name) for name in srp.algorithms.__all__)
}


def algorithm_of(client, **fields):
    """Small algorithm: its server keeps the mean message, its model is one number."""
    given = {
        "name": "few_lines",
        "init": lambda key, data: jnp.zeros(()),
        "init_client": lambda key, server, value: (),
        "broadcast": whole_server,
        "client": client,
        "server": lambda key, server, mean, context: mean,
        "evaluations": {"value": lambda key, server, state, value: lambda test: test},
    }
    return made_algorithm(**given | fields)


class Script(NamedTuple):
    """Participants, round by round: the arguments of `scripted`, which a test may edit between rounds."""

    ids: jax.Array  # (rounds, pool) int32
    size: jax.Array  # (rounds,) int32
    work: jax.Array  # (rounds, pool) int32
    stage: jax.Array  # (rounds,) int32
    round: jax.Array  # () int32


def script(ids, size=None, work=None, stage=None, round=0):
    """The state of `scripted`; sizes default to the pool, work to 1 and stages to 0."""
    ids = jnp.asarray(ids, jnp.int32)
    size = np.full(len(ids), ids.shape[1]) if size is None else size
    work = (
        np.ones(ids.shape)
        if work is None
        else jnp.broadcast_to(jnp.asarray(work), ids.shape)
    )
    stage = np.zeros(len(ids)) if stage is None else stage
    return Script(*(jnp.asarray(a, jnp.int32) for a in (ids, size, work, stage, round)))


@srp.part
class Scripted(ParticipationPolicy):
    """Policy of `scripted`."""

    ids: np.ndarray
    size: np.ndarray
    work: np.ndarray
    stage: np.ndarray
    asks_for_gradient: bool = False

    @property
    def needs_global_gradient(self):
        return self.asks_for_gradient

    def init(self, key, num_clients):
        return script(self.ids, self.size, self.work, self.stage)

    def select(self, key, state, times):
        row = jnp.minimum(state.round, state.size.shape[0] - 1)
        return Cohort(
            state.ids[row], state.size[row], state.work[row], state.stage[row]
        ), state

    def update(self, state, info):
        return state._replace(round=state.round + 1)


def scripted(*args, needs_global_gradient=False, **kwargs):
    """A policy that ignores times and follows its script, which is its state: one program serves many scripts."""
    return Scripted(*map(np.asarray, script(*args, **kwargs)[:4]), needs_global_gradient)


CLOCK = srp.clocks.Fixed(srp.clocks.Exponential(1.0))
TRACED = "/jax/core/compile/jaxpr_trace_duration"  # an event of JAX


def to_host(tree):
    """A NumPy copy of every array; keys are copied as keys."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.tree.map(
        lambda leaf: jnp.copy(leaf) if is_key(leaf) else np.array(leaf), tree
    )


class Run:
    """Compiled rounds of `simulate`, without its work on the host; states can be read and replaced."""

    def __init__(
        self,
        algorithm,
        data,
        policy,
        clock=CLOCK,
        devices=1,
        chunk_size=None,
        evaluations=(),
        key=KEY,
        state=None,
        large_chunk=0,
    ):
        self.layout = lay_out(devices, chunk_size, data.num_clients)._replace(
            large_chunk=large_chunk
        )
        names = tuple(algorithm.evaluations) if evaluations == "all" else evaluations
        self.program = program(algorithm, policy, clock, names, self.layout)
        self.root = jax.device_put(key, self.layout.sharding())
        self.feed(data)
        if state is None:
            start = self.program.start(self.root, self.data)
            self.state, self.client_time = start.state, np.asarray(start.client_time)
        else:
            self.place(state)

    def feed(self, data):
        """Continue with other data of the same shapes."""
        self.data = jax.device_put(data, self.layout.sharding())
        return self

    def place(self, state):
        """Continue from a state on the host, of a run on any devices."""
        missing = self.layout.owned * self.layout.num_devices - self.layout.num_clients

        def by_client(leaf):
            leaf = np.asarray(leaf)[: self.layout.num_clients]
            return self.layout.by_owner(
                np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])
            )

        clients = jax.tree.map(by_client, state.clients)
        replicated = jax.device_put(
            to_host(state._replace(clients=())), self.layout.sharding()
        )
        self.state = replicated._replace(
            clients=jax.device_put(clients, self.layout.sharding(by_client=True))
        )
        return self

    def host_state(self):
        """A copy of the state on the host; client states without the padding of the last device."""
        state = to_host(self.state)
        in_order = lambda leaf: self.layout.by_id(leaf)[: self.layout.num_clients]
        return state._replace(clients=jax.tree.map(in_order, state.clients))

    def rounds(self, length=1):
        """Run rounds and the evaluation after them; return their `Segment` on the host."""
        self.state, segment = self.program.segment(
            length, self.state, self.root, self.data
        )
        return jax.device_get(segment)


def steps(run, number):
    """Run `number` rounds one by one; return the host's state after each."""
    states = []
    for _ in range(number):
        run.rounds()
        states.append(run.host_state())
    return states


def assert_close(actual: Any, desired: Any, rtol: float):
    """Check every leaf, relative to its largest entry; dtypes and structures must be equal."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for (path, a), d in zip(
        jax.tree.leaves_with_path(actual), jax.tree.leaves(desired), strict=True
    ):
        a, d = np.asarray(a), np.asarray(d)
        assert a.dtype == d.dtype, jax.tree_util.keystr(path)
        scale = np.abs(d).max(initial=0.0) if np.issubdtype(d.dtype, np.floating) else 0
        np.testing.assert_allclose(
            a, d, rtol=0, atol=rtol * scale, err_msg=jax.tree_util.keystr(path)
        )


def assert_same_bits(actual: Any, desired: Any):
    """Check every leaf bit for bit: -0.0 is not 0.0, and a nan equals itself only with its payload."""
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    for (path, a), d in zip(
        jax.tree.leaves_with_path(actual), jax.tree.leaves(desired), strict=True
    ):
        a, d = np.asarray(a), np.asarray(d)
        assert a.dtype == d.dtype, jax.tree_util.keystr(path)
        assert a.shape == d.shape, jax.tree_util.keystr(path)
        assert a.tobytes() == d.tobytes(), (
            f"bits differ in {jax.tree_util.keystr(path)}: {a} and {d}"
        )


def prepared(
    algorithm,
    data,
    participation=None,
    clock=None,
    num_seeds=None,
    values=None,
    **settings,
) -> Prepared:
    """Prepare a run with these settings."""
    chosen = Settings(**settings)
    request = Request(algorithm, data, participation, clock, chosen)
    return prepare(request._replace(num_seeds=num_seeds, values=values or {}))


@contextlib.contextmanager
def traced(*names):
    """Yield the list of programs that are traced in the block, only those with these names if some are given.

    Without those that are traced for a record alone.
    """
    names = names or ("start", "rounds", "evaluation", "scores", "epoch scores")
    found = []

    def note(event, duration_secs, **of_event):
        if event == TRACED and of_event["fun_name"] in names:
            found.append(of_event["fun_name"])

    def traced_for_record(run, trace=record._trace):
        before = len(found)
        hashes = trace(run)
        del found[before:]
        return hashes

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with mock.patch.object(record, "_trace", traced_for_record):
            yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def executables(program):
    """Return name -> number of compiled programs, one for each kind of arguments, of the functions that were used."""
    return {
        function.name: program._jitted(function)._cache_size()
        for function in program.compiled
    }


def simulate(algorithm, data, num_rounds=2, **options):
    """`srp.simulate` with the tests' key, without progress bar and on one device."""
    return srp.simulate(
        algorithm,
        data,
        num_rounds=num_rounds,
        **{"key": KEY, "progress": False, "devices": 1} | options,
    )


def refusal(function, *args, **options):
    """Message of the ValueError that the call raises; it must have one line."""
    with refused(r"\w") as caught:
        function(*args, **options)
    return str(caught.value)


@contextlib.contextmanager
def refused(match):
    """Check that the block raises a ValueError of one line that matches."""
    with pytest.raises(ValueError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
