"""The types that everything else is made of: read this file first.

A simulation puts together parts that never know each other:

* a `FederatedAlgorithm` says what clients and server compute. Its client functions are written for ONE client: no
  client axis, no mask, no time. Only the engine vmaps them, averages their messages and keeps their states.
* a `ParticipationPolicy` says who takes part, looking only at how fast the clients are.
* a `Clock` says how long a unit of local work takes each client.
* the data answers `train_client(id)`, `test_client(id)` and `score(predict, test)`.

The first three are parts (`srp.part`): frozen dataclasses whose fields are the hyper-parameters and whose methods are
pure functions of arrays. Whatever is random takes a key, and keys are derived from what they are for (stream, round,
client id, purpose), never from the order of calls. So two methods that do equal work draw equal batches, and every
method meets the same stragglers.

A `Method` is an algorithm together with a policy: SRPFL is `FedRep` with `Doubling`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp

from fedjax_srp.parts import part

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
TRAINING_LOSS = "training_loss"  # a metric, where a run records it, and a report
NUM_EXAMPLES = "num_examples"  # a report, see `ParticipationPolicy`
WASTED_TIME = "wasted_time"  # a metric, see `Cohort.asked`


class RoundContext(NamedTuple):
    """The facts of a round that an algorithm may use."""

    round: Array  # () int32, from 0
    stage: Array  # () int32, from 0
    cohort_size: Array  # () int32, traced: how many clients take part
    num_clients: int  # in the whole federation
    work: Array  # () int32: units of local work of this client (1 for most policies; 0 in a padded slot of a chunk)
    records_loss: bool = False  # whether the run records the training loss, so that local training computes it


class TrainingLoss(NamedTuple):
    """The loss of a client's local training: of each step's batch before the step, as training sees it."""

    mean: Array  # () float, over the steps
    steps: Array  # () int32: how many; without any the mean does not count


class ClientOutput(NamedTuple):
    """The result of one client's local work.

    The engine averages `message` over the cohort, integers and flags as floats, weighted by `weight`: a scalar, or a
    pytree prefix of `message` where parts want different weights. `state` is written back as the client's new state;
    None leaves it as it was. `info` is a dict of scalars to look at: its mean over the cohort joins the metrics of the
    round and costs no communication. `loss` is that of `local_sgd`, for runs that record it.
    """

    message: PyTree
    state: ClientState | None = None
    weight: PyTree = 1.0
    info: Mapping[str, Array] = {}
    loss: TrainingLoss | None = None


class Uncharged(NamedTuple):
    """Wraps a part of a message or broadcast that the simulator looks at but that no real client would send.

    FedRep's clients keep their heads; the mean head is wanted all the same to start fine-tuning in an evaluation. What
    stands in `Uncharged` travels like the rest and is left out of `bytes_up` and `bytes_down`.
    """

    value: PyTree


class Participants(NamedTuple):
    """The server's view of all who take part in a round, see `FederatedAlgorithm.mix`."""

    shown: PyTree  # leaves (pool, ...): what each of them shows
    takes_part: Array  # (pool,) bool; what stands in the other places must not matter


ClientFunction = Callable[[Key, Broadcast, ClientState, ClientData, RoundContext], ClientOutput]
ServerFunction = Callable[[Key, ServerState, PyTree, RoundContext], ServerState]
BroadcastFunction = Callable[[ServerState, RoundContext], Broadcast]
ShownFunction = Callable[[ClientState], PyTree]
MixFunction = Callable[[Broadcast, PyTree, Participants, RoundContext], Broadcast]
Personalize = Callable[[Key, ServerState, ClientState, ClientData], Predict]


