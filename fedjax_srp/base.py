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

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_srp.parts.checks import KeyMark
from fedjax_srp.parts.part import part, undefined

Array = jax.Array
Key = Annotated[jax.Array, KeyMark()]
PyTree = Any  # containers of arrays, nested at will

# An algorithm chooses the structure of these; the engine only carries them from one function to the next.
ServerState = Any  # kept by the server from round to round
ClientState = Any  # kept for one client, from one of its participations to the next
Broadcast = Any  # what a participant downloads
ClientData = Any  # one client's data; `Examples` for labelled ones
PolicyState = Any
ClockState = Any

# A model for one client, as an evaluation returns it: inputs (batch, ...) -> outputs.
Predict = Callable[[Array], Array]
# An evaluation: the client's TRAINING data -> the model by which it is judged, see `evaluation`.
Personalize = Callable[[Key, ServerState, ClientState, ClientData], Predict]

JobsBy = Literal["client", "stage"]

GRADIENT_NORM = "global_grad_norm"  # a metric, see `ParticipationPolicy`
STAGE_COMPLETED = "stage_completed"  # a metric, see `ParticipationPolicy.metrics`
TRAINING_LOSS = "training_loss"  # a metric of runs that record it, and a report
NUM_EXAMPLES = "num_examples"  # a report, see `ParticipationPolicy`
CLIENT_GRADIENT_NORM = "grad_norm"  # a report, see `ParticipationPolicy`
WASTED_TIME = "wasted_time"  # a metric, see `Cohort.asked`
# An info: the share of `bytes_up` and `bytes_down` that a client sends and receives.
MESSAGE_SHARE = "message_share"


class RoundContext(NamedTuple):
    """The facts of a round that an algorithm may use."""

    round: Array  # () int32, from 0
    stage: Array  # () int32, from 0
    cohort_size: Array  # () int32, traced: number of participants
    num_clients: int  # in the whole federation
    # () int32: units of local work of this client (1 for most policies; 0 in a padded slot of a chunk)
    work: Array
    record_loss: bool = False  # True if the run records the training loss
    # () float: weight of this client's update, see `Cohort.importance`; None: 1
    importance: Array | None = None
    # () int32: index of this client in the federation, in a padded slot that of the first participant; None where there
    # is no client, in functions of the server
    client_id: Any = None


class TrainingLoss(NamedTuple):
    """The loss of a client's local training, measured on the batch of each step before the step."""

    mean: Array  # () float, over the steps
    steps: Array  # () int32: their number; clients without steps are ignored


class ClientOutput(NamedTuple):
    """The result of one client's local work.

    The engine averages `message` over the cohort, integers and flags as floats, weighted by `weight`: a scalar, or a
    pytree prefix of `message` where parts have different weights. A weight of shape (groups,) makes a mean by group:
    the server gets (groups, ...), 0 for a group without weight, and the client sends its part once. `state` is written
    back as the client's new state; None leaves it unchanged. `info` is a dict of scalars to record: its mean over the
    cohort joins the metrics of the round and costs no communication. `loss` is that of `local_sgd`, for runs that
    record it.
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


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["num_bytes"]
)
@dataclasses.dataclass(frozen=True)
class Packet:
    """Wrapper of a part of a message or broadcast whose code on the wire has `num_bytes`, not those of its arrays."""

    value: PyTree
    num_bytes: int


class Participants(NamedTuple):
    """The server's view of all participants of a round, see `Exchange`."""

    shown: PyTree  # leaves (pool, ...): the shown state of each
    takes_part: Array  # (pool,) bool; ignore the other rows
    client_ids: Array  # (pool,) int32


# ---- the functions of a round -------------------------------------------------------------------------------------

