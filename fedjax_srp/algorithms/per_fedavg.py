"""Per-FedAvg as in FedRep's table: `hf_maml` with support and target samples in every batch."""

from __future__ import annotations

from fedjax_srp.algorithms._evaluations import global_evaluations
from fedjax_srp.algorithms.hf_maml import hf_maml
from fedjax_srp.algorithms.local import Optimizer, fine_tuning
from fedjax_srp.base import Array, FederatedAlgorithm
from fedjax_srp.models.split import SplitModel
from fedjax_srp.record import recorded


@recorded
def per_fedavg(
    model: SplitModel,
    optimizer: Optimizer | None = None,
    inner_step_size: float | Array = 1e-4,
    difference: float | Array = 1e-3,
    batch_size: int = 10,
    local_epochs: int | None = 1,
    local_steps: int | None = None,
    support_fraction: float = 0.8,
    fine_tune_epochs: int = 10,
    client_weighting: str = "uniform",
    fine_tune_optimizer: Optimizer | None = None,
) -> FederatedAlgorithm:
    """Per-FedAvg (Fallah et al., 2020, Algorithm 1, Hessian-free), as in FedRep's table.

    Everything is shared. A step of a client takes the inner step and the Hessian-vector product on the support samples
    of its batch, 8 of 10, and the outer gradient on the target samples, the other 2; a shorter batch is divided in the
    same proportion, rounded, and where that leaves no target (one sample, or two) all are both. With an inner step of
    0 this is `fedavg` on the target samples. The mathematics is `hf_maml`, which has SRPFL's values. The code of
    FedRep's authors differs: it never uses the model after the inner step, and descends the sum of both losses.

    Evaluations: `fine_tune_all` (the default), all layers trained on the client, as that code does at the end of a run;
    `one_inner_step`, the model after a full-batch inner step, which is what is optimised; `global`; `fine_tune`, the
    head.

    Args:
        model: where it is cut matters to `fine_tune` alone.
        optimizer: of the meta-steps, afresh in every round; default SGD with step size 0.01.
        inner_step_size: alpha; 1e-4 in FedRep, appendix.
        difference: delta, of the central differences, see `hf_maml`.
        batch_size: support and target samples together; the last batch of an epoch may be smaller.
        local_epochs: epochs over the client's shuffled examples in a round, per unit of work.
        local_steps: instead of epochs, meta-steps on batches drawn with replacement (set local_epochs=None).
        support_fraction: of a batch, which comes first; 0.8 in FedRep, appendix.
        fine_tune_epochs: epochs before a client is judged by `fine_tune` and `fine_tune_all`; 5 in FedRep's code for
            all layers.
        client_weighting: "uniform" or "num_examples".
        fine_tune_optimizer: of both kinds of fine-tuning; default as `optimizer`.

    Returns:
        A `FederatedAlgorithm` on `Examples`.

    Raises:
        ValueError: an argument out of range, or labels and examples that do not fit the model.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.mlp((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.per_fedavg(model).evaluations)
        ['fine_tune_all', 'global', 'fine_tune', 'one_inner_step']
    """
    algorithm = hf_maml(
        model,
        optimizer,
        inner_step_size,
        difference,
        batch_size,
        local_epochs,
        local_steps,
        support_fraction,
        fine_tune_epochs=fine_tune_epochs,
        client_weighting=client_weighting,
        fine_tune_optimizer=fine_tune_optimizer,
    )
    tuning = fine_tuning(fine_tune_optimizer, optimizer, batch_size, fine_tune_epochs)
    of_global_model = global_evaluations(model, tuning, "fine_tune_all")
    evaluations = of_global_model | {"one_inner_step": algorithm.evaluations["one_inner_step"]}
    return algorithm._replace(name="per_fedavg", evaluations=evaluations)
