"""Federated algorithms: one file each, what clients and server compute and nothing else."""

from ._local import sgd
from .fedavg import fedavg
from .fedrep import fedrep
from .hf_maml import hf_maml
from .lg_fedavg import lg_fedavg
from .linear_fedavg import linear_fedavg
from .linear_fedrep import linear_fedrep

__all__ = ["fedavg", "fedrep", "hf_maml", "lg_fedavg", "linear_fedavg", "linear_fedrep", "sgd"]
