"""Bytes that clients and server hold and send, from shapes alone."""

from __future__ import annotations

from typing import NamedTuple

import jax

from fedjax_srp.base import Packet, PyTree, Uncharged
from fedjax_srp.contract.checks import Shapes


class ClientBytes(NamedTuple):
    """Bytes that one participant exchanges with the server in a round."""

    sent: int
    received: int


class ClientMemory(NamedTuple):
    """Bytes that one client takes on its device."""

    examples: int  # its data, as the model's input, without arrays that all clients share
    state: int
    messages: int  # that it sends
    evaluation_examples: int  # training or test data, the larger
    training: int  # activations and gradients, besides data and state
    evaluation: int  # the same of an evaluation

    def at_once(self, platform: str) -> tuple[int, int]:
        """Bytes of each client of a chunk, in training and in evaluation.

        An accelerator trains the whole chunk as a batch. On a CPU clients with large models are trained one after the
        other, and small models need little besides what clients hold.
        """
        held = self.examples + self.state
        judged = self.evaluation_examples + self.state
        if platform == "cpu":
            return held + self.messages, judged
        return held + self.training, judged + self.evaluation


class Sizes(NamedTuple):
    """Bytes of a client, and of the states that the server knows."""

    messages: ClientBytes
    client: ClientMemory
    server_state: int
    shown: int  # the part of a client's state that the server knows, for exchanges
    start: ClientBytes  # in the charged passes before the first round
    start_passes: int  # their number


def sizes_of(shapes: Shapes) -> Sizes:
    """Count the bytes of a client, and of the states that the server knows."""
    train = num_bytes(shapes.train)
    client = ClientMemory(
        examples=train - shapes.shared_bytes,
        state=num_bytes(shapes.state),
        messages=num_bytes(shapes.up),
        evaluation_examples=max(train, num_bytes(shapes.test)),
        training=shapes.training_bytes,
        evaluation=shapes.evaluation_bytes,
    )
    server_state = num_bytes(shapes.server)
    return Sizes(
        messages=client_bytes(shapes),
        client=client,
        server_state=server_state,
        shown=num_bytes(shapes.shown),
        start=ClientBytes(
            _charged_bytes(shapes.start_up), _charged_bytes(shapes.start_down)
        ),
        start_passes=len(shapes.start_up),
    )


def client_bytes(shapes: Shapes) -> ClientBytes:
    """Count the bytes that a participant exchanges with the server in a round."""
    sends = shapes.charges.sends
    uploads = shapes.up if sends is None else (sends, *shapes.up[1:])
    return ClientBytes(_charged_bytes(uploads), _charged_bytes(shapes.down))


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a tree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _charged_bytes(tree: PyTree) -> int:
    is_counted = lambda node: isinstance(node, Uncharged | Packet)
    total = 0
    for node in jax.tree.leaves(tree, is_leaf=is_counted):
        if isinstance(node, Packet):
            total += node.num_bytes
        elif not isinstance(node, Uncharged):
            total += num_bytes(node)
    return total