# The download of every participant, computed once per phase from the server's state.
BroadcastFunction = Callable[[ServerState, RoundContext], Broadcast]
# The work of ONE client: key, download, its state, its data -> message and new state. Only the engine vmaps it.
ClientFunction = Callable[
    [Key, Broadcast, ClientState, ClientData, RoundContext], ClientOutput
]
# The server's update: key, its state, the weighted mean of the messages -> its new state, of the same structure.
ServerFunction = Callable[[Key, ServerState, PyTree, RoundContext], ServerState]
# The part of a client's state that the server knows, from an earlier message.
ShownFunction = Callable[[ClientState], PyTree]
# The download of ONE participant: the phase's broadcast, its own shown state, those of all -> its download.
MixFunction = Callable[[Broadcast, PyTree, Participants, RoundContext], Broadcast]
# () bool, True if clients and server exchange messages in a round; from the server's state before it.
CommunicatesFunction = Callable[[ServerState, RoundContext], Array]


class Exchange(NamedTuple):
    """Downloads that depend on the states of the other participants.

    FedAMP's clients download a mixture of similar clients' models. What the server knows costs no bytes, since an
    earlier message had it, but memory for all participants on every device.
    """

    shown: ShownFunction
    mix: MixFunction


class Phase(NamedTuple):
    """One pass over clients: download, local work, the server's update from the mean.

    The passes of a round are those of `FederatedAlgorithm.phases`, one after the other.
    """

    name: str  # enters the keys of its clients and of the server, so another name draws other batches
    broadcast: BroadcastFunction  # `nothing` for a phase without a download
    client: ClientFunction
    server: ServerFunction  # `unchanged` for a phase that changes clients only
    exchange: Exchange | None = None  # None: every participant gets the broadcast
    # "next": those that begin a job, see `Cohort.next_ids`; before the first phase where there are `Cohort.jobs`.
    over: Literal["participants", "next"] = "participants"
    # A pass of the start whose time is charged, see `FederatedAlgorithm.start_phases`.
    charged: bool = False

    def download(
        self, server: ServerState, state: ClientState, context: RoundContext
    ) -> Broadcast:
        """The download of the only participant of a round, for its shape."""
        broadcast = self.broadcast(server, context._replace(client_id=None))
        if self.exchange is None:
            return broadcast
        shown = self.exchange.shown(state)
        of_all = jax.tree.map(lambda leaf: leaf[None], shown)
        ids = jnp.reshape(context.client_id, 1)
        alone = Participants(of_all, jnp.ones(1, jnp.bool_), ids)
        return self.exchange.mix(broadcast, shown, alone, context)


def nothing(server: ServerState, context: RoundContext) -> tuple[()]:
    """The broadcast of a phase without a download."""
    return ()


def unchanged(
    key: Key, server: ServerState, mean: PyTree, context: RoundContext
) -> ServerState:
    """The server's update in a phase that changes clients only."""
    return server


