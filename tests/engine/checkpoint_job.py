"""The run of `test_checkpoint`, importable by the process that is killed during it."""

import os

import jax
from reference.small import NUM_CLASSES, clients_of, federation

import fedjax_srp as srp
from fedjax_srp import ClientOutput, FederatedAlgorithm
from fedjax_srp.driver.checkpoint import Checkpoints

CLOCK = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
POLICY = srp.participation.Doubling(2, 2, pool=5, redraw="stage")  # its state holds a key


@srp.part
class Drift(FederatedAlgorithm):
    """Weights of all and a number of each client, which move at random; a round compiles in a moment."""

    rate: float = 0.2
    draws: int = 1

    def init(self, key, data):
        return jax.random.normal(key, (NUM_CLASSES,))

    def init_client(self, key, server, data):
        return jax.random.normal(key)

    def client(self, key, broadcast, state, data, context):
        noise = self.rate * jax.random.normal(key, (self.draws, NUM_CLASSES)).mean(0)
        return ClientOutput(broadcast + state * noise, state + noise.sum())

    def server(self, key, server, mean, context):
        return mean

    @srp.evaluation
    def own(self, key, server, state, data):
        return lambda x: x[:, :NUM_CLASSES] * server[None] + state


ALGORITHM = Drift()
CLIENTS = clients_of((1, 9, 4, 7, 2, 5, 3), (6,) * 7)
DATA = federation(CLIENTS)


def run(
    directory=None,
    num_rounds=6,
    algorithm=ALGORITHM,
    data=DATA,
    policy=POLICY,
    seed=11,
    **options,
):
    given = {
        "clock": CLOCK,
        "eval_every": 2,
        "devices": 2,
        "chunk_size": 2,
        "progress": False,
    }
    key = {"key": jax.random.key(seed)}
    return srp.simulate(
        algorithm,
        data,
        participation=policy,
        num_rounds=num_rounds,
        checkpoint_dir=directory,
        **key | given | options,
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
