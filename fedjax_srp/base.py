"""The types of the package: read this file first.

A simulation combines independent parts:

* a `FederatedAlgorithm` defines what clients and server compute. Its client functions are written for ONE client: no
  client axis, no mask, no time. Only the engine vmaps them, averages their messages and keeps their states.
* a `ParticipationPolicy` selects the participants, from the clients' times and reports.
* a `Clock` gives the time that a unit of local work takes each client.
* the data have `train_client(id)`, `test_client(id)` and `score(predict, test)`.

The first three are parts (`srp.part`): frozen dataclasses whose fields are the hyper-parameters and whose methods are
pure functions of arrays. Random functions take a key, derived from its purpose (stream, round, client id, name), never
from the order of calls. So two methods that do the same work draw the same batches, and every method has the same
stragglers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp

from fedjax_srp.parts.part import part, undefined

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
Personalize = Callable[[Key, ServerState, ClientState, ClientData], Predict]

GRADIENT_NORM, STAGE_COMPLETED = (
    "global_grad_norm",
    "stage_completed",
)  # metrics, see `ParticipationPolicy`
TRAINING_LOSS = "training_loss"  # a metric of runs that record it, and a report
NUM_EXAMPLES = "num_examples"  # a report, see `ParticipationPolicy`
WASTED_TIME = "wasted_time"  # a metric, see `Cohort.asked`
MESSAGE_SHARE = "message_share"  # an info: the share of `bytes_up` and `bytes_down` that a client sends and receives


class RoundContext(NamedTuple):
    """The facts of a round that an algorithm may use."""

    round: Array  # () int32, from 0
    stage: Array  # () int32, from 0
    cohort_size: Array  # () int32, traced: number of participants
    num_clients: int  # in the whole federation
    work: Array  # () int32: units of local work of this client (1 for most policies; 0 in a padded slot of a chunk)
    records_loss: bool = False  # True if the run records the training loss


class TrainingLoss(NamedTuple):
    """The loss of a client's local training, measured on the batch of each step before the step."""

    mean: Array  # () float, over the steps
    steps: Array  # () int32: their number; clients without steps are ignored


class ClientOutput(NamedTuple):
    """The result of one client's local work.

    The engine averages `message` over the cohort, integers and flags as floats, weighted by `weight`: a scalar, or a
    pytree prefix of `message` where parts have different weights. `state` is written back as the client's new state;
    None leaves it unchanged. `info` is a dict of scalars to record: its mean over the cohort joins the metrics of the
    round and costs no communication. `loss` is that of `local_sgd`, for runs that record it.
    """

    message: PyTree
    state: ClientState | None = None
    weight: PyTree = 1.0
    info: Mapping[str, Array] = {}
    loss: TrainingLoss | None = None


class Uncharged(NamedTuple):
    """Wrapper of a part of a message or broadcast that `bytes_up` and `bytes_down` leave out: no real client sends it.

    FedRep's clients keep their heads, but evaluations start fine-tuning from the mean head.
    """

    value: PyTree


class Participants(NamedTuple):
    """The server's view of all participants of a round, see `FederatedAlgorithm.mix`."""

    shown: PyTree  # leaves (pool, ...): the shown state of each
    takes_part: Array  # (pool,) bool; ignore the other rows


class Phase(NamedTuple):
    """One pass over clients, in order: download, local work, the server's update from the mean."""

    broadcast: Callable[
        [ServerState, RoundContext], Broadcast
    ]  # to every participant; `nothing`: no download
    client: Callable[
        [Key, Broadcast, ClientState, ClientData, RoundContext], ClientOutput
    ]
    server: Callable[
        [Key, ServerState, PyTree, RoundContext], ServerState
    ]  # from the mean message
    mix: Callable[[Broadcast, PyTree, Participants, RoundContext], Broadcast] | None = (
        None  # to ONE participant
    )
    shown: Callable[[ClientState], PyTree] | None = (
        None  # what the server knows of a client's state, for `mix`
    )

    def answer(
        self,
        broadcast: Broadcast,
        state: ClientState,
        participants: Any,
        context: RoundContext,
    ) -> Broadcast:
        """The download of one participant, given all of them."""
        if self.mix is None or self.shown is None:
            return broadcast
        return self.mix(broadcast, self.shown(state), participants, context)

    def download(
        self, server: ServerState, state: ClientState, context: RoundContext
    ) -> Broadcast:
        """The download of the only participant of a round."""
        shown = None if self.shown is None else self.shown(state)
        alone = Participants(
            jax.tree.map(lambda leaf: leaf[None], shown), jnp.ones(1, jnp.bool_)
        )
        return self.answer(self.broadcast(server, context), state, alone, context)


