"""Federated algorithms, one file each: only the computations of clients and server."""

from fedjax_srp.algorithms.afl import AFL
from fedjax_srp.algorithms.apfl import APFL
from fedjax_srp.algorithms.apple import APPLE
from fedjax_srp.algorithms.asyncsgd import AsyncSGD
from fedjax_srp.algorithms.depthfl import DepthFL
from fedjax_srp.algorithms.ditto import Ditto
from fedjax_srp.algorithms.fed_mtl import FedMTL
from fedjax_srp.algorithms.fedala import FedALA
from fedjax_srp.algorithms.fedamp import FedAMP
from fedjax_srp.algorithms.fedas import FedAS
from fedjax_srp.algorithms.fedasync import FedAsync
from fedjax_srp.algorithms.fedat import FedAT
from fedjax_srp.algorithms.fedavg import FedAvg
from fedjax_srp.algorithms.fedbabu import FedBABU
from fedjax_srp.algorithms.fedbn import FedBN
from fedjax_srp.algorithms.fedbuff import FedBuff
from fedjax_srp.algorithms.fedcac import FedCAC
from fedjax_srp.algorithms.fedcompass import FedCompass
from fedjax_srp.algorithms.fedcp import FedCP
from fedjax_srp.algorithms.feddbe import FedDBE
from fedjax_srp.algorithms.feddwa import FedDWA
from fedjax_srp.algorithms.feddyn import FedDyn
from fedjax_srp.algorithms.fedfomo import FedFomo
from fedjax_srp.algorithms.fedgate import FedGATE
from fedjax_srp.algorithms.fednova import FedNova
from fedjax_srp.algorithms.fedopt import FedOpt
from fedjax_srp.algorithms.fedpac import FedPAC
from fedjax_srp.algorithms.fedper import FedPer
from fedjax_srp.algorithms.fedphp import FedPHP
from fedjax_srp.algorithms.fedproto import FedProto
from fedjax_srp.algorithms.fedprox import FedProx
from fedjax_srp.algorithms.fedrep import FedRep
from fedjax_srp.algorithms.fedrod import FedRoD
from fedjax_srp.algorithms.fedrolex import FedRolex
from fedjax_srp.algorithms.fedsgd import FedSGD
from fedjax_srp.algorithms.fedvarp import FedVARP
from fedjax_srp.algorithms.fjord import FjORD
from fedjax_srp.algorithms.flexlora import FlexLoRA
from fedjax_srp.algorithms.gpfl import GPFL
from fedjax_srp.algorithms.heterofl import HeteroFL
from fedjax_srp.algorithms.hetlora import HetLoRA
from fedjax_srp.algorithms.hf_maml import HFMAML
from fedjax_srp.algorithms.ifca import IFCA
from fedjax_srp.algorithms.knn_per import KNNPer
from fedjax_srp.algorithms.l2gd import L2GD
from fedjax_srp.algorithms.lg_fedavg import LGFedAvg
from fedjax_srp.algorithms.local_only import LocalOnly
from fedjax_srp.algorithms.mifa import MIFA
from fedjax_srp.algorithms.moon import MOON
from fedjax_srp.algorithms.per_fedavg import PerFedAvg
from fedjax_srp.algorithms.pfedme import PFedMe
from fedjax_srp.algorithms.q_fedavg import QFedAvg
from fedjax_srp.algorithms.scaffold import SCAFFOLD
from fedjax_srp.algorithms.sliding_window import SlidingWindow
from fedjax_srp.linear.fedavg import LinearFedAvg
from fedjax_srp.linear.fedrep import LinearFedRep

__all__ = [
    "AFL",
    "APFL",
    "APPLE",
    "GPFL",
    "HFMAML",
    "IFCA",
    "L2GD",
    "MIFA",
    "MOON",
    "SCAFFOLD",
    "AsyncSGD",
    "DepthFL",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAS",
    "FedAT",
    "FedAsync",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedBuff",
    "FedCAC",
    "FedCP",
    "FedCompass",
    "FedDBE",
    "FedDWA",
    "FedDyn",
    "FedFomo",
    "FedGATE",
    "FedMTL",
    "FedNova",
    "FedOpt",
    "FedPAC",
    "FedPHP",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedRolex",
    "FedSGD",
    "FedVARP",
    "FjORD",
    "FlexLoRA",
    "HetLoRA",
    "HeteroFL",
    "KNNPer",
    "LGFedAvg",
    "LinearFedAvg",
    "LinearFedRep",
    "LocalOnly",
    "PFedMe",
    "PerFedAvg",
    "QFedAvg",
    "SlidingWindow",
]
