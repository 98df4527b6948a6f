"""Bytes that clients and server hold and send, from shapes alone."""

from __future__ import annotations

from typing import NamedTuple

import jax

from fedjax_srp.base import PyTree, Uncharged
from fedjax_srp.contract.checks import Shapes


class Traffic(NamedTuple):
    """Bytes of one participant in a round."""

    up: int  # sent
    down: int  # received
    held: int  # data, state and messages of a client while it trains
    judged: int  # data and state of a client while it is evaluated
    working: int  # what training a client needs at most besides its data and its state
    working_evaluated: int  # the same of an evaluation
    examples: int  # data of a client, as the model's input, without arrays that all clients share
    client_state: int
    server_state: int
    shown: int  # the part of a client's state that the server knows, for exchanges

    def at_once(self, platform: str) -> tuple[int, int]:
        """Bytes of each client of a chunk, in training and in evaluation.

        An accelerator trains the whole chunk as a batch. On a CPU clients with large models are trained one after the
        other, and small models need little besides what clients hold.
        """
        if platform == "cpu":
            return self.held, self.judged
        return (
            self.examples + self.client_state + self.working,
            self.judged + self.working_evaluated,
        )


def traffic(shapes: Shapes) -> Traffic:
    """Count the bytes of a participant."""
    sends = shapes.charges.sends
    sent = shapes.up if sends is None else (sends, shapes.up[1:])
    examples, state = num_bytes(shapes.train) - shapes.common, num_bytes(shapes.state)
    return Traffic(
        up=_charged_bytes(sent),
        down=_charged_bytes(shapes.down),
        held=examples + state + num_bytes(shapes.up),
        judged=max(num_bytes(shapes.train), num_bytes(shapes.test)) + state,
        working=shapes.working,
        working_evaluated=shapes.working_evaluated,
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