def nothing(server: ServerState, context: RoundContext) -> tuple[()]:
    """The broadcast of a phase without a download."""
    return ()


def evaluation(name: str | Callable[..., Any]) -> Any:
    """Make a method of an algorithm an evaluation, a named way to judge a client.

    The method is `(self, key, server state, client state, TRAINING data of the client) -> predict`, with
    `predict(x) -> outputs`; the engine keeps the test data. Its docstring names the model that is judged. Under
    `@evaluation` the evaluation has the name of the method, under `@evaluation("other")` another one.
    """
    if not isinstance(name, str):
        return evaluation(name.__name__)(name)

    def mark(method: Any) -> Any:
        method.evaluation = name
        return method

    return mark


@part
class FederatedAlgorithm:
    """A federated method without its participation: pure functions, the client functions for one client.

    A subclass is a part (`@srp.part`) whose fields are the hyper-parameters. It defines `init`, `client` and `server`,
    `init_client` if clients have a state, `broadcast` if they download something other than the server's state, and
    evaluations (`@srp.evaluation`): those of the class itself come first, in their order, then those of its bases; the
    first one is the default. The rest is optional.

    Attributes:
        name: in the registry and the results; by default the class name in lower case.
        finish: a second pass over the same cohort after aggregation, with a broadcast of the new server state
            (FedGATE's tracking variables, FedBuff's download).
        begins_jobs: `finish` begins jobs, so it runs for `Cohort.next_ids` if the policy has them (FedBuff).
        prepare: one pass over ALL clients before the first round; its time is not charged (method of moments).
        gradient: a client function whose message is the local gradient at the model of `broadcast`, for policies that
            need the norm of the mean gradient. The next round starts from this model, so its download is not charged
            twice.
        communicates: `(server state before the round, context) -> () bool`, for methods with rounds without
            communication (L2GD); None means always, except where nothing is charged (local training alone).
        mix: `(broadcast, the client's shown state, Participants, context) -> broadcast`, the download of ONE
            participant where it depends on the states of the others (FedAMP). `shown` takes the part of a client's
            state before the phase that the server knows: by default all of it. It costs no bytes, since an earlier
            message had it, but memory for all participants on every device.
        sends: shapes (`jax.ShapeDtypeStruct`) of a client's real upload in a round, from static fields, for algorithms
            whose message is an exact short cut to the mean; None: the message.
        costs_as: for algorithms that compute more than a real client (submodels under a mask): what a client really
            runs, for 1, 2, ... units of work a tuple of algorithms with one unit each, from static fields. Their mean
            operations and the messages of the last are charged; more units cost as much as the most listed; None: self.
    """

    name: ClassVar[str] = "algorithm"
    begins_jobs: ClassVar[bool] = False
    finish = cast(Any, None)  # a property that returns a `Phase`
    prepare = cast(Any, None)  # likewise
    gradient = cast(Any, None)  # a method like `client`
    communicates = cast(Any, None)  # a method
    mix = cast(Any, None)  # a method
    sends = cast(Any, None)  # a property
    costs_as = cast(Any, None)  # a property: a tuple of tuples

    def init(self, key: Key, data: Any, /) -> ServerState:
        """The server's state before the first round."""
        undefined(self.init)

    def init_client(
        self, key: Key, server: ServerState, data: ClientData, /
    ) -> ClientState:
        """The state of a client before its first round; `()` where nothing is personal."""
        return ()

    def broadcast(self, server: ServerState, context: RoundContext, /) -> Broadcast:
        """The download of every participant; by default the server's state."""
        return server

    def client(
        self,
        key: Key,
        broadcast: Broadcast,
        state: ClientState,
        data: ClientData,
        context: RoundContext,
        /,
    ) -> ClientOutput:
        """Local work of ONE client."""
        undefined(self.client)

    def server(
        self, key: Key, server: ServerState, mean: PyTree, context: RoundContext, /
    ) -> ServerState:
        """The new state of the server, from the weighted mean of the messages."""
        undefined(self.server)

    def shown(self, state: ClientState, /) -> PyTree:
        """The part of a client's state that the server knows, for `mix`."""
        return state

    def metrics(self, server: ServerState, data: Any, /) -> Mapping[str, Array]:
        """Cheap scalars of the server's state, recorded in every round."""
        return {}

    @property
    def round(self) -> Phase:
        """Download, local work, aggregation."""
        return Phase(
            self.broadcast,
            self.client,
            self.server,
            self.mix,
            None if self.mix is None else self.shown,
        )

    @property
    def evaluations(self) -> dict[str, Personalize]:
        """Named ways to judge a client, the default one first."""
        found: dict[str, Personalize] = {}
        for cls in type(self).__mro__:
            for attribute, value in vars(cls).items():
                if callable(value) and (name := getattr(value, "evaluation", None)):
                    found.setdefault(name, getattr(self, attribute))
        return found


