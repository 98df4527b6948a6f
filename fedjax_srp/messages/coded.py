"""Coded: an algorithm whose messages go through codecs, in all phases and both directions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.base import (
    MESSAGE_SHARE,
    Array,
    Charges,
    ClientData,
    ClientFunction,
    ClientOutput,
    ClientState,
    Exchange,
    FederatedAlgorithm,
    Key,
    Packet,
    Participants,
    Personalize,
    Phase,
    PyTree,
    RoundContext,
    ServerState,
    Uncharged,
    named_key,
)
from fedjax_srp.messages.by_name import read_codec
from fedjax_srp.messages.codecs import Codec, ErrorFeedback, whole_bits
from fedjax_srp.messages.wrapper import Wrapper
from fedjax_srp.parts.part import field, part


class CodedState(NamedTuple):
    """A client's state, and beside it what its codes need from round to round, each by phase; () for nothing."""

    own: ClientState  # of the algorithm
    residuals: tuple[PyTree, ...]  # e_i: what the codes of its uploads have left out
    held: tuple[PyTree, ...]  # its last download, decoded; the server knows it too


class Received(NamedTuple):
    """The result of a transmission."""

    value: PyTree  # as the receiver decodes it
    residual: PyTree  # what the code left out, see `charged`


@part
class Coded(Wrapper):
    """An algorithm whose messages are coded: what the receiver computes with is what it decodes.

    In every phase the message of each client goes through `up`, its download through `down`, array by array. What is
    coded are changes where messages are models: a part of a message that has structure and shapes of a part of the
    download is sent as its difference from that, or as it is, whichever has the smaller norm; a bit says which. So
    FedAvg's models are coded as updates, and SCAFFOLD's updates and FedSGD's gradients as they are. FedAsync and L2GD
    send models in a phase that downloads none, and these are coded whole. Downloads are
    coded in the same way against what this client last received, which makes up for what earlier codes left out. The
    server knows that too. A client begins with the download of the initial state, which comes with the software.

    `history.bytes_up` and `bytes_down`, traffic and the times of `clocks.Devices` are those of the codes. Parts that
    are `Uncharged`, integers and flags pass untouched, the latter two at their full size.

    Everything else is the algorithm's: evaluations, which judge the server's model and not a decoded download; the
    gradient that some policies ask for, which is sent whole; charges; and exchanges, whose `shown` part of a state is
    not coded, so that FedAMP and FedPAC look better than a server that knows decoded models. Passes over all clients
    before the first round are not coded.

    With up=None and down=None every bit is as without `Coded`. Clients' states in a history are `CodedState`.

    Args:
        algorithm: whose messages are coded.
        up: code of what clients send, an object or a text such as "TopK(0.01)"; None: as it is.
        down: code of what clients receive; None: as it is.

    Raises:
        ValueError: a text that is no codec, error feedback for downloads; when a run begins, a code that does not fit
            the algorithm's messages.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> fedavg = srp.algorithms.FedAvg(srp.models.MLP((8, 8), num_classes=10, hidden=(32,)))
        >>> fedpaq = srp.messages.Coded(fedavg, up=srp.messages.Quantized(8))
        >>> history = srp.simulate(fedpaq, data, num_rounds=1, key=jax.random.key(0), progress=False)
        >>> history.bytes_up, history.bytes_down  # 2,410 values of 8 bits, 4 scales and a bit; 4 bytes each
        (2427, 9640)
    """

    name: ClassVar[Any]  # the algorithm's; without this line `@part` would give its own

    up: Annotated[
        Codec | ErrorFeedback | str | None, "give e.g. srp.messages.TopK(0.01)"
    ] = field(converter=functools.partial(read_codec, "up"), default=None)
    down: Annotated[
        Codec | ErrorFeedback | str | None, "give e.g. srp.messages.Half()"
    ] = field(converter=functools.partial(read_codec, "down"), default=None)

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, Coded):
            raise ValueError(
                "algorithm=Coded(...) is coded already; give it both codes, up and down, at once"
            )
        if isinstance(self.algorithm, Wrapper):
            raise ValueError(
                f"algorithm={type(self.algorithm).__name__}(...): a code after clipping can make a message longer "
                "than the clip; give Private(Coded(...)), which clips what the server decodes"
            )
        if isinstance(self.down, ErrorFeedback):
            raise ValueError(
                f"down={self.down!r}: a download is coded against what the client holds, which makes up for earlier "
                f"codes by itself; give {self.down.codec!r}"
            )

    @property
    def _code(self) -> Codec | None:
        """The code of uploads, without its error feedback."""
        up: Any = self.up
        return up.codec if isinstance(up, ErrorFeedback) else up

    @property
    def _down(self) -> Codec | None:
        down: Any = self.down
        return down

    @override
    def init_client(self, key: Key, server: ServerState, data: ClientData) -> CodedState:
        own = self.algorithm.init_client(key, server, data)
        first = jnp.int32(0)
        context = RoundContext(
            first, first, jnp.int32(1), 1, jnp.int32(1), client_id=first
        )
        residuals = []
        held = []
        for phase in self.algorithm.phases:
            if self._down is not None:
                held.append(charged(phase.download(server, own, context)))
            if isinstance(self.up, ErrorFeedback):
                message = functools.partial(
                    _coded_message, phase, key, server, own, data, context
                )
                residuals.append(self._nothing_left_out(message))
        return CodedState(own, tuple(residuals), tuple(held))

    def _nothing_left_out(self, message: Callable[[], PyTree]) -> PyTree:
        """Zeros for the arrays of a message that are coded."""
        shapes = jax.eval_shape(message)
        self._check_feedback(shapes)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def _check_feedback(self, message: PyTree) -> None:
        """Raise a ValueError if error feedback may grow without bound."""
        code: Any = self._code
        for leaf in jax.tree.leaves(message):
            if _is_shorter(code, leaf) and not code.contracts(leaf.shape):
                raise ValueError(
                    f"up={self.up!r}: what {code!r} leaves out of an array of shape {leaf.shape} can be more than "
                    "there is, so that the error grows; give more bits or a smaller bucket, unbiased=False, plain "
                    "factors, or no ErrorFeedback"
                )

    @property
    @override
    def phases(self) -> tuple[Phase, ...]:
        coded = []
        for index, phase in enumerate(self.algorithm.phases):
            coded.append(self._coded_phase(index, phase))
        return tuple(coded)

    @property
    @override
    def start_phases(self) -> tuple[Phase, ...]:
        return tuple(map(_uncoded_phase, self.algorithm.start_phases))

    @property
    @override
    def gradient(self) -> ClientFunction | None:
        gradient = self.algorithm.gradient
        return None if gradient is None else _of_own_state(gradient)

    @property
    @override
    def charges(self) -> Charges:
        charges = self.algorithm.charges
        costs_as = charges.costs_as
        if charges.sends is not None and self.up is not None:
            raise ValueError(
                f"up={self.up!r}: {self.name}'s message is a short cut to the mean of what clients would send, so "
                "that its code would be another; give up=None, or an algorithm that sends models"
            )
        if costs_as is None:
            return charges

        def coded_as() -> tuple[tuple[FederatedAlgorithm, ...], ...]:
            return tuple(
                tuple(Coded(each, self.up, self.down) for each in level)
                for level in costs_as()
            )

        return charges._replace(costs_as=coded_as)

    @property
    @override
    def evaluations(self) -> dict[str, Personalize]:
        evaluations = self.algorithm.evaluations
        return {name: _of_own_state(judge) for name, judge in evaluations.items()}

    def _coded_phase(self, index: int, phase: Phase) -> Phase:
        """The phase with coded messages; its name, and so the keys of its clients, are the same."""

        def broadcast(server: ServerState, context: RoundContext) -> PyTree:
            sent = phase.broadcast(server, context)
            if phase.exchange is not None:  # `mix` changes it before it is sent
                return sent
            return self._packed_download(sent)

        def client(
            key: Key,
            download: PyTree,
            state: CodedState,
            data: ClientData,
            context: RoundContext,
        ) -> ClientOutput:
            if self._down is not None:
                sent = download.value
                key_down = named_key(key, "down")
                decoded = transmit(self._down, key_down, sent, state.held[index])
                download = decoded.value
                held = _replaced(state.held, index, charged(download))
                state = state._replace(held=held)
            output = phase.client(key, download, state.own, data, context)
            own = state.own if output.state is None else output.state
            has_new = output.state is not None or self._down is not None
            state = state._replace(own=own)
            self._check_submodel(output)
            if self._code is None:
                return output._replace(state=state if has_new else None)
            known = self._known(output, download)
            residual = state.residuals[index] if state.residuals else None
            key_up = named_key(key, "up")
            decoded = transmit(self._code, key_up, output.message, known, residual)
            if state.residuals:
                residuals = _replaced(state.residuals, index, decoded.residual)
                state = state._replace(residuals=residuals)
                has_new = True
            size = wire_bytes(self._code, output.message, known)
            weight = output.weight
            if not jax.tree_util.all_leaves([weight]):
                weight = Packet(weight, size)
            return output._replace(
                message=Packet(decoded.value, size),
                state=state if has_new else None,
                weight=weight,
            )

        def server(
            key: Key, server: ServerState, mean: PyTree, context: RoundContext
        ) -> ServerState:
            decoded = mean if self._code is None else mean.value
            return phase.server(key, server, decoded, context)

        exchange = phase.exchange
        if exchange is not None:
            exchange = self._coded_exchange(exchange)
        return phase._replace(
            broadcast=broadcast, client=client, server=server, exchange=exchange
        )

    def _coded_exchange(self, exchange: Exchange) -> Exchange:
        def mix(
            broadcast: PyTree, own: PyTree, others: Participants, context: RoundContext
        ) -> PyTree:
            return self._packed_download(exchange.mix(broadcast, own, others, context))

        return Exchange(lambda state: exchange.shown(state.own), mix)

    def _packed_download(self, download: PyTree) -> PyTree:
        """A download with the size of its code; coded where the client's own state is known."""
        if self._down is None:
            return download
        size = wire_bytes(self._down, download, charged(download))
        return Packet(download, size)

    def _known(self, output: ClientOutput, download: PyTree) -> PyTree:
        """The reference of a message, which the server has too: the client's download; None for a masked submodel."""
        if MESSAGE_SHARE in output.info:
            return None
        return charged(download)

    def _check_submodel(self, output: ClientOutput) -> None:
        """Raise a ValueError for a submodel under a code whose bytes are no share of the whole model's."""
        if MESSAGE_SHARE not in output.info:
            return
        for argument in ("up", "down"):
            codec = getattr(self, argument)
            if codec is not None and not getattr(codec, "by_entry", False):
                raise ValueError(
                    f"{argument}={codec!r}: {self.name}'s clients send submodels, whose bytes are a share of the whole "
                    "model's; give a code of single values, Quantized or Half"
                )


