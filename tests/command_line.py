"""Commands of small runs on digits, and the same run in Python."""

import shlex

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp import History
from fedjax_srp.lab.commands import cli

TINY = shlex.split(
    "run --method srpfl --dataset digits --num-clients 10 --classes-per-client 3 --max-examples 10 --hidden 8 "
    "--head-epochs 1 --fine-tune-epochs 1 --initial 5 --rounds-per-stage 2 --num-rounds 4 --eval-every 2 --no-progress "
    "--devices 1"
)
WITH = ("--target", 0.99, "--communication", 10, "--seed", 3)
DATA = ("--dataset", "digits", "--num-clients", 10, "--classes-per-client", 3)
RUN = f"run {' '.join(map(str, DATA))}"
CLIENTS = {"num_clients": 10, "classes_per_client": 3, "max_examples": 10}
HISTORY = History("srpfl", [1], [0], [5], [1.0], [True], [True], np.ones(10))


def simulated(data, options=(), **run):
    tiny = {
        "hidden": (8,),
        "head_epochs": 1,
        "fine_tune_epochs": 1,
        "initial": 5,
        "rounds_per_stage": 2,
    }
    method = srp.methods.get("srpfl", dataset=data, **tiny, **dict(options))
    given = {
        "num_rounds": 4,
        "eval_every": 2,
        "key": jax.random.key(3),
        "progress": False,
        "devices": 1,
    }
    return srp.simulate(method, data, **given | run)


def main(*words):
    return cli.main([str(word) for word in words], set_up_cores=False)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_refusal(error, words):
    """Check that an error of the command line is one line with these words."""
    assert error.startswith("fedjax-srp: error: ")
    assert words in error
    assert error.count("\n") == 1
