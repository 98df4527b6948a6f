"""The types that everything else is made of: read this file first.

A simulation puts together parts that never know each other:

* a `FederatedAlgorithm` says what clients and server compute. Its client functions are written for ONE client: no
  client axis, no mask, no time. Only the engine vmaps them, averages their messages and keeps their states.
* a `ParticipationPolicy` says who takes part, looking only at how fast the clients are.
* a `Clock` says how long a unit of local work takes each client.
* the data answers `train_client(id)`, `test_client(id)` and `score(predict, test)`.

All of them are pure functions on arrays in a NamedTuple. Behaviour is closed over, arrays are arguments; whatever is
random takes a key, and keys are derived from what they are for (stream, round, client id, purpose), never from the
order of calls. So two methods that do equal work draw equal batches, and every method meets the same stragglers.

A `Method` is an algorithm together with a policy: SRPFL is `fedrep` with `doubling`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

Array = jax.Array
Key = jax.Array
PyTree = Any

ServerState = Any
ClientState = Any
Broadcast = Any
ClientData = Any
PolicyState = Any
ClockState = Any
Predict = Callable[[Array], Array]

GRADIENT_NORM, STAGE_COMPLETED = "global_grad_norm", "stage_completed"  # metrics, see `ParticipationPolicy`


class RoundContext(NamedTuple):
    """What a round is, for the functions of an algorithm."""

    round: Array  # () int32, from 0
    stage: Array  # () int32, from 0
    cohort_size: Array  # () int32, traced: how many clients take part
    num_clients: int  # in the whole federation
    work: Array  # () int32: units of local work of this client (1 for most policies; 0 in a padded slot of a chunk)


class ClientOutput(NamedTuple):
    """What one client hands to the engine.

    The engine averages `message` over the cohort, integers and flags as floats, weighted by `weight`: a scalar, or a
    pytree prefix of `message` where parts want different weights. `state` is written back as the client's new state;
    None leaves it as it was. `info` is a dict of scalars to look at: its mean over the cohort joins the metrics of the
    round and costs no communication.
    """

    message: PyTree
    state: ClientState | None = None
    weight: PyTree = 1.0
    info: Mapping[str, Array] = {}


class Uncharged(NamedTuple):
    """Wraps a part of a message or broadcast that the simulator looks at but that no real client would send.

    FedRep's clients keep their heads; the mean head is wanted all the same to start fine-tuning in an evaluation. What
    stands in `Uncharged` travels like the rest and is left out of `bytes_up` and `bytes_down`.
    """

    value: PyTree


ClientFunction = Callable[[Key, Broadcast, ClientState, ClientData, RoundContext], ClientOutput]
ServerFunction = Callable[[Key, ServerState, PyTree, RoundContext], ServerState]
BroadcastFunction = Callable[[ServerState, RoundContext], Broadcast]
Personalize = Callable[[Key, ServerState, ClientState, ClientData], Predict]


class Phase(NamedTuple):
    """One pass over clients, in the order of what happens: a download, local work, the server's answer to the mean."""

    broadcast: BroadcastFunction  # (server state, context) -> what every participant downloads; `nothing` for none
    client: ClientFunction  # (key, broadcast, client state, client data, context) -> ClientOutput
    server: ServerFunction  # (key, server state, mean message, context) -> server state


def nothing(server: ServerState, context: RoundContext) -> tuple[()]:
    """The broadcast of a phase without a download."""
    del server, context
    return ()


def no_metrics(server: ServerState, data: Any) -> dict[str, Array]:
    """The default of `FederatedAlgorithm.metrics`."""
    del server, data
    return {}


class FederatedAlgorithm(NamedTuple):
    """A federated method without its participation: pure functions, those of clients written for one client.

    Attributes:
        name: as in the registry, the file and the results.
        init: `(key, data) -> server state`.
        init_client: `(key, server state, client data) -> client state`; `()` where nothing is personal.
        round: download, local work, aggregation.
        evaluations: named ways to judge a client, the default one first. Each is `(key, server state, client state,
            TRAINING data of the client) -> predict` with `predict(x) -> outputs`; the test data stays with the engine.
        finish: a second pass over the same cohort after aggregation, with a broadcast of the new server state
            (FedGATE's tracking variables, the model that FedBuff hands out).
        prepare: one pass over ALL clients before the first round; its time is not charged (method of moments).
        gradient: a client function whose message is the local gradient at the model that `round` broadcasts, for
            policies that need the norm of the mean gradient. It is the model that the next round starts from, so its
            download is not charged twice.
        metrics: `(server state, data) -> dict of scalars`, recorded every round, so cheap.
        sends: shapes (`jax.ShapeDtypeStruct`) of what a client really sends in a round, for algorithms whose message is
            an exact short cut to the mean; None: the message.
        communicates: `(server state before the round, context) -> () bool`, for methods with silent rounds (L2GD); None
            means always, except where no message and no broadcast has a charged byte (Local-only).
        options: what made it, by name, for the record of a run (`srp.recorded` writes it); None: unknown.
    """

    name: str
    init: Callable[[Key, Any], ServerState]
    init_client: Callable[[Key, ServerState, ClientData], ClientState]
    round: Phase
    evaluations: Mapping[str, Personalize]
    finish: Phase | None = None
    prepare: Phase | None = None
    gradient: ClientFunction | None = None
    metrics: Callable[[ServerState, Any], dict[str, Array]] = no_metrics
    sends: PyTree = None
    communicates: Callable[[ServerState, RoundContext], Array] | None = None
    options: Mapping[str, Any] | None = None


