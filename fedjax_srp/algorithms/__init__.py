"""Federated algorithms: one file each, what clients and server compute and nothing else."""

from fedjax_srp.algorithms.apfl import apfl
from fedjax_srp.algorithms.ditto import ditto
from fedjax_srp.algorithms.fed_mtl import fed_mtl
from fedjax_srp.algorithms.fedavg import fedavg
from fedjax_srp.algorithms.fedbuff import fedbuff
from fedjax_srp.algorithms.fedgate import fedgate
from fedjax_srp.algorithms.fednova import fednova
from fedjax_srp.algorithms.fedper import fedper
from fedjax_srp.algorithms.fedprox import fedprox
from fedjax_srp.algorithms.fedrep import fedrep
from fedjax_srp.algorithms.fedsgd import fedsgd
from fedjax_srp.algorithms.hf_maml import hf_maml
from fedjax_srp.algorithms.l2gd import l2gd
from fedjax_srp.algorithms.lg_fedavg import lg_fedavg
from fedjax_srp.algorithms.linear_fedavg import linear_fedavg
from fedjax_srp.algorithms.linear_fedrep import linear_fedrep
from fedjax_srp.algorithms.local import sgd
from fedjax_srp.algorithms.local_only import local_only
from fedjax_srp.algorithms.per_fedavg import per_fedavg
from fedjax_srp.algorithms.scaffold import scaffold

__all__ = [
    "apfl",
    "ditto",
    "fed_mtl",
    "fedavg",
    "fedbuff",
    "fedgate",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "fedsgd",
    "hf_maml",
    "l2gd",
    "lg_fedavg",
    "linear_fedavg",
    "linear_fedrep",
    "local_only",
    "per_fedavg",
    "scaffold",
    "sgd",
]
