"""Private: an algorithm whose messages are clipped at the client and noised at the server."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.tree_util import DictKey, keystr, tree_flatten_with_path
from typing_extensions import override

from fedjax_srp.base import (
    Array,
    Charges,
    ClientData,
    ClientFunction,
    ClientOutput,
    ClientState,
    Clock,
    FederatedAlgorithm,
    Key,
    Packet,
    ParticipationPolicy,
    Personalize,
    Phase,
    PyTree,
    RoundContext,
    ServerState,
    named_key,
)
from fedjax_srp.messages.accountant import PrivacyLoss, privacy_loss
from fedjax_srp.messages.codecs import ErrorFeedback
from fedjax_srp.messages.coded import (
    Coded,
    charged,
    has_uncharged,
    is_float,
    is_uncharged,
    square_norm,
    units_of,
)
from fedjax_srp.messages.dependence import dependence
from fedjax_srp.messages.wrapper import Wrapper
from fedjax_srp.parts.part import Above, AtLeast, Count, Leaf, Share, part

BATCH_STATISTICS = "batch_stats"  # flax's name, under which models keep them


class PrivateState(NamedTuple):
    """The server's state, and beside it the clip that adapts."""

    own: ServerState  # of the algorithm
    clip: Array  # () float: C

    @property
    def params(self) -> PyTree:
        """The parameters of the algorithm's state, for `simulate(start=)`."""
        return self.own.params


class Announced(NamedTuple):
    """A download, and with it the clip of the round."""

    own: PyTree
    clip: Array


class Clipped(NamedTuple):
    """A clipped message, and whether it was within the clip, which costs a byte."""

    own: PyTree
    within: Packet