class Phase(NamedTuple):
    """One pass over clients, in the order of what happens: a download, local work, the server's answer to the mean."""

    broadcast: BroadcastFunction  # (server state, context) -> what every participant downloads; `nothing` for none
    client: ClientFunction  # (key, broadcast, client state, client data, context) -> ClientOutput
    server: ServerFunction  # (key, server state, mean message, context) -> server state
    mix: MixFunction | None = None  # what ONE participant downloads instead of the broadcast
    shown: ShownFunction | None = None  # client state -> what the server has of it, for `mix`

    def answer(self, broadcast: Broadcast, state: ClientState, everybody: Any, context: RoundContext) -> Broadcast:
        """The download of one participant, among all."""
        if self.mix is None or self.shown is None:
            return broadcast
        return self.mix(broadcast, self.shown(state), everybody, context)

    def download(self, server: ServerState, state: ClientState, context: RoundContext) -> Broadcast:
        """The download of a participant that is alone in its round."""
        alone = None
        if self.shown is not None:
            alone = Participants(jax.tree.map(lambda leaf: leaf[None], self.shown(state)), jnp.ones(1, jnp.bool_))
        return self.answer(self.broadcast(server, context), state, alone, context)


def nothing(server: ServerState, context: RoundContext) -> tuple[()]:
    """The broadcast of a phase without a download."""
    del server, context
    return ()


def evaluation(name: str | Callable[..., Any]) -> Any:
    """Make a method of an algorithm an evaluation, a named way to judge a client.

    The method is `(self, key, server state, client state, TRAINING data of the client) -> predict`, with
    `predict(x) -> outputs`; the test data stays with the engine. Its docstring says what is judged.

    Args:
        name: of the evaluation; used as `@evaluation` without brackets, it is that of the method.
    """
    if isinstance(name, str):
        return lambda function: _named_evaluation(function, name)
    return _named_evaluation(name, name.__name__)


def _named_evaluation(function: Any, name: str) -> Any:
    function.evaluation = name
    return function


@part
class FederatedAlgorithm:
    """A federated method without its participation: pure functions, those of clients written for one client.

    A subclass is a part (`@srp.part`) whose fields are the hyper-parameters. It defines `init`, `client` and `server`,
    `init_client` where clients keep something and `broadcast` where they download something else than the server's
    state, and evaluations (`@srp.evaluation`): those of the class itself come first, in their order, then those of its
    bases; the first one is the default. The rest is optional.

    Attributes:
        name: as in the registry and the results; that of the class in small letters unless it says otherwise.
        finish: a second pass over the same cohort after aggregation, with a broadcast of the new server state
            (FedGATE's tracking variables, the model that FedBuff hands out).
        begins_jobs: `finish` hands out models, so it is for `Cohort.next_ids` where a policy has them (FedBuff).
        prepare: one pass over ALL clients before the first round; its time is not charged (method of moments).
        gradient: a client function whose message is the local gradient at the model that `broadcast` hands out, for
            policies that need the norm of the mean gradient. It is the model that the next round starts from, so its
            download is not charged twice.
        communicates: `(server state before the round, context) -> () bool`, for methods with silent rounds (L2GD); None
            means always, except where no message and no broadcast has a charged byte (local training alone).
        mix: `(broadcast, what the client shows, Participants, context) -> broadcast`, what ONE participant downloads
            where that depends on what the others have sent (FedAMP). What a client shows, `shown` takes from its state
            before the phase: by default all of it. That costs no bytes, having been part of an earlier message, and
            memory for all participants on every device.
        sends: shapes (`jax.ShapeDtypeStruct`) of what a client really sends in a round, for algorithms whose message is
            an exact short cut to the mean; None: the message.
    """

    name: ClassVar[str] = "algorithm"
    begins_jobs: ClassVar[bool] = False
    finish = cast(Any, None)  # a property that returns a `Phase`
    prepare = cast(Any, None)  # likewise
    gradient = cast(Any, None)  # a method like `client`
    communicates = cast(Any, None)  # a method
    mix = cast(Any, None)  # a method
    sends = cast(Any, None)  # a property

    def init(self, key: Key, data: Any, /) -> ServerState:
        """The server's state before the first round."""
        raise NotImplementedError(f"{type(self).__name__} defines no init(self, key, data)")

    def init_client(self, key: Key, server: ServerState, data: ClientData, /) -> ClientState:
        """The state of a client before its first round; `()` where nothing is personal."""
        del key, server, data
        return ()

    def broadcast(self, server: ServerState, context: RoundContext, /) -> Broadcast:
        """Return what every participant downloads; by default the server's state."""
        del context
        return server

    def client(
        self, key: Key, broadcast: Broadcast, state: ClientState, data: ClientData, context: RoundContext, /
    ) -> ClientOutput:
        """Local work of ONE client."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no client(self, key, broadcast, state, data, context)"
        )

    def server(self, key: Key, server: ServerState, mean: PyTree, context: RoundContext, /) -> ServerState:
        """The new state of the server, from the weighted mean of the messages."""
        raise NotImplementedError(f"{type(self).__name__} defines no server(self, key, server, mean, context)")

    def shown(self, state: ClientState, /) -> PyTree:
        """The part of a client's state that the server knows, for `mix`."""
        return state

    def metrics(self, server: ServerState, data: Any, /) -> Mapping[str, Array]:
        """Scalars of the server's state, recorded in every round, so cheap."""
        del server, data
        return {}

    @property
    def round(self) -> Phase:
        """Download, local work, aggregation."""
        return Phase(self.broadcast, self.client, self.server, self.mix, None if self.mix is None else self.shown)

    @property
    def evaluations(self) -> dict[str, Personalize]:
        """Named ways to judge a client, the default one first."""
        found: dict[str, Personalize] = {}
        for cls in type(self).__mro__:
            for attribute, value in vars(cls).items():
                name = getattr(value, "evaluation", None) if callable(value) else None
                if name is not None:
                    found.setdefault(name, getattr(self, attribute))
        return found


