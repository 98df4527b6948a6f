"""FjORD: clients train nested submodels, drawn anew in every step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from typing_extensions import override

from fedjax_srp.algorithms._submodels import Rate, SubmodelAlgorithm
from fedjax_srp.base import Array, Charges, FederatedAlgorithm, Key, named_key
from fedjax_srp.models.narrow import narrow
from fedjax_srp.models.split import SplitParams
from fedjax_srp.parts.part import part


@part
class FjORD(SubmodelAlgorithm):
    """FjORD (Horvath et al., 2021, Algorithm 1): ordered dropout, without distillation.

    In every step a client draws one of the rates p that it can train, uniformly, and
    trains the first ceil(p K) of the K units of each hidden layer, which orders the units
    by importance. The server averages each parameter over the clients whose largest
    submodel includes it. For `participation.PartialWork(5)`.

    Evaluations, all of the whole model: `global` (the default), `fine_tune`,
    `fine_tune_all`.

    Args:
        rates: of a client with 1, 2, ... units of work, in ascending order; the paper's
            five.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> srp.algorithms.FjORD(model).rates
        (0.2, 0.4, 0.6, 0.8, 1.0)
    """

    rates: tuple[Rate, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    @property
    @override
    def charges(self) -> Charges:
        def costs_as() -> tuple[tuple[FederatedAlgorithm, ...], ...]:
            # With w units of work: the first w narrow models, drawn uniformly.
            narrow = self.narrow_algorithms()
            return tuple(tuple(narrow[:w]) for w in range(1, len(narrow) + 1))

        return Charges(costs_as=costs_as)

    @override
    def narrowed(
        self, params: SplitParams, level: Array, first: Array, key: Key | None
    ) -> SplitParams:
        assert key is not None  # every step of local SGD has its own
        # p ~ U{rates up to the client's}
        index = jax.random.randint(named_key(key, "rate"), (), 0, level + 1)
        rate = jnp.asarray(self.rates)[index]
        return narrow(self.model.layer_names, params, rate, first)