@part
class Private(Wrapper):
    """An algorithm with differential privacy for clients: DP-FedAvg of McMahan et al. (2018, Algorithm 1, estimator
    f_f) around any algorithm whose server computes with the mean of what clients send.

    The whole message of a client is clipped: the arrays that go up, as differences from what it received, are one
    vector, which is scaled to the L2 norm `clip` where it is longer. Messages that are changes already
    (`sends_changes`: SCAFFOLD, FedSGD) are clipped as they are. A message that is not finite counts as no change. The
    server divides the sum by a fixed `denominator`, whatever the size of the cohort, and adds Gaussian noise of
    standard deviation noise_multiplier * clip / denominator to every entry, once a round. All clients weigh the same.

    With `quantile` the clip adapts (Andrew et al., 2021, Algorithm 1): clients say whether they were within the clip,
    the noised share of those moves it, and the noise is split between both such that `noise_multiplier` is that of the
    pair. The clip goes down with the download, and is the metric `clip_norm`.

    Protected are the server's states and all that follows from them: downloads, evaluations of the server's model. Not
    protected are what a simulation records beside (accuracies, losses, `info`), what a client computes for itself with
    its own state, and reports and metrics that a policy reads, such as Oort's losses, with the cohorts that follow
    from them: `epsilon` lists these. Noise is that of floats, without the care that a deployment takes of them.

    Refused are algorithms whose clients' data reach others otherwise than through this gate: asynchronous ones, those
    whose downloads mix other clients' states (FedAMP, FedPAC), passes before the first round, messages that are a short
    cut to the mean, weights by examples or by anything else of a client, submodels, rounds that send nothing, and
    messages of 16 bits, whose rounding breaks the clip. Policies with a criterion find no gradient, which would be sent
    whole. Codes go inside: Private(Coded(algorithm)).

    Args:
        algorithm: whose messages are private.
        clip: C, the norm of a message at most; with `quantile` that of the first round, 0.1 in Andrew et al. None
            clips nothing, so that there is no noise either: a mean with a fixed denominator.
        noise_multiplier: z, the noise in the sum over `clip`.
        denominator: of the sum, the expected number of participants. None: the size of each cohort, which is sound
            where it does not follow from clients' data, as that of the stages of `Doubling`.
        quantile: gamma, the share of clients that are to be within the clip, 0.5 in Andrew et al.; None: the clip is
            fixed.
        clip_step_size: eta_C, of the logarithm of the clip.
        count_noise: sigma_b, the noise in the number of clients within the clip, which must be more than
            noise_multiplier / 2 (where both are traced, as under `jax.vmap`, other numbers give nan); None:
            denominator / 20, as in Andrew et al., which needs a denominator.
        unsent: for what the server keeps of parts that no real client sends (`Uncharged`: the mean of FedRep's heads),
            which no noise protects. "refuse", or "initial": it stays as it began, so that evaluations that start from
            the mean head start from the initial one.

    Raises:
        ValueError: an algorithm that is refused, when the part is made or when a run begins.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> fedavg = srp.algorithms.FedAvg(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)))
        >>> private = srp.messages.Private(fedavg, clip=0.5, noise_multiplier=1.0, denominator=20)
        >>> history = srp.simulate(private, data, num_rounds=1, key=jax.random.key(0), progress=False)
        >>> bool(history.finite.all())
        True
    """

    name: ClassVar[Any]  # the algorithm's; without this line `@part` would give its own

    clip: Annotated[float, Above(0), "give a norm, e.g. 0.5"] | None
    noise_multiplier: Annotated[float, AtLeast(0), "give 0 for none, or e.g. 1.0"]
    denominator: Leaf[Count | None]
    quantile: Share | None = None
    clip_step_size: Annotated[float, Above(0)] = 0.2
    count_noise: Annotated[float, Above(0)] | None = None
    unsent: Literal["refuse", "initial"] = "refuse"

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, Private):
            raise ValueError("algorithm=Private(...) is private already; give it alone")
        if isinstance(self.algorithm, Coded) and self.algorithm.down is not None:
            raise ValueError(
                f"algorithm=Coded(..., down={self.algorithm.down!r}): clients then hold different downloads, so that "
                "no clip bounds what one of them adds to the sum; give down=None"
            )
        problem = _problem_of(self.algorithm)
        if problem is not None:
            raise ValueError(
                f"algorithm={type(self.algorithm).__name__}(...): {problem}; give e.g. srp.algorithms.FedAvg or FedRep"
            )
        self._check_noise()

    def _check_noise(self) -> None:
        """Raise a ValueError for noise that does not suffice."""
        z = self.noise_multiplier
        if isinstance(z, Tracer):
            return
        if self.clip is None and (z > 0 or self.quantile is not None):
            raise ValueError(
                "clip=None: noise and a clip that adapts need a norm; give e.g. clip=0.5"
            )
        if self.quantile is None:
            return
        if self.denominator is None and self.count_noise is None:
            raise ValueError(
                "count_noise=None: is denominator / 20, but denominator=None; give a number above noise_multiplier / 2"
            )
        count_noise = self._count_noise
        if isinstance(count_noise, Tracer):
            return
        if z >= 2 * count_noise:
            raise ValueError(
                f"count_noise={count_noise}: must be above noise_multiplier / 2 = {z / 2}, since the noise of sum and "
                "count together is that of noise_multiplier; give more, or less noise"
            )

    @property
    def _adapts(self) -> bool:
        return self.quantile is not None

    def _own(self, server: ServerState) -> ServerState:
        return server.own if self._adapts else server

    @override
    def init(self, key: Key, data: Any) -> ServerState:
        own = self.algorithm.init(key, data)
        return PrivateState(own, jnp.asarray(self.clip, float)) if self._adapts else own

    @override
    def init_client(self, key: Key, server: ServerState, data: ClientData) -> ClientState:
        server = self._own(server)
        own = self.algorithm.init_client(key, server, data)
        self._check_messages(key, server, own, data)
        return own

    @override
    def metrics(self, server: ServerState, data: Any) -> Any:
        metrics = self.algorithm.metrics(self._own(server), data)
        return {**metrics, "clip_norm": server.clip} if self._adapts else metrics

    @override
    def with_params(self, server: ServerState, params: PyTree) -> ServerState:
        own = self.algorithm.with_params(self._own(server), params)
        return server._replace(own=own) if self._adapts else own

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        return tuple(map(self._private_phase, self.algorithm.phases))

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        return None

    @property
    @override
    def evaluations(self) -> dict[str, Personalize]:
        def of_own(judge: Personalize) -> Personalize:
            return lambda key, server, *rest: judge(key, self._own(server), *rest)

        evaluations = self.algorithm.evaluations
        return {name: of_own(judge) for name, judge in evaluations.items()}

    def epsilon(
        self,
        participation: ParticipationPolicy,
        num_clients: int,
        num_rounds: int,
        delta: float,
        clock: Clock | None = None,
    ) -> PrivacyLoss:
        """Compute what the server's states of a run give away about a client, by the library dp-accounting.

        Two federations are neighbours if one client's data are replaced, so that a sum moves by 2 clip at most.
        Rounds compose as Renyi differential privacy. Under `Uniform` cohorts the number is that of sampling without
        replacement (Wang, Balle and Kasiviswanathan, 2019, Theorem 27), for a server that keeps the cohorts secret, and
        clients that keep no state between rounds, since a state remembers who was drawn. Every other policy, and every
        algorithm with a client state (FedRep's heads, error feedback), gets the number of a client that takes part in
        every round, without amplification; for a client that takes part in fewer, give its rounds as `num_rounds`.
        That number takes cohorts as given: what they say about a client, where they follow from reports, or from times
        that follow from data, is not covered.

        Args:
            participation: the policy of the run.
            num_clients: in the federation.
            num_rounds: of the run.
            delta: of (epsilon, delta)-differential privacy, less than 1 / num_clients.
            clock: of the run; None: one under which every client is always available.

        Raises:
            ValueError: a number is out of range, or dp-accounting is not installed.
        """
        return privacy_loss(
            float(self.noise_multiplier),
            participation,
            num_clients,
            num_rounds,
            delta,
            clock,
            _keeps_state(self.algorithm),
        )

    def _check_messages(
        self, key: Key, server: ServerState, own: ClientState, data: ClientData
    ) -> None:
        """Raise a ValueError unless one phase sends floats, and clients weigh the same in it."""
        first = jnp.int32(0)
        context = RoundContext(first, first, jnp.int32(1), 1, jnp.int32(1))
        num_sending = 0
        for phase in self.algorithm.phases:

            def sent(
                key: Key,
                server: ServerState,
                own: ClientState,
                data: ClientData,
                work: Array,
                client_id: Array,
                phase: Phase = phase,
            ) -> tuple[PyTree, PyTree]:
                of_client = context._replace(work=work, client_id=client_id)
                download = phase.download(server, own, of_client)
                output = phase.client(key, download, own, data, of_client)
                return output.weight, output.message

            found = dependence(sent, key, server, own, data, context.work, first)
            weight, message = found.result
            leaves = jax.tree.leaves(message, is_leaf=is_uncharged)
            sends = [leaf for leaf in leaves if not is_uncharged(leaf)]
            if not sends:
                continue
            num_sending += 1
            is_number = jax.tree_util.all_leaves([weight]) and weight.shape == ()
            if not is_number or found.reads(0):
                raise ValueError(
                    f"algorithm={type(self.algorithm).__name__}(...): the weight of a client is not one number for "
                    "all, but a clip bounds a sum of equal clients; give training.weighting='uniform', or another "
                    "algorithm"
                )
            if not all(is_float(leaf) and leaf.dtype.itemsize >= 4 for leaf in sends):
                raise ValueError(
                    f"algorithm={type(self.algorithm).__name__}(...): its messages have integers, flags or floats of "
                    "16 bits, whose rounding breaks the clip; give an algorithm and a model of float32"
                )
            paths = jax.tree.leaves_with_path(message, is_leaf=is_uncharged)
            if any(DictKey(BATCH_STATISTICS) in path for path, _ in paths):
                raise ValueError(
                    f"algorithm={type(self.algorithm).__name__}(...): its clients send BatchNorm's variances, which "
                    "noise could make negative; use GroupNorm, e.g. norm='group' of a resnet18, or FedBN"
                )
        if num_sending != 1:
            raise ValueError(
                f"algorithm={type(self.algorithm).__name__}(...): {num_sending} of its passes send messages, but a "
                "clip is of one message in a round; give e.g. srp.algorithms.FedAvg"
            )

    def _private_phase(self, phase: Phase) -> Phase:
        """The phase with clipped messages; its name, and so the keys of its clients, are the same."""

        def broadcast(server: ServerState, context: RoundContext) -> PyTree:
            download = phase.broadcast(self._own(server), context)
            return Announced(download, server.clip) if self._adapts else download

        def client(
            key: Key,
            download: PyTree,
            state: ClientState,
            data: ClientData,
            context: RoundContext,
        ) -> ClientOutput:
            clip = self.clip
            if self._adapts:
                download, clip = download
            output = phase.client(key, download, state, data, context)
            if clip is None or not jax.tree.leaves(charged(output.message)):
                return output
            clip = jnp.asarray(clip, float)
            return output._replace(message=self._clipped(output.message, download, clip))

        def server(
            key: Key, server: ServerState, mean: PyTree, context: RoundContext
        ) -> ServerState:
            own = self._own(server)
            if not jax.tree.leaves(charged(mean)):
                new = self._updated(phase, key, own, mean, context)
                return server._replace(own=new) if self._adapts else new
            clip: Any = self.clip
            within = None
            if self._adapts:
                clip = server.clip
                within = mean.within.value
                mean = mean.own
            noise = 0.0 if clip is None else self._sum_noise * clip
            key_noise = named_key(key, "noise")
            download = phase.broadcast(own, context)
            mean = self._noised(key_noise, mean, download, noise, context)
            # as if the cohort had the expected size, also for (1 / N) sum_i
            expected = context._replace(cohort_size=self._expected_size(context))
            new = self._updated(phase, key, own, mean, expected)
            if within is None:
                return new
            key_count = named_key(key, "count")
            return PrivateState(new, self._moved(key_count, server.clip, within, context))

        return phase._replace(broadcast=broadcast, client=client, server=server)

    def _references(self, message: PyTree, download: PyTree) -> PyTree:
        """Return each array's reference: its part of the download, or zeros; None for `Uncharged` parts."""
        known = None if self.sends_changes else charged(download)
        units, structure, references = units_of(message, known)
        bases = []
        for unit, reference in zip(units, references, strict=True):
            if is_uncharged(unit):
                reference = None
            elif reference is None:
                reference = jax.tree.map(jnp.zeros_like, unit)
            bases.append(reference)
        return jax.tree.unflatten(structure, bases)

    def _clipped(self, message: PyTree, download: PyTree, clip: Array) -> PyTree:
        message = jax.tree.map(jnp.asarray, message)  # an author's may have numbers
        references = self._references(message, download)
        values = charged(message)
        norm = jnp.sqrt(square_norm(jax.tree.map(jnp.subtract, values, references)))
        is_finite = jnp.isfinite(norm)
        factor = jnp.where(is_finite, clip / jnp.maximum(norm, clip), 0)

        def scaled(value: Any, base: Any) -> Any:
            if is_uncharged(value):
                return value
            # w + (w_i - w) min(1, C / |w_i - w|)
            change = jnp.where(is_finite, value - base, 0)
            shorter = base + factor.astype(value.dtype) * change
            return jnp.where(norm <= clip, value, shorter)

        clipped = _map_charged(scaled, message, references)
        if not self._adapts:
            return clipped
        return Clipped(clipped, Packet((norm <= clip).astype(float), 1))

    def _noised(
        self,
        key: Key,
        mean: PyTree,
        download: PyTree,
        noise: Any,
        context: RoundContext,
    ) -> PyTree:
        """The sum with this noise over the denominator, from the mean over the cohort."""
        expected = self._expected_size(context).astype(float)
        # 0 for a cohort of the expected size
        excess = context.cohort_size.astype(float) / expected - 1
        std = noise / expected
        references = self._references(mean, download)
        leaves, structure = jax.tree.flatten(mean, is_leaf=is_uncharged)
        bases = structure.flatten_up_to(references)
        noised = []
        for i, (value, base) in enumerate(zip(leaves, bases, strict=True)):
            if not is_uncharged(value):
                # w + (1 / m) (sum_i (w_i - w) + N(0, z^2 C^2))
                normal = jax.random.normal(jax.random.fold_in(key, i), value.shape)
                change = excess.astype(value.dtype) * (value - base)
                value = value + change + (std * normal).astype(value.dtype)
            noised.append(value)
        return jax.tree.unflatten(structure, noised)

    def _expected_size(self, context: RoundContext) -> Array:
        """The denominator m, () int32."""
        if self.denominator is None:
            return context.cohort_size
        return jnp.asarray(self.denominator, jnp.int32)

    @property
    def _count_noise(self) -> Any:
        """sigma_b."""
        denominator: Any = self.denominator
        return denominator / 20 if self.count_noise is None else self.count_noise

    @property
    def _sum_noise(self) -> Array:
        """The noise in the sum over the clip: z, or z_Delta where the count has noise too."""
        z = jnp.asarray(self.noise_multiplier, float)
        if not self._adapts:
            return z
        # z_Delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)
        return z / jnp.sqrt(1 - jnp.square(z / (2 * self._count_noise)))

    def _moved(
        self, key: Key, clip: Array, within: Array, context: RoundContext
    ) -> Array:
        """The next clip, from the share of the cohort that was within this one."""
        # b = 1/2 + (1 / m) (sum_i (b_i - 1/2) + N(0, sigma_b^2))
        noise = jnp.where(self._sum_noise > 0, self._count_noise, 0)
        count = context.cohort_size.astype(float) * (within - 0.5)
        count = count + noise * jax.random.normal(key, (), clip.dtype)
        share = 0.5 + count / self._expected_size(context).astype(float)
        # C <- C exp(-eta_C (b - gamma))
        quantile: Any = self.quantile
        return clip * jnp.exp(-self.clip_step_size * (share - quantile))

    def _updated(
        self,
        phase: Phase,
        key: Key,
        own: ServerState,
        mean: PyTree,
        context: RoundContext,
    ) -> ServerState:
        """The server's update, without what comes from parts that no real client sends."""
        if not has_uncharged(mean):
            return phase.server(key, own, mean, context)

        def updated(own: ServerState, mean: PyTree) -> ServerState:
            return phase.server(key, own, mean, context)

        before, structure = tree_flatten_with_path(own)
        is_unsent = [False] * len(before)
        for node in jax.tree.leaves(mean, is_leaf=is_uncharged):
            is_unsent += [is_uncharged(node)] * len(jax.tree.leaves(node))
        sends = range(len(before), len(is_unsent))
        found = dependence(updated, own, mean)
        after = jax.tree.leaves(updated(own, mean))
        for i, (path, old) in enumerate(before):
            reads = found.reads(i)
            if not any(is_unsent[j] for j in reads):
                continue
            where = f"server state {keystr(path)}"
            if any(j in sends and not is_unsent[j] for j in reads):
                raise ValueError(
                    f"algorithm={type(self.algorithm).__name__}(...): its {where} mixes messages with what no real "
                    "client sends, which no noise protects; give e.g. srp.algorithms.FedAvg"
                )
            if self.unsent == "refuse":
                raise ValueError(
                    f"unsent='refuse': {self.name}'s {where} is a mean of what no real client sends, which no noise "
                    "protects; give unsent='initial', and it stays as it began, for evaluations too"
                )
            after[i] = old
        return jax.tree.unflatten(structure, after)


