"""Federated algorithms: one file each, what clients and server compute and nothing else."""

from fedjax_srp.algorithms.fedavg import fedavg
from fedjax_srp.algorithms.fedbuff import fedbuff
from fedjax_srp.algorithms.fedrep import fedrep
from fedjax_srp.algorithms.hf_maml import hf_maml
from fedjax_srp.algorithms.lg_fedavg import lg_fedavg
from fedjax_srp.algorithms.linear_fedavg import linear_fedavg
from fedjax_srp.algorithms.linear_fedrep import linear_fedrep
from fedjax_srp.algorithms.local import sgd

__all__ = ["fedavg", "fedbuff", "fedrep", "hf_maml", "lg_fedavg", "linear_fedavg", "linear_fedrep", "sgd"]
