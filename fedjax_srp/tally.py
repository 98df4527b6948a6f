"""The training loss of a round: what local training tells whoever listens while a program is traced.

`local_sgd` tells the sum of its steps' losses where somebody listens, and computes none where nobody does, so that the
files of algorithms need not speak of it. The engine listens on behalf of `simulate(..., record_loss=True)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_srp.base import Array, ClientOutput, FederatedAlgorithm, PyTree

TRAINING_LOSS = "training_loss"
_TRAINED = "training_loss/clients"  # share of the cohort that took a step


class Tally(NamedTuple):
    """What local steps told."""

    loss: Array  # () float: sum over the steps
    steps: Array  # () int32: how many


class _Listener(NamedTuple):
    told: list[Tally]
    trace: Any  # where it listens


_listener: ContextVar[_Listener | None] = ContextVar("listener", default=None)


def is_asked() -> bool:
    """Whether somebody listens to the function that is traced."""
    return _listener.get() is not None


def tell(loss: Array, steps: Array) -> None:
    """Adds the losses of some steps, their sum and their number, for whoever listens.

    Raises:
        ValueError: it is told inside a loop or a transformation, which hands nothing out.
    """
    listener = _listener.get()
    if listener is None:
        return
    if listener.trace != _trace():
        raise ValueError(
            "record_loss: local_sgd is called inside a loop or transformation of JAX, which keeps the loss to itself; "
            "use fedjax_srp.tally.fori_loop there, or leave record_loss out"
        )
    listener.told.append(Tally(loss.astype(float), steps.astype(jnp.int32)))


def _trace() -> Any:
    from jax.extend import core  # slow to import

    return core.get_opaque_trace_state(convention="fedjax_srp")


@contextlib.contextmanager
def _listening() -> Iterator[list[Tally]]:
    listener = _Listener([], _trace())
    token = _listener.set(listener)
    try:
        yield listener.told
    finally:
        _listener.reset(token)


def _total(told: list[Tally]) -> Tally:
    zero = Tally(jnp.zeros(()), jnp.int32(0))
    return jax.tree.map(lambda first, *others: sum(others, start=first), zero, *told)


def fori_loop(lower: Array | int, upper: Array | int, body: Callable[[Any, Any], Any], start: PyTree) -> PyTree:
    """`jax.lax.fori_loop` for loops around local training: what is told inside is told outside.

    A loop in which nobody tells anything may stand anywhere, inside the objective of `local_sgd` too.
    """
    if not is_asked():
        return jax.lax.fori_loop(lower, upper, body, start)
    spoken = False

    def with_tally(index: Array, carry: tuple[PyTree, Tally]) -> tuple[PyTree, Tally]:
        nonlocal spoken
        with _listening() as told:
            after = body(index, carry[0])
        spoken = spoken or bool(told)
        return after, _total([carry[1], *told])

    after, total = jax.lax.fori_loop(lower, upper, with_tally, (start, _total([])))
    if spoken:
        tell(*total)
    return after


def with_training_loss(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
    """The algorithm with `training_loss` among the metrics of its rounds.

    A client's loss is the mean over its local steps of the loss of the step's batch before the step, as training sees
    it (with dropout and augmentation); a round's is the plain mean over those clients of the cohort that took a step,
    nan where none did.
    """
    client = Partial(_telling, algorithm.name, algorithm.round.client)  # its values stay leaves of the algorithm
    return algorithm._replace(round=algorithm.round._replace(client=client))


def _telling(name: str, client: Callable[..., ClientOutput], *args: Any) -> ClientOutput:
    with _listening() as told:
        output = client(*args)
    if not told:
        raise ValueError(
            f"record_loss: algorithm {name!r} does not train with local_sgd, which tells the loss; leave record_loss "
            "out, or put a loss into the `info` of its ClientOutput"
        )
    if TRAINING_LOSS in output.info:
        raise ValueError(f"record_loss: algorithm {name!r} records {TRAINING_LOSS!r} itself; leave record_loss out")
    loss, steps = _total(told)
    mean = jnp.where(steps > 0, loss / jnp.maximum(steps, 1).astype(loss.dtype), jnp.zeros((), loss.dtype))
    return output._replace(info={**output.info, TRAINING_LOSS: mean, _TRAINED: steps > 0})


def averaged(info: Mapping[str, Array]) -> dict[str, Array]:
    """The means of a cohort's `info`, the loss being that of the clients that trained."""
    means = dict(info)
    if (share := means.pop(_TRAINED, None)) is not None:
        means[TRAINING_LOSS] = means[TRAINING_LOSS] / share
    return means