def _map_charged(function: Any, message: PyTree, references: PyTree) -> PyTree:
    """Map over the arrays of a message and their references; `Uncharged` parts are leaves without one."""
    leaves, structure = jax.tree.flatten(message, is_leaf=is_uncharged)
    bases = structure.flatten_up_to(references)
    return jax.tree.unflatten(structure, list(map(function, leaves, bases)))


def _keeps_state(algorithm: FederatedAlgorithm) -> bool:
    """Return True for clients that remember earlier rounds."""
    if isinstance(algorithm, Coded):
        return isinstance(algorithm.up, ErrorFeedback) or _keeps_state(
            algorithm.algorithm
        )
    return type(algorithm).init_client is not FederatedAlgorithm.init_client


def _problem_of(algorithm: FederatedAlgorithm) -> str | None:
    """Say why no clip and noise of messages make an algorithm private; None if its messages decide."""
    charges: Charges = algorithm.charges
    if algorithm.asynchronous:
        return "an asynchronous server adds up old messages"
    if any(phase.exchange is not None for phase in algorithm.phases):
        return "its clients download what others hold, which no noise protects"
    if algorithm.start_phases:
        return "its passes before the first round have no noise"
    if charges.sends is not None:
        return "its message is a short cut to the mean, whose norm is another"
    if charges.costs_as is not None:
        return "its clients send submodels, so that no mean has a fixed denominator"
    if charges.communicates is not None:
        return "it has rounds in which nothing is sent"
    return None