class Charges(NamedTuple):
    """The costs of a round, where they are not those of the phases. Shapes and algorithms follow from static fields.

    Bytes are those of broadcasts and messages, and operations those of the client functions, in every round; a method
    names here what differs for a real client.
    """

    # None: in every round, unless nothing is charged (local training).
    communicates: CommunicatesFunction | None = None
    # Shapes (`jax.ShapeDtypeStruct`) of a client's real upload in the first phase, where the message is an exact short
    # cut to the mean; None: the message.
    sends: PyTree = None
    # The cheaper algorithms that a real client runs, for methods that compute more (submodels under a mask). Entry
    # w - 1 stands for w units of work, the last one for more. It is a tuple of algorithms with one unit each: their
    # mean operations are charged, and the messages of the last. HeteroFL has its narrow models here, a client with two
    # units trains the second one: ((narrow,), (wide,)). A function, called where a clock asks for costs; None: the
    # algorithm itself.
    costs_as: Callable[[], tuple[tuple[FederatedAlgorithm, ...], ...]] | None = None


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

    A subclass is a part (`@srp.part`) whose fields are the hyper-parameters. The usual method defines

    * `init`, `client` and `server`,
    * `init_client` if clients have a state, `broadcast` if they download something other than the server's state,
    * evaluations (`@srp.evaluation`).

    The rest is for methods with more than one pass in a round (`phases`) or one before the first (`start_phases`), with
    a gradient for policies that ask for it (`gradient`), or with costs that the messages do not show (`charges`).

    The engine asks the instance, never its class: an algorithm around another one forwards what it does not change.

    Attributes:
        name: in the registry and the results; by default the class name in lower case.
        asynchronous: clients train on the model with which their job began, see `ParticipationPolicy.asynchronous`.
        jobs_by: that model is kept for each "client", or for each "stage" of an asynchronous policy.
        sends_changes: messages are updates, gradients or the like, and not new values of what clients downloaded.
    """

    name: ClassVar[str] = "algorithm"
    asynchronous: ClassVar[bool] = False
    jobs_by: ClassVar[JobsBy] = "client"
    sends_changes: ClassVar[bool] = False

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

    def metrics(self, server: ServerState, data: Any, /) -> Mapping[str, Array]:
        """Cheap scalars of the server's state, recorded in every round."""
        return {}

    def with_params(self, server: ServerState, params: PyTree, /) -> ServerState:
        """The server's state that begins with given parameters, from that of `init`: its field `params` is replaced.

        `simulate(start=)` asks for it. Override it where more of the state follows from the parameters.
        """
        return server._replace(params=params)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The passes of a round, in order; their names and number follow from static fields.

        A second pass is appended, `(*super().phases, Phase("finish", ...))`: FedGATE sends the mean direction to the
        clients whose mean it is. The first pass is local training: its loss is the one recorded, and policies get its
        reports alone. Later passes take no simulated time, except under a clock with `needs_costs`, which counts all.
        """
        return (Phase("round", self.broadcast, self.client, self.server),)

    @property
    def start_phases(self) -> tuple[Phase, ...]:
        """Passes over ALL clients before the first round: the method of moments.

        A pass with `Phase.charged` lasts as long as the slowest client takes for a unit of work, in a draw of the clock
        for this pass alone, and costs its messages: `History.start`. Others take no time. A run that begins from a
        given state (`simulate(start=)`) leaves them out.
        """
        return ()

    @property
    def gradient(self) -> ClientFunction | None:
        """A client function whose message is the local gradient at the model of `broadcast`; None if there is none.

        Policies that need the norm of the mean gradient ask for it. The next round starts from the same model, so its
        download is not charged twice.
        """
        return None

    @property
    def charges(self) -> Charges:
        """The costs of a round, where they are not those of its phases."""
        return Charges()

    @property
    def evaluations(self) -> dict[str, Personalize]:
        """Named ways to judge a client, the default one first.

        Methods under `@evaluation` are found here, those of the class itself first, in their order, then those of its
        bases.
        """
        by_name: dict[str, Personalize] = {}
        for cls in type(self).__mro__:
            of_class: list[str] = []
            for attribute, value in vars(cls).items():
                name = getattr(value, "evaluation", None)
                if name is None or not callable(value):
                    continue
                if name in of_class:
                    raise ValueError(
                        f"class {cls.__name__} has two evaluations {name!r}; rename one"
                    )
                of_class.append(name)
                by_name.setdefault(name, getattr(self, attribute))
        return by_name


# ---- time and participation ---------------------------------------------------------------------------------------


class ClientTimes(NamedTuple):
    """Time each client needs for one unit of local work, in time units, (num_clients,) float.

    A clock under which clients come and go gives `available`, `stays` and `wait`, others none of them. A client that
    leaves before its work is done fails: it never reports. If none is available, the round begins when one is.
    """

    expected: Array  # known beforehand
    realised: Array  # the true times of this round
    # () or (num_clients,) float: the part of both that does not grow with work
    communication: Array | None = None
    # (num_clients,) bool: clients that may be selected; None: all
    available: Array | None = None
    # (num_clients,) float: from the beginning of the round until the client leaves
    stays: Array | None = None
    # () float: delay of the round's start; part of `RoundInfo.compute_time`
    wait: Array | None = None
    # (num_clients, units) float: time of 1, 2, ... units, where w units do not take w times one
    by_work: Array | None = None

    def of_work(self, cohort: Cohort) -> Array:
        """Return the time of each client's work, (pool,) float: T_i * work.

        A clock's communication counts once.
        """
        if self.by_work is not None:
            column = jnp.clip(cohort.work - 1, 0, self.by_work.shape[1] - 1)
            return self.by_work[cohort.client_ids, column]
        work = cohort.work.astype(self.realised.dtype)
        durations = self.realised[cohort.client_ids] * work
        once = self.communication
        if once is not None:
            if once.ndim:
                once = once[cohort.client_ids]
            durations -= (work - 1) * once
        return durations


class Jobs(NamedTuple):
    """Jobs where rounds overlap: those that begin in a round, and those that end in vain.

    Where clients come and go a participant may have left since it delivered, and its job has the times of the round in
    which it began.
    """

    # (num_clients,) int32: the first `size` begin a job, with the server's model at the beginning of the round
    client_ids: Array
    size: Array  # () int32
    # () float: time worked in this round on jobs whose clients leave too early, the metric `wasted_time`; None: not
    # recorded
    wasted: Array | None = None


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
    # (pool,) int32, clients that begin a job after this round; None: the participants
    next_ids: Array | None = None
    # (pool,) float, aligned with client_ids: 1 / (n p_i), where n clients are drawn with probabilities p_i, as a weight
    # of updates for algorithms that use it; None: 1
    importance: Array | None = None
    # where rounds overlap: jobs that begin in this round, and none after it; required under clocks with availability
    jobs: Jobs | None = None


class RoundInfo(NamedTuple):
    """The record of a finished round, for policies and for the history."""

    round: Array  # () int32, from 0
    stage: Array  # () int32
    cohort_size: Array  # () int32
    compute_time: Array  # () float: duration of the round, see `Cohort`
    communicated: Array  # () bool
    # () float: norm of the cohort's mean gradient at the new model; nan if not computed
    global_grad_norm: Array
    finite: Array  # () bool: the new server state has no nan or inf
    metrics: Mapping[str, Array]
    # (num_clients,) float each, for `update` alone, see `ParticipationPolicy`
    reports: Mapping[str, Array] = {}


@part
class ParticipationPolicy:
    """A rule that selects the participants of a round by times and reports of earlier rounds.

    A subclass is a part whose fields are its numbers; it defines `select`, and `init` and `update` if it has a state,
    which keeps its structure.

    Attributes:
        needs: names of what participants report: `training_loss`, the mean loss of their local training (nan without a
            step); `num_examples`, of their training data; with `needs_global_gradient` `grad_norm`, the norm of their
            gradient at the new model; or an `info` of the algorithm's first pass. `update` gets each as
            `RoundInfo.reports[name]`, (num_clients,) float by client id, nan for non-participants.
        needs_global_gradient: compute `RoundInfo.global_grad_norm`, also a metric; one more gradient per participant.
        asynchronous: rounds overlap, so that no communication cost can be added to them afterwards.
        jobs_by: jobs that overlap are those of different clients, of different stages, or both.
    """

    remedy: ClassVar[str] = (
        "give srp.participation.Full() or another of srp.participation"
    )
    name: ClassVar[str] = "policy"
    needs: ClassVar[tuple[str, ...]] = ()
    needs_global_gradient: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    jobs_by: ClassVar[tuple[JobsBy, ...]] = ("client",)

    @property
    def max_work(self) -> int:
        """The most units of work of a client in a round, a bound for loops that must be static."""
        return 1

    def init(self, key: Key, num_clients: int, /) -> PolicyState:
        """The policy's state before the first round."""
        return ()

    def select(
        self, key: Key, state: PolicyState, times: ClientTimes, /
    ) -> tuple[Cohort, PolicyState]:
        """The cohort of a round, with the key of this round; the state may record the selection."""
        undefined(self.select)

    def runs_as(self, num_clients: int, /) -> ParticipationPolicy:
        """A policy with the same cohorts and metrics, whose compiled programs a run uses; by default itself.

        So FedRep and SRPFL are one program: `Full`, `Uniform` and `Doubling` run as one policy. A class that says so
        returns itself for its subclasses, which may have other cohorts.
        """
        return self

    def update(self, state: PolicyState, info: RoundInfo, /) -> PolicyState:
        """The state after a finished round; stages advance here."""
        return state

    def metrics(self, state: PolicyState, /) -> Mapping[str, Array]:
        """Scalars to record, of the state after `update`; `stage_completed`: the criterion that ends the stage held."""
        return {}


