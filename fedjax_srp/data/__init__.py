"""Federated data sets: labelled examples on the device and which client owns which of them.

`load` takes a named source or a file and partitions it; `from_arrays` takes your own arrays and your own partition;
`partition` holds the ways of dividing examples, as functions of labels, sizes and a seed. `prepare` turns the original
archives of named sources into what `load` reads.
"""

from fedjax_srp.data import partition
from fedjax_srp.data.archives import prepare
from fedjax_srp.data.arrays import from_arrays
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.linear import LinearTask, linear_task
from fedjax_srp.data.raw import RawArrays
from fedjax_srp.data.records import data_folder
from fedjax_srp.data.sources import NORMALISATION, SOURCES, is_ready, load, names

__all__ = [
    "NORMALISATION",
    "SOURCES",
    "FederatedData",
    "LinearTask",
    "RawArrays",
    "data_folder",
    "from_arrays",
    "is_ready",
    "linear_task",
    "load",
    "names",
    "partition",
    "prepare",
]