class ClientTimes(NamedTuple):
    """Time each client needs for one unit of local work, in time units, (num_clients,) float."""

    expected: Array  # what is known beforehand
    realised: Array  # what this round really takes
    communication: Array | None = None  # () float, a part of both that more units of work do not take again


class Cohort(NamedTuple):
    """Who takes part: the first `size` entries of `client_ids`, fastest first. The pool is static, the size traced.

    A round lasts `duration`, without communication; None: as long as its slowest participant's work.
    """

    client_ids: Array  # (pool,) int32
    size: Array  # () int32, 1 <= size <= pool
    work: Array  # (pool,) int32: units of local work, aligned with client_ids
    stage: Array  # () int32
    duration: Array | None = None  # () float, time units


class RoundInfo(NamedTuple):
    """What a round was, for policies and for the history."""

    round: Array  # () int32, from 0
    stage: Array  # () int32
    cohort_size: Array  # () int32
    compute_time: Array  # () float: how long the round lasts, see `Cohort`
    communicated: Array  # () bool
    global_grad_norm: Array  # () float: norm of the cohort's mean gradient at the new model; nan when not asked for
    finite: Array  # () bool: the new server state has neither nan nor inf
    metrics: Mapping[str, Array]


class ParticipationPolicy(NamedTuple):
    """Who takes part in a round, decided from times alone.

    `select` gets a key of this round and may remember whom it picked; `update` sees the finished round and is where
    stages advance. Both return a state like the one that `init` made. A policy with `needs_global_gradient` gets
    `RoundInfo.global_grad_norm`, at the price of one more gradient per participant; a metric of the history too.
    `metrics` are recorded in every round, of the state that `update` made; `stage_completed` among them says whether
    the criterion that ends the stage held (`History.stages`). The rounds of an `asynchronous` policy overlap, so that
    no communication cost can be added to them afterwards. `options` are as in `FederatedAlgorithm`.
    """

    name: str
    init: Callable[[Key, int], PolicyState]  # (key, num_clients)
    select: Callable[[Key, PolicyState, ClientTimes], tuple[Cohort, PolicyState]]
    update: Callable[[PolicyState, RoundInfo], PolicyState]
    needs_global_gradient: bool = False
    asynchronous: bool = False
    options: Mapping[str, Any] | None = None
    metrics: Callable[[PolicyState], dict[str, Array]] = lambda state: {}


class Clock(NamedTuple):
    """How long a unit of local work takes every client, drawn in-graph once a round; `options` as in the others."""

    name: str
    init: Callable[[Key, int], ClockState]  # (key, num_clients)
    sample: Callable[[Key, ClockState], tuple[ClientTimes, ClockState]]
    options: Mapping[str, Any] | None = None


class Method(NamedTuple):
    """An algorithm with its participation: what a curve of a figure stands for."""

    name: str
    algorithm: FederatedAlgorithm
    participation: ParticipationPolicy
    options: Mapping[str, Any] | None = None  # every hyper-parameter by name; `srp.methods.get` fills it, None: unknown


class FederatedSource(Protocol):
    """What the engine asks of data: `FederatedData`, a `LinearTask`, or a class of your own that is a pytree of arrays.

    `train_client` and `test_client` are called with a traced () int32 id and return what client functions and `score`
    take as one client's data. `score` returns the sum of a client's scores and how many scores it sums. Scores are
    accuracies; a source of errors says so with attributes `score_name = "squared error"`, `smaller_is_better = True`.
    `srp.methods.get` shapes models by `example_shape` and `num_classes` (outputs of a model); results say `name`.
    """

    @property
    def num_clients(self) -> int:
        """How many clients there are in all."""
        ...

    def train_client(self, client_id: Array) -> ClientData:
        """What one client trains on."""
        ...

    def test_client(self, client_id: Array) -> ClientData:
        """What one client is judged on."""
        ...

    def score(self, predict: Predict, test: ClientData) -> tuple[Array, Array]:
        """Sum of scores, number of scores."""
        ...


class Examples(NamedTuple):
    """One client's labelled examples; rows from `count` on are padding and must not matter."""

    x: Array  # (max_examples, ...) inputs as the model takes them
    y: Array  # (max_examples,) int32 labels, or (max_examples, ...) what the model's loss takes
    count: Array  # () int32  # pyright: ignore[reportIncompatibleMethodOverride]


def named_key(key: Key, purpose: str) -> Key:
    """The key of one purpose: folds in a hash of its name that is the same in every process and version."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))
