"""`training_loss`: data whose clients are scored by their training loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_srp.base import Array, Examples, FederatedSource, Predict, member_of
from fedjax_srp.parts.checks import checked, per_example, short


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingLoss:
    """Clients of other data, scored by their training loss, a pytree to pass to `simulate`.

    A score is the sum of the losses of a client's examples; the mean over clients is the
    exact loss of the evaluated model on all examples. SMALLER IS BETTER.

    Build it with `training_loss`.

    Attributes:
        data: the federation with the examples.
        loss: `(outputs (batch, ...), y (batch,)) -> (batch,)`, one loss per example.
    """

    data: Any
    loss: Callable[[Array, Array], Array]

    score_name: ClassVar[str] = "training loss"
    smaller_is_better: ClassVar[bool] = True

    # attributes of the data
    num_clients = property(attrgetter("data.num_clients"))
    name = property(attrgetter("data.name"))
    num_classes = property(attrgetter("data.num_classes"))
    example_shape = property(attrgetter("data.example_shape"))
    offset = property(lambda self: member_of(self.data, "offset"))
    options = property(lambda self: member_of(self.data, "options"))
    client_names = property(lambda self: member_of(self.data, "client_names"))

    def train_client(self, client_id: Array) -> Examples:
        """Return the training examples of a client."""
        return self.data.train_client(client_id)

    def test_client(self, client_id: Array) -> Examples:
        """Return the training examples of a client, on which it is scored."""
        return self.data.train_client(client_id)

    def score(self, predict: Predict, test: Examples) -> tuple[Array, Array]:
        """Return the sum of the losses of a client's training examples, and their number."""
        losses = per_example(self.loss(predict(test.x), test.y), test.y.shape[0])
        total = jnp.sum(jnp.where(test.valid, losses, 0), dtype=float)
        return total, test.count.astype(float)


jax.tree_util.register_dataclass(TrainingLoss, data_fields=["data"], meta_fields=["loss"])


@checked
def training_loss(
    data: FederatedSource, loss: Callable[[Array, Array], Array]
) -> TrainingLoss:
    """Score the clients of data by the loss on their training examples, the y axis of FLANP's figures.

    The loss excludes penalties such as weight decay.

    Args:
        data: of `Examples`, as from `srp.data.load`.
        loss: per example, such as `model.loss`.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=())
        >>> history = srp.simulate(srp.algorithms.FedAvg(model), srp.data.training_loss(data, model.loss),
        ...                        num_rounds=2, eval_every=1, key=jax.random.key(0), progress=False)
        >>> history.score_name, bool(history.mean_accuracy[1] < history.mean_accuracy[0])
        ('training loss', True)
    """
    if not hasattr(data, "train_client"):
        raise ValueError(
            f"training_loss: data={short(data)} is not a federation; give "
            "srp.data.load(name, ...)"
        )
    return TrainingLoss(data, loss)
