"""HeteroFL: weak clients train the first units of every layer."""

from __future__ import annotations

from fedjax_srp.algorithms._submodels import SubmodelAlgorithm
from fedjax_srp.parts.part import part


@part
class HeteroFL(SubmodelAlgorithm):
    """HeteroFL (Diao, Ding and Tarokh, 2021, Algorithm 1): submodels are the first units
    of every hidden layer.

    A client of rate r trains the first ceil(r K) of the K units of each hidden layer,
    whose outputs are scaled by 1 / r in training (the paper's Scaler), and the server
    averages each parameter over the clients that have it. For
    `participation.PartialWork(5)`, where slow clients have fewer units of work, and so a
    narrower model. The paper's masked cross-entropy and its statistics of BatchNorm are
    left out.

    Evaluations, all of the whole model: `global` (the default), `fine_tune`,
    `fine_tune_all`.

    Args:
        rates: of a client with 1, 2, ... units of work, the paper's five levels.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> algorithm = srp.algorithms.HeteroFL(model, rates=(0.25, 0.5, 1.0))
        >>> srp.Method("heterofl", algorithm, srp.participation.PartialWork(3, on_time=0.5)).algorithm.rates
        (0.25, 0.5, 1.0)
    """
