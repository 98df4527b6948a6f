"""Wherever an option is refused, the error has the name that was meant."""

import dataclasses

import jax
import optax
import pytest
from reference.small import clients_of, federation, model

import fedjax_srp as srp

DATA = federation(clients_of((3, 3), (2, 2)))
FEDAVG = srp.algorithms.FedAvg(model())
KEY = jax.random.key(0)


def simulated(**given):
    return srp.simulate(FEDAVG, DATA, num_rounds=1, key=KEY, progress=False, **given)


def several(**values):
    keys = KEY[None]
    options = {"num_rounds": 1, "keys": keys, "progress": False}
    return srp.simulate_seeds(FEDAVG, DATA, values=values, **options)


def planned(**options):
    return srp.grid(axes={"method": ["fedavg"]}, options=options, out="nowhere")


ROWS = {
    "part": (lambda: srp.SGD(lr=0.1), "learning_rate"),
    "algorithm": (lambda: srp.algorithms.FedRep(model(), head_epoch=3), "head_epochs"),
    "model": (lambda: srp.models.MLP((8, 8), 10, hiden=(3,)), "hidden"),
    "policy": (lambda: srp.participation.Doubling(inital=3), "initial"),
    "replaced": (lambda: dataclasses.replace(srp.SGD(0.1), lr=3), "learning_rate"),
    "method": (lambda: srp.methods.get("fedavg", dataset=DATA, lr=1), "learning_rate"),
    "model by name": (lambda: srp.models.get("mlp", DATA, hiden=(3,)), "hidden"),
    "optimizer": (lambda: srp.optimizer(optax.adam, lr=0.1), "learning_rate"),
    "values": (lambda: several(lr=[0.1]), "learning_rate"),
    "setting": (lambda: simulated(eval_evry=1), "eval_every"),
    "policy as text": (lambda: simulated(participation="Uniform(kk=1)"), "k"),
    "clock as text": (lambda: simulated(clock="Fixed(Exponential(rat=3))"), "rate"),
    "grid": (lambda: planned(lr=0.1), "learning_rate"),
    "data": (lambda: srp.data.load("digits", num_client=6), "num_clients"),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_name_that_was_meant_is_in_the_error(name):
    call, meant = ROWS[name]
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    assert f"did you mean {meant}" in message


def test_a_field_like_no_other_shows_all():
    with pytest.raises(
        TypeError, match=r"Training\(\) .*'lr'; it has optimizer, batch_size"
    ):
        srp.Training(lr=0.1)
