"""Bytes that clients and server hold and send, from shapes alone."""

from __future__ import annotations

from typing import NamedTuple

import jax

from fedjax_srp.base import PyTree, Uncharged
from fedjax_srp.engine.contract import Shapes


class Traffic(NamedTuple):
    """Bytes that one participant handles in a round, and those of the states behind it."""

    up: int  # sent
    down: int  # received
    held: int  # data, state and messages of a client while it trains
    carried: int  # the largest carry of a loop in a client: what it trains, with the optimizer's state
    carried_judged: int  # the same while it is evaluated
    judged: int  # data and state of a client while it is evaluated
    examples: int  # its data alone, as the model takes it
    client_state: int
    server_state: int
    shown: int  # what the server has of a client, for `mix`


def traffic(shapes: Shapes, sends: PyTree = None) -> Traffic:
    """Count bytes."""
    sent = shapes.up if sends is None else (sends, shapes.up[1:])
    examples, state = num_bytes(shapes.train), num_bytes(shapes.state)
    return Traffic(
        up=_charged_bytes(sent),
        down=_charged_bytes(shapes.down),
        held=num_bytes((shapes.train, shapes.state, shapes.up)),
        carried=shapes.carried,
        carried_judged=shapes.carried_judged,
        judged=max(examples, num_bytes(shapes.test)) + state,
        examples=examples,
        client_state=state,
        server_state=num_bytes(shapes.server),
        shown=num_bytes(shapes.shown),
    )


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _charged_bytes(tree: PyTree) -> int:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Uncharged))
    return num_bytes([leaf for leaf in leaves if not isinstance(leaf, Uncharged)])
