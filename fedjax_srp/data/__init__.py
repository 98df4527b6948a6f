"""Federated data sets: labelled examples on the device, and each client's indices into them.

`load` takes a named source or a file and partitions it; `from_arrays` takes your own
arrays and your own partition, and `from_frame` a data frame; `partition` has partitions as functions of labels, sizes
and a seed; `save` writes a federation to a file. `prepare` converts the original archives
of named sources to files for `load`. For tuning, `holdout` tests clients on a share of
their training data; `training_loss` scores them by their training loss; `holdout_clients`
holds out clients.
"""

from fedjax_srp.data import partition
from fedjax_srp.data.archives import prepare
from fedjax_srp.data.arrays import from_arrays
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.frame import from_frame
from fedjax_srp.data.holdout import holdout, holdout_clients
from fedjax_srp.data.huggingface import from_huggingface
from fedjax_srp.data.layouts import LAYOUTS
from fedjax_srp.data.linear_regression import LinearRegression, linear_regression
from fedjax_srp.data.next_tokens import NextTokens, next_tokens
from fedjax_srp.data.next_words import next_words
from fedjax_srp.data.npz import save
from fedjax_srp.data.partition_file import read_partition
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.records import data_folder
from fedjax_srp.data.shift import shift_features
from fedjax_srp.data.sources import NORMALISATION, SOURCES, is_ready, load, names
from fedjax_srp.data.training_loss import TrainingLoss, training_loss
from fedjax_srp.linear.task import LinearTask, linear_task

__all__ = [
    "LAYOUTS",
    "NORMALISATION",
    "SOURCES",
    "FederatedData",
    "LinearRegression",
    "LinearTask",
    "NextTokens",
    "RawArrays",
    "TrainingLoss",
    "data_folder",
    "from_arrays",
    "from_frame",
    "from_huggingface",
    "holdout",
    "holdout_clients",
    "is_ready",
    "linear_regression",
    "linear_task",
    "load",
    "names",
    "next_tokens",
    "next_words",
    "partition",
    "prepare",
    "read_partition",
    "save",
    "shift_features",
    "training_loss",
]