class WorkCosts(NamedTuple):
    """Costs of a round for the clients, as the engine counts them for `Clock.fit`.

    If units of work do not add up (`Charges.costs_as`), `operations` is (num_clients, units) and bytes are
    (units,), for all work of a client with 1, 2, ... units.
    """

    operations: Array  # (num_clients,) float: of a unit of local work
    once: Array  # (num_clients,) float: operations that do not grow with the work
    bytes_down: Array  # () float: received by a participant
    bytes_up: Array  # () float: sent by a participant
    # () float: operations of a gradient step on a batch of training; 0 if the algorithm has no `model` and `training`
    batch: Array | float = 0.0


@part
class Clock:
    """The time that a unit of local work takes each client, and the clients available, drawn in-graph once a round.

    Attributes:
        needs_costs: the engine counts the costs of a round and uses the clock that `fit` returns. Its times include
            the messages, so that no communication cost can be added afterwards.
    """

    remedy: ClassVar[str] = (
        "give e.g. srp.clocks.Fixed(srp.clocks.Exponential(1.0)) or your times: Fixed(srp.clocks.Constant(times))"
    )
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

    remedy: ClassVar[str] = (
        "give srp.methods.get(name, dataset=data) or one of srp.algorithms, called with a model"
    )

    name: str
    algorithm: FederatedAlgorithm
    participation: ParticipationPolicy