class ClientTimes(NamedTuple):
    """Time each client needs for one unit of local work, in time units, (num_clients,) float.

    A clock under which clients come and go gives `available`, `stays` and `wait`, others none of them. A client that
    leaves before its work is done fails: it never reports. If none is available, the round begins when one is.
    """

    expected: Array  # known beforehand
    realised: Array  # the true times of this round
    communication: Array | None = (
        None  # () or (num_clients,) float: the part of both that does not grow with work
    )
    available: Array | None = (
        None  # (num_clients,) bool: clients that may be selected; None: all
    )
    stays: Array | None = (
        None  # (num_clients,) float: from the beginning of the round until the client leaves
    )
    wait: Array | None = (
        None  # () float: delay of the round's start; part of `RoundInfo.compute_time`
    )
    by_work: Array | None = (
        None  # (num_clients, units) float: `realised` for 1, 2, ... units, if they do not add up
    )


class Cohort(NamedTuple):
    """The participants: the first `size` entries of `client_ids`, fastest first. The pool is static, the size traced.

    A round lasts `duration`, without communication; None: as long as its slowest participant's work. The first `asked`
    entries work, but those from `size` on do not report; their time until the round ends is the metric `wasted_time`.
    If clients can be away or fail, `size` may be 0: then the round changes nothing, but takes time.
    """

    client_ids: Array  # (pool,) int32
    size: Array  # () int32, 1 <= size <= pool
    work: Array  # (pool,) int32: units of local work, aligned with client_ids
    stage: Array  # () int32
    duration: Array | None = None  # () float, time units
    asked: Array | None = None  # () int32, size <= asked <= pool; None: `size`
    next_ids: Array | None = (
        None  # (pool,) int32, clients that begin a job after this round; None: the participants
    )


class RoundInfo(NamedTuple):
    """The record of a finished round, for policies and for the history."""

    round: Array  # () int32, from 0
    stage: Array  # () int32
    cohort_size: Array  # () int32
    compute_time: Array  # () float: duration of the round, see `Cohort`
    communicated: Array  # () bool
    global_grad_norm: Array  # () float: norm of the cohort's mean gradient at the new model; nan if not computed
    finite: Array  # () bool: the new server state has no nan or inf
    metrics: Mapping[str, Array]
    reports: Mapping[
        str, Array
    ] = {}  # (num_clients,) float each, for `update` alone, see `ParticipationPolicy`