class ClientTimes(NamedTuple):
    """Time each client needs for one unit of local work, in time units, (num_clients,) float.

    Where clients come and go, a clock gives the last three too, else none of them. A client whose work takes longer
    than it stays fails: it never reports. Where nobody is available the round begins later, with who is there then.
    """

    expected: Array  # what is known beforehand
    realised: Array  # what this round really takes
    communication: Array | None = None  # () or (num_clients,) float: a part of both that more work does not take again
    available: Array | None = None  # (num_clients,) bool: who may be picked; None: everybody
    stays: Array | None = None  # (num_clients,) float: from the beginning of the round until the client leaves
    wait: Array | None = None  # () float: how much later the round begins; part of `RoundInfo.compute_time`


class Cohort(NamedTuple):
    """The participants: the first `size` entries of `client_ids`, fastest first. The pool is static, the size traced.

    A round lasts `duration`, without communication; None: as long as its slowest participant's work. The first `asked`
    entries work, and those behind `size` do so for nothing; what this costs is the metric `wasted_time`. Where clients
    may be away or fail, `size` may be 0: then the round changes nothing and takes its time.
    """

    client_ids: Array  # (pool,) int32
    size: Array  # () int32, 1 <= size <= pool
    work: Array  # (pool,) int32: units of local work, aligned with client_ids
    stage: Array  # () int32
    duration: Array | None = None  # () float, time units
    asked: Array | None = None  # () int32, size <= asked <= pool; None: nobody works for nothing
    next_ids: Array | None = None  # (pool,) int32, who begins a job behind this round; None: the participants


class RoundInfo(NamedTuple):
    """The record of a finished round, for policies and for the history."""

    round: Array  # () int32, from 0
    stage: Array  # () int32
    cohort_size: Array  # () int32
    compute_time: Array  # () float: how long the round lasts, see `Cohort`
    communicated: Array  # () bool
    global_grad_norm: Array  # () float: norm of the cohort's mean gradient at the new model; nan when not asked for
    finite: Array  # () bool: the new server state has neither nan nor inf
    metrics: Mapping[str, Array]
    reports: Mapping[str, Array] = {}  # (num_clients,) float each, for `update` alone, see `ParticipationPolicy`


