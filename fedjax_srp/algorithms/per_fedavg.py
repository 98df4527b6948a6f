"""Per-FedAvg as in FedRep's table: `HFMAML` with support and target samples."""

from __future__ import annotations

from typing import ClassVar

from fedjax_srp.algorithms.examples import GlobalModel
from fedjax_srp.algorithms.hf_maml import HFMAML, InnerStepSize, SupportFraction
from fedjax_srp.parts.part import part


@part
class PerFedAvg(HFMAML):
    """Per-FedAvg (Fallah et al., 2020, Algorithm 1, Hessian-free), as in FedRep's table.

    Every part of the model is shared. A step of a client takes the inner step and the
    Hessian-vector product on the support samples of its batch, 8 of 10, and the outer
    gradient on the target samples, the other 2; a shorter batch is divided in the same
    proportion, rounded, and if that leaves no target (one sample, or two) all samples are
    both. With an inner step of 0 this is `FedAvg` on the target samples. The mathematics
    is that of `HFMAML`, which has SRPFL's values. The code of FedRep's authors differs:
    it never uses the model after the inner step, and descends the sum of both losses.

    Evaluations: `fine_tune_all` (the default), all layers trained on the client, as in
    that code at the end of a run; `one_inner_step`, the model after a full-batch inner
    step, for which training optimizes; `global`; `fine_tune`, the head trained on the
    client.

    Args:
        training: by meta-steps; a batch has support and target samples.
        inner_step_size: alpha; 1e-4 in FedRep, appendix.
        difference: delta, of the central differences, see `HFMAML`.
        support_fraction: share of a batch, its first samples; 0.8 in FedRep, appendix.
        inner_steps: of `one_inner_step`.
        fine_tune_epochs: epochs of `fine_tune` and `fine_tune_all`; 5 in FedRep's code
            for all layers.

    Example:
        >>> import fedjax_srp as srp
        >>> model = srp.models.MLP((8, 8), num_classes=10, hidden=(32,))
        >>> list(srp.algorithms.PerFedAvg(model).evaluations)
        ['fine_tune_all', 'one_inner_step', 'global', 'fine_tune']
    """

    name: ClassVar[str] = "per_fedavg"

    inner_step_size: InnerStepSize = 1e-4
    support_fraction: SupportFraction | None = 0.8

    fine_tune_all = GlobalModel.fine_tune_all  # the first evaluation