class FederatedSource(Protocol):
    """The engine's interface to data: `FederatedData`, a `LinearTask`, or your own class, a pytree of arrays.

    Ids are traced, () int32. These four members are required; `SourceDefaults` has the optional ones.
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


class SourceDefaults:
    """The optional members of data, and what holds for a class without them, see `member_of`.

    Attributes:
        name: of the data in results; None: the name of the class.
        options: arguments from which the data were made, for the record of a run; None if unknown.
        score_name: kind of the scores.
        smaller_is_better: scores are errors.
        example_shape: shape of one input, for `srp.methods.get`; None: that of the training examples.
        num_classes: outputs of a model, for `srp.methods.get`; None if unknown.
        offset: value of a black pixel, with which augmentation fills; None: 0.
        is_sharded: `train_client` has the clients of one device only.
        client_names: the name of each client, for tables; None if they have none.
        class_names: what each class was called before labels were numbered, for the record; None if they were numbers.
    """

    name: str | None = None
    options: Mapping[str, Any] | None = None
    score_name: str = "accuracy"
    smaller_is_better: bool = False
    example_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    offset: Any = None
    is_sharded: bool = False
    client_names: Sequence[str] | None = None
    class_names: Sequence[str] | None = None


def member_of(data: Any, name: str) -> Any:
    """An optional member of data, else its default: a user's class need not inherit anything."""
    return getattr(data, name, getattr(SourceDefaults, name))


def name_of_data(data: Any) -> str:
    """The name of data in results and errors."""
    name = member_of(data, "name")
    return type(data).__name__ if name is None else name


class Examples(NamedTuple):
    """One client's labelled examples; ignore the rows from `count` on, which are padding, see `valid`."""

    x: Array  # (max_examples, ...) inputs as the model takes them
    y: Array  # (max_examples,) int32 labels, or (max_examples, ...) targets of the model's loss
    count: Array  # () int32  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def valid(self) -> Array:
        """(max_examples,) bool: False for padding."""
        rows = jnp.arange(self.y.shape[0], dtype=jnp.result_type(self.count))
        return rows < self.count


def named_key(key: Key, purpose: str) -> Key:
    """The key of one purpose: folds in a hash of its name that is the same in every process and version."""
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))