@part
class ParticipationPolicy:
    """A rule that selects the participants of a round by times and reports of earlier rounds.

    A subclass is a part whose fields are its numbers; it defines `select`, and `init` and `update` if it has a state,
    which keeps its structure.

    Attributes:
        needs: names of what participants report: `training_loss`, the mean loss of their local training (nan without a
            step); `num_examples`, of their training data; or an `info` of the algorithm. `update` gets each as
            `RoundInfo.reports[name]`, (num_clients,) float by client id, nan for non-participants.
        needs_global_gradient: compute `RoundInfo.global_grad_norm`, also a metric; one more gradient per participant.
        asynchronous: rounds overlap, so that no communication cost can be added to them afterwards.
    """

    name: ClassVar[str] = "policy"
    needs: ClassVar[tuple[str, ...]] = ()
    needs_global_gradient: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False

    def init(self, key: Key, num_clients: int, /) -> PolicyState:
        """The policy's state before the first round."""
        return ()

    def select(
        self, key: Key, state: PolicyState, times: ClientTimes, /
    ) -> tuple[Cohort, PolicyState]:
        """The cohort of a round, with the key of this round; the state may record the selection."""
        undefined(self.select)

    def runs_as(self, num_clients: int, /) -> ParticipationPolicy:
        """A policy with the same cohorts and metrics, to share its programs (subclasses do not); by default itself."""
        return self

    def update(self, state: PolicyState, info: RoundInfo, /) -> PolicyState:
        """The state after a finished round; stages advance here."""
        return state

    def metrics(self, state: PolicyState, /) -> Mapping[str, Array]:
        """Scalars to record, of the state after `update`; `stage_completed`: the criterion that ends the stage held."""
        return {}


class WorkCosts(NamedTuple):
    """Costs of a round for the clients, as the engine counts them for `Clock.fit`.

    If units of work do not add up (`FederatedAlgorithm.costs_as`), `operations` is (num_clients, units) and bytes are
    (units,), for all work of a client with 1, 2, ... units.
    """

    operations: Array  # (num_clients,) float: of a unit of local work
    once: (
        Array  # (num_clients,) float: operations that do not grow with the units of work
    )
    bytes_down: Array  # () float: received by a participant
    bytes_up: Array  # () float: sent by a participant


@part
class Clock:
    """The time that a unit of local work takes each client, and the clients available, drawn in-graph once a round.

    Attributes:
        needs_costs: the engine counts the costs of a round and uses the clock that `fit` returns. Its times include
            the messages, so that no communication cost can be added afterwards.
    """

    name: ClassVar[str] = "clock"
    needs_costs: ClassVar[bool] = False

    def fit(self, costs: WorkCosts, /) -> Clock:
        """The clock for rounds with these costs; called for clocks with `needs_costs` only."""
        undefined(self.fit)

    def init(self, key: Key, num_clients: int, /) -> ClockState:
        """The clock's state before the first round."""
        return ()

    def sample(
        self, key: Key, state: ClockState, now: Array, /
    ) -> tuple[ClientTimes, ClockState]:
        """The times of one round; `now` is the simulated time so far, () float, the sum of `RoundInfo.compute_time`."""
        undefined(self.sample)


@part
class Method:
    """An algorithm with its participation, one curve of a figure: SRPFL is `FedRep` with `Doubling`."""

    name: str
    algorithm: FederatedAlgorithm
    participation: ParticipationPolicy


class FederatedSource(Protocol):
    """The engine's interface to data: `FederatedData`, a `LinearTask`, or your own class, a pytree of arrays.

    Ids are traced, () int32. Scores are accuracies; a source of errors has the attributes `score_name = "squared
    error"`, `smaller_is_better = True`. `srp.methods.get` shapes models by `example_shape` and `num_classes` (outputs
    of a model); results have its `name`.
    """

    @property
    def num_clients(self) -> int:
        """Number of all clients."""
        ...

    def train_client(self, client_id: Array) -> ClientData:
        """Training data of one client, for client functions and evaluations."""
        ...

    def test_client(self, client_id: Array) -> ClientData:
        """Test data of one client, for `score`."""
        ...

    def score(self, predict: Predict, test: ClientData) -> tuple[Array, Array]:
        """Sum of a client's scores, and their number."""
        ...


class Examples(NamedTuple):
    """One client's labelled examples; ignore the rows from `count` on, which are padding."""

    x: Array  # (max_examples, ...) inputs as the model takes them
    y: Array  # (max_examples,) int32 labels, or (max_examples, ...) targets of the model's loss
    count: Array  # () int32  # pyright: ignore[reportIncompatibleMethodOverride]


def named_key(key: Key, purpose: str) -> Key:
    """The key of one purpose: folds in a hash of its name that is the same in every process and version."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))