def _coded_message(
    phase: Phase,
    key: Key,
    server: ServerState,
    own: ClientState,
    data: ClientData,
    context: RoundContext,
) -> PyTree:
    """What a code changes of the message of a client without a state of its codes."""
    download = phase.download(server, own, context)
    return charged(phase.client(key, download, own, data, context).message)


def _replaced(
    values: tuple[PyTree, ...], index: int, value: PyTree
) -> tuple[PyTree, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _of_own_state(function: Callable[..., Any]) -> Callable[..., Any]:
    """A client function, or an evaluation, that gets the algorithm's state and an uncoded download."""

    def of_own(key: Key, given: PyTree, state: CodedState, *rest: Any) -> Any:
        value = given.value if isinstance(given, Packet) else given
        return function(key, value, state.own, *rest)

    return of_own


def _uncoded_phase(phase: Phase) -> Phase:
    """A phase whose messages are not coded, for clients with a `CodedState`."""
    work = _of_own_state(phase.client)

    def client(key: Key, download: PyTree, state: CodedState, *rest: Any) -> ClientOutput:
        output = work(key, download, state, *rest)
        if output.state is None:
            return output
        return output._replace(state=state._replace(own=output.state))

    exchange = phase.exchange
    if exchange is not None:
        shown = exchange.shown
        exchange = exchange._replace(shown=lambda state: shown(state.own))
    return phase._replace(client=client, exchange=exchange)


# ---- transmission -------------------------------------------------------------------------------------------------


def is_uncharged(node: Any) -> bool:
    """Return True for the wrapper of what no real client sends."""
    return isinstance(node, Uncharged)


def charged(message: PyTree) -> PyTree:
    """The arrays that a code changes, in their places: None for those that are `Uncharged`, or no floats."""

    def coded(node: Any) -> Any:
        is_coded = not is_uncharged(node) and is_float(node)
        return jnp.asarray(node) if is_coded else None

    return jax.tree.map(coded, message, is_leaf=is_uncharged)


def is_float(leaf: Any) -> bool:
    """Return True for an array of floats."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _signature(node: PyTree) -> Any:
    """The structure, shapes and types of a tree, which make it comparable with a reference."""
    leaves, structure = jax.tree.flatten(node)
    return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _known_parts(known: PyTree) -> dict[Any, PyTree]:
    """The parts of what a receiver knows by their signatures, the first one of each."""
    parts: dict[Any, PyTree] = {}

    def visit(node: Any) -> bool:
        if jax.tree.leaves(node):
            parts.setdefault(_signature(node), node)
        return False

    # for the nodes that it visits on the way
    jax.tree.leaves(known, is_leaf=visit)
    return parts


def units_of(message: PyTree, known: PyTree) -> tuple[list[PyTree], Any, list[PyTree]]:
    """A message in units: the largest parts that the receiver knows one like, else single arrays.

    Returns:
        The units, the structure of the message without them, and the known part of each unit; None for none.
    """
    parts = _known_parts(known)
    is_unit = lambda node: (
        is_uncharged(node) or (not has_uncharged(node) and _signature(node) in parts)
    )
    units, structure = jax.tree.flatten(message, is_leaf=is_unit)
    references = []
    for unit in units:
        reference = None
        if not is_uncharged(unit):
            reference = parts.get(_signature(unit))
        references.append(reference)
    return units, structure, references


def has_uncharged(node: Any) -> bool:
    """Return True if a part of a message is sent by no real client."""
    return any(map(is_uncharged, jax.tree.leaves(node, is_leaf=is_uncharged)))


def transmit(
    codec: Codec, key: Key, message: PyTree, known: PyTree, residual: PyTree = None
) -> Received:
    """Code and decode a message.

    Args:
        codec: of its arrays.
        key: of this message.
        message: what is sent; parts that are `Uncharged`, and arrays that are no floats, stay as they are.
        known: what the receiver knows, see `charged`: parts of the same structure are references.
        residual: what earlier codes have left out, of the structure of `charged(message)`; None: not kept.
    """
    message = jax.tree.map(jnp.asarray, message)  # an author's may have numbers
    units, structure, references = units_of(message, known)
    left_out: list[PyTree] = [None] * len(units)
    if residual is not None:
        # the residual has None where a unit has nothing to code
        left_out = structure.flatten_up_to(residual)
    received = []
    residuals = []
    parts = zip(units, references, left_out, strict=True)
    for i, (unit, reference, before) in enumerate(parts):
        if not _is_coded(unit):
            received.append(unit)
            residuals.append(None)
            continue
        base = _nearer(unit, reference)
        sent = jax.tree.map(jnp.subtract, unit, base)
        if residual is not None:
            # p_i = message + e_i
            sent = jax.tree.map(jnp.add, sent, before)
        code = _coded_unit(codec, jax.random.fold_in(key, i), sent)
        received.append(jax.tree.map(jnp.add, base, code))
        # e_i <- p_i - C(p_i)
        residuals.append(jax.tree.map(jnp.subtract, sent, code))
    value = jax.tree.unflatten(structure, received)
    if residual is None:
        return Received(value, None)
    return Received(value, jax.tree.unflatten(structure, residuals))


def _is_coded(unit: PyTree) -> bool:
    """True for a unit of floats; one with other arrays has no reference, so it is a single array."""
    return not is_uncharged(unit) and all(map(is_float, jax.tree.leaves(unit)))


def _nearer(unit: PyTree, reference: PyTree) -> PyTree:
    """The reference, or zeros if these are nearer."""
    zeros = jax.tree.map(jnp.zeros_like, unit)
    if reference is None:
        return zeros
    change = jax.tree.map(jnp.subtract, unit, reference)
    is_near = square_norm(change) < square_norm(unit)
    return jax.tree.map(lambda r, z: jnp.where(is_near, r, z), reference, zeros)


def square_norm(tree: PyTree) -> Array:
    """() float: the squared norm."""
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(tree):
        total += jnp.sum(jnp.square(leaf.astype(total.dtype)))
    return total


def _is_shorter(codec: Codec, leaf: Any) -> bool:
    """True if the code of an array is shorter than the array, which is sent whole otherwise."""
    shape = jnp.shape(leaf)
    dtype = jnp.result_type(leaf)
    has_code = bool(math.prod(shape)) and is_float(leaf)
    return has_code and codec.num_bits(shape, dtype) < whole_bits(shape, dtype)


def _coded_unit(codec: Codec, key: Key, unit: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(unit)
    codes = []
    for i, leaf in enumerate(leaves):
        if _is_shorter(codec, leaf):
            leaf = codec.code(jax.random.fold_in(key, i), leaf)
        codes.append(leaf)
    return jax.tree.unflatten(structure, codes)


def wire_bytes(codec: Codec, message: PyTree, known: PyTree) -> int:
    """Bytes of a coded message: those of its arrays, and a bit for each part that has a reference."""
    bits = 0
    units, _, references = units_of(message, known)
    for unit, reference in zip(units, references, strict=True):
        if is_uncharged(unit):
            continue
        bits += reference is not None
        for leaf in jax.tree.leaves(unit):
            shape = jnp.shape(leaf)
            dtype = jnp.result_type(leaf)
            if _is_shorter(codec, leaf):
                bits += codec.num_bits(shape, dtype)
            else:
                bits += whole_bits(shape, dtype)
    return -(-bits // 8)