@part
class ParticipationPolicy:
    """A rule that picks the participants of a round from times, and from what former participants reported.

    A subclass is a part whose fields are its numbers; it defines `select`, and `init` and `update` where it remembers
    something. All three return states of one kind.

    `update` learns a number of each participant by name, as far as `needs` asks for it: `RoundInfo.reports[name]` is
    (num_clients,) float, by client id, and nan for who did not take part. A name is `training_loss`, the mean loss of
    the client's local training (nan without a step); `num_examples`, of its training data; or one that the algorithm's
    clients return as `info`. Nobody sees test data.

    Attributes:
        name: as in the results; that of the class in small letters unless it says otherwise.
        needs: names of what participants report.
        needs_global_gradient: `RoundInfo.global_grad_norm` is computed, at the price of one more gradient per
            participant; a metric of the history too.
        asynchronous: rounds overlap, so that no communication cost can be added to them afterwards.
    """

    name: ClassVar[str] = "policy"
    needs: ClassVar[tuple[str, ...]] = ()
    needs_global_gradient: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False

    def init(self, key: Key, num_clients: int, /) -> PolicyState:
        """Return the policy's state before the first round."""
        del key, num_clients
        return ()

    def select(self, key: Key, state: PolicyState, times: ClientTimes, /) -> tuple[Cohort, PolicyState]:
        """The cohort of a round, with the key of this round; the state may remember whom it picked."""
        raise NotImplementedError(f"{type(self).__name__} defines no select(self, key, state, times)")

    def update(self, state: PolicyState, info: RoundInfo, /) -> PolicyState:
        """The state behind a finished round: where stages advance."""
        del info
        return state

    def metrics(self, state: PolicyState, /) -> Mapping[str, Array]:
        """Scalars that are recorded in every round, of the state that `update` made.

        `stage_completed` among them says whether the criterion that ends the stage held (`History.stages`).
        """
        del state
        return {}


class WorkCosts(NamedTuple):
    """What a round asks of the clients, as the engine counts it for `Clock.fit`."""

    operations: Array  # (num_clients,) float: those of a unit of local work
    once: Array  # (num_clients,) float: operations that more units of work do not take again
    bytes_down: Array  # () float: received by a participant
    bytes_up: Array  # () float: sent by a participant


@part
class Clock:
    """The time that a unit of local work takes every client, and who is there to do it, drawn in-graph once a round.

    Attributes:
        name: as in the results; that of the class in small letters unless it says otherwise.
        needs_costs: the engine counts what a round costs and goes on with what `fit` returns. Times then include the
            messages, so that no communication cost can be added to them afterwards.
    """

    name: ClassVar[str] = "clock"
    needs_costs: ClassVar[bool] = False

    def fit(self, costs: WorkCosts, /) -> Clock:
        """The clock for rounds that cost so much; asked of clocks with `needs_costs` alone."""
        raise NotImplementedError(f"{type(self).__name__} needs costs and defines no fit(self, costs)")

    def init(self, key: Key, num_clients: int, /) -> ClockState:
        """Return the clock's state before the first round."""
        del key, num_clients
        return ()

    def sample(self, key: Key, state: ClockState, now: Array, /) -> tuple[ClientTimes, ClockState]:
        """The times of one round; `now` is the simulated time so far, () float, the sum of `RoundInfo.compute_time`."""
        raise NotImplementedError(f"{type(self).__name__} defines no sample(self, key, state, now)")


@part
class Method:
    """An algorithm with its participation: what a curve of a figure stands for."""

    name: str
    algorithm: FederatedAlgorithm
    participation: ParticipationPolicy


class FederatedSource(Protocol):
    """Data as the engine needs it: `FederatedData`, a `LinearTask`, or a class of your own that is a pytree of arrays.

    `train_client` and `test_client` are called with a traced () int32 id and return what client functions and `score`
    take as one client's data. `score` returns the sum of a client's scores and how many scores it sums. Scores are
    accuracies; a source of errors says so with attributes `score_name = "squared error"`, `smaller_is_better = True`.
    `srp.methods.get` shapes models by `example_shape` and `num_classes` (outputs of a model); results say `name`.
    """

    @property
    def num_clients(self) -> int:
        """Number of clients in all."""
        ...

    def train_client(self, client_id: Array) -> ClientData:
        """Training data of one client."""
        ...

    def test_client(self, client_id: Array) -> ClientData:
        """Test data of one client."""
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
