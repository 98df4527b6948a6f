"""Calls of the public functions that nobody meant, and settings of JAX around them.

    python tests/attacks/wrong_calls.py [--out FILE.json]

Each is answered with one line, a ValueError that names what is wrong, or with what was asked for; whatever else comes
out is a traceback for the user. What was found stands in `wrong_calls.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_srp as srp

KEY = jax.random.key(0)
LONG, NUL, HUGE = "a" * 300, "a\0b", 10**400
NO_FOLDERS = (NUL, LONG, os.devnull, "/proc/nothing", 3)
NO_NUMBERS = (HUGE, -1, float("nan"), "one", None, [1], KEY)


def small():
    """A federation and a method that compile soon."""
    data = srp.data.load("digits", num_clients=4, classes_per_client=3, max_examples=6)
    return data, srp.methods.get("fedavg", dataset=data, hidden=(4,), epochs=1)


def calls(folder):
    """What is called -> a function of no arguments."""
    data, method = small()
    made = {}

    def simulate(**given):
        return srp.simulate(
            given.pop("method", method), data, **({"key": KEY, "num_rounds": 1, "progress": False} | given)
        )

    def seeds(**given):
        keys = given.pop("keys", jax.random.split(KEY, 2))
        return srp.simulate_seeds(method, data, **({"keys": keys, "num_rounds": 1, "progress": False} | given))

    def get(**given):
        return srp.methods.get("srpfl", **({"dataset": data} | given))

    def grid(**given):
        options = {"method": "fedavg", "dataset": "digits", "num_clients": 4} | given.pop("options", {})
        return srp.grid(**({"axes": {"seed": [0]}, "options": options, "out": folder / "g", "dry_run": True} | given))

    history = simulate()
    inputs, labels, rows = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1]), [[0, 1], [2, 3]]

    def arrays(x=inputs, y=labels, train=rows, test=rows, **given):
        return srp.data.from_arrays(x, y, x.copy(), y.copy(), train_indices=train, test_indices=test, **given)

    for place in NO_FOLDERS:
        made[f"History.save({place!r:.20})"] = lambda place=place: history.save(place)
        made[f"History.load({place!r:.20})"] = lambda place=place: srp.History.load(place)
        made[f"checkpoint_dir={place!r:.20}"] = lambda place=place: simulate(checkpoint_dir=place)
        made[f"grid out={place!r:.20}"] = lambda place=place: grid(out=place)
        made[f"grid file={place!r:.20}"] = lambda place=place: srp.grid(place)
        made[f"data.load({place!r:.20})"] = lambda place=place: srp.data.load(place, num_clients=2)
        made[f"json_lines({place!r:.20})"] = lambda place=place: srp.watch.json_lines(place)
        made[f"data.save({place!r:.20})"] = lambda place=place: srp.data.save(place, data)
        made[f"trace {place!r:.20}"] = lambda place=place: grid(options={"clock": f"trace:{place}"})
    for value in NO_NUMBERS:
        for name in ("num_rounds", "eval_every", "time_limit", "target", "chunk_size", "devices"):
            made[f"simulate {name}={value!s:.9}"] = lambda name=name, value=value: simulate(**{name: value})
        for name in ("learning_rate", "epochs", "initial", "rounds_per_stage", "batch_size", "head_layers"):
            made[f"get {name}={value!s:.9}"] = lambda name=name, value=value: get(**{name: value})
        made[f"Exponential({value!s:.9})"] = lambda value=value: srp.clocks.Exponential(value)
        made[f"time_to({value!s:.9})"] = lambda value=value: history.time_to(value)
        made[f"summary({value!s:.9})"] = lambda value=value: history.summary(communication=value)
        made[f"num_clients={value!s:.9}"] = lambda value=value: srp.data.load("digits", num_clients=value)
    for name in ("", "\0", 3, b"x", ["a"]):
        made[f"simulate name={name!r}"] = lambda name=name: simulate(name=name)
        made[f"get {name!r}"] = lambda name=name: srp.methods.get(name, dataset=data)
        made[f"model={name!r}"] = lambda name=name: get(model=name)
        made[f"data.load {name!r}"] = lambda name=name: srp.data.load(name)
        made[f"scores({name!r})"] = lambda name=name: history.scores(name)
    return made | {
        "jit": lambda: jax.jit(lambda key: simulate(key=key).compute_time)(KEY),
        "vmap": lambda: jax.vmap(lambda key: simulate(key=key).compute_time)(jax.random.split(KEY, 2)),
        "jit of seeds": lambda: jax.jit(lambda keys: seeds(keys=keys)[0].compute_time)(jax.random.split(KEY, 2)),
        "grad": lambda: jax.grad(lambda rate: simulate(method=get(learning_rate=rate)).final_accuracy)(0.1),
        "disable_jit": lambda: _within(jax.disable_jit(), simulate),
        "debug_nans": lambda: _within(jax.debug_nans(True), simulate),
        "debug_infs": lambda: _within(jax.debug_infs(True), simulate),
        "no metric": lambda: history.metrics["training_loss"],
        "shared model": lambda: srp.methods.get("fedavg", dataset=data, shared={"model": "mlp"}),
        "dense on images": lambda: simulate(
method=srp.algorithms.FedAvg(srp.models.Split((8, 8), 10, [srp.models.Layer("out", nn.Dense(10))]))
        ),
        "an output too few": lambda: simulate(method=srp.algorithms.FedAvg(srp.models.MLP((8, 8), 9, hidden=(4,)))),
        "masked": lambda: arrays(np.ma.masked_array(inputs, inputs > 2)),
        "big-endian": lambda: arrays(inputs.astype(">f4"), labels.astype(">i8")),
        "complex": lambda: arrays(inputs.astype("c8")),
        "scale=0": lambda: arrays(scale=0),
        "classes": lambda: arrays(num_classes=2**31 - 1),
        "shared rows": lambda: srp.data.from_arrays(*[inputs, labels] * 2, train_indices=rows, test_indices=rows),
        "rows": lambda: arrays(train=[[0, 1], [2, 99]]),
        "no rows": lambda: arrays(train=[[], [1]]),
        "floats as labels": lambda: arrays(y=labels + 0.5),
        "a method for data": lambda: srp.simulate(data, method, key=KEY, num_rounds=1),
        "a class": lambda: srp.simulate(srp.algorithms.FedAvg, data, key=KEY, num_rounds=1),
        "an old key": lambda: simulate(key=jax.random.PRNGKey(0)),
        "a seed": lambda: simulate(key=0),
        "several keys": lambda: simulate(key=jax.random.split(KEY, 2)),
        "one key of several": lambda: seeds(keys=KEY),
        "no keys": lambda: seeds(keys=jax.random.split(KEY, 0)),
        "values": lambda: seeds(values={"learning_rate": jnp.ones(3)}),
        "values of nothing": lambda: seeds(values={"nothing": jnp.ones(2)}),
        "callback": lambda: simulate(callback=3),
        "evaluations": lambda: simulate(evaluations=3),
        "a grid of nothing": lambda: grid(axes={"nothing": [1]}),
        "a grid without values": lambda: grid(axes={"seed": []}),
        "workers": lambda: grid(workers=-1),
    }  # fmt: skip


def _within(context, call):
    with context:
        return call()


def answer(call):
    """Return what became of a call, and what was said."""
    try:
        call()
    except (ValueError, KeyError, OSError) as error:
        said = str(error.args[0] if isinstance(error, KeyError) else error)
        names_a_file = isinstance(error, OSError) and error.filename is not None
        is_line = "\n" not in said and 15 < len(said) < 900 and said != "embedded null byte"
        if isinstance(error, OSError) and not names_a_file and not isinstance(error, FileNotFoundError):
            is_line = False
        return ("refused" if is_line else "tracebacks"), f"{type(error).__name__}: {said}"
    except Exception as error:
        return "tracebacks", f"{type(error).__name__}: {str(error)[:300]}"
    return "accepted", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--say", action="store_true", help="print every answer")
    given = parser.parse_args()
    found, wrong = {"calls": 0, "refused": 0, "accepted": 0, "tracebacks": 0}, []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, call in calls(Path(folder)).items():
            outcome, said = answer(call)
            found["calls"] += 1
            found[outcome] += 1
            if given.say or outcome == "tracebacks":
                print(f"{outcome:<10} {name}: {said[:250]}", flush=True)
            wrong += [name] * (outcome == "tracebacks")
    print(json.dumps(found))
    if given.out:
        given.out.write_text(json.dumps(found) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
