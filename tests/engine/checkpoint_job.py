"""The run of `test_checkpoint`, importable by the process that is killed during it."""

import os

import jax
from reference.small import clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp.engine.checkpoint import Checkpoints

CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
POLICY = srp.participation.Doubling(2, 2, pool=5, redraw="stage")  # its state holds a key
ALGORITHM = srp.algorithms.FedPer(model(hidden=(4,)), srp.Training(srp.SGD(0.2), batch_size=4))
CLIENTS = clients_of((1, 9, 4, 7, 2, 5, 3), (6,) * 7)
DATA = federation(CLIENTS)


def run(directory=None, num_rounds=6, algorithm=ALGORITHM, data=DATA, policy=POLICY, seed=11, **options):
    given = {"clock": CLOCK, "eval_every": 2, "devices": 2, "chunk_size": 2, "progress": False}
    key = {"key": jax.random.key(seed)}
    return srp.simulate(
        algorithm, data, participation=policy, num_rounds=num_rounds, checkpoint_dir=directory, **key | given | options
    )


def run_and_die_after(directory, saves):
    """End the process as kill -9 does, while it writes the checkpoint after the first `saves`."""
    save, count = Checkpoints.save, 0

    def die(*args, **options):
        os._exit(9)

    def counting(self, *args):
        nonlocal count
        count += 1
        if count > saves:
            os.replace = os.rename = die  # one of them publishes the written folder
        save(self, *args)

    Checkpoints.save = counting
    run(directory)
