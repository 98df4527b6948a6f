"""Gains of two choices on a CPU: each client is trained on the device that owns it, and XLA's options for copies.

    python benchmarks/waits.py [--repeats 15] [--quick] [--out FILE.json]

Rounds are timed in turn with the same rounds whose cohorts are divided among the devices regardless of ownership, so
that the states of every chunk move between devices, and with the same rounds compiled with XLA's default options. Each
ratio is their time over that of unchanged rounds: the median over pairs, with quartiles. 100 clients of 150 images,
batches of 10, a device for each core; "MLP" is 784-512-256-64-10.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness.measure import Rounds, in_turn, seconds, synthetic

import fedjax_srp as srp
from fedjax_srp import algorithms, models
from fedjax_srp.base import Array
from fedjax_srp.engine import program
from fedjax_srp.engine import round as engine_round
from fedjax_srp.engine.sharding import Layout

UNCHANGED, EXCHANGED, BY_DEFAULT = "as it is", "all states exchanged", "copies by XLA's default"


def without_owners(layout: Layout, client_ids: Array, size: Array, *more: Array) -> tuple[Array, ...]:
    """Replacement of `owners_first`: a cohort in its own order, with no client on its owner."""
    del layout, size
    return jnp.int32(0), client_ids, *more


def cases(clients: int, examples: int, hidden: tuple[int, ...]) -> dict[str, Callable[..., Rounds]]:
    """Rounds by name, made with options of `Rounds`."""
    data = synthetic(clients, examples)
    mlp, small = (models.MLP(data.example_shape, 10, widths) for widths in (hidden, hidden[-1:]))
    two = models.MLP(data.example_shape, 10, hidden, cut=f"fc{len(hidden)}")
    fedrep = functools.partial(Rounds, algorithms.FedRep(mlp, srp.Training(srp.SGD(0.01, momentum=0.5))), data)
    few = srp.participation.Fastest(max(1, clients // 10))
    return {
        "FedAvg, MLP": functools.partial(Rounds, algorithms.FedAvg(mlp), data),
        "FedRep, MLP": fedrep,
        "FedRep, MLP, evaluation": functools.partial(fedrep, evaluations=("fine_tune",)),
        "FedRep, MLP, a tenth takes part": functools.partial(fedrep, participation=few, length=4),
        "FedRep, MLP, data sharded": functools.partial(fedrep, shard_data=True),
        "FedRep, one hidden layer of 64": functools.partial(Rounds, algorithms.FedRep(small), data, length=2),
        "Local only, one hidden layer of 64": functools.partial(Rounds, algorithms.LocalOnly(small), data, length=2),
        "LG-FedAvg, MLP": functools.partial(Rounds, algorithms.LGFedAvg(two), data),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="toy sizes, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark/waits.json"))
    args = parser.parse_args(arguments)
    machine = {"cores": jax.device_count(), "processor": platform.machine(), "jax": jax.__version__}
    facts: dict[str, Any] = {"machine": machine, "repeats": args.repeats, "results": {}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name, rounds in cases(*((6, 20, (8, 4)) if args.quick else (100, 150, (512, 256, 64)))).items():
        changes = {
            UNCHANGED: contextlib.nullcontext(),
            EXCHANGED: unittest.mock.patch.object(engine_round, "owners_first", without_owners),
            BY_DEFAULT: unittest.mock.patch.object(program, "compiler_options", return_value={}),
        }
        runs: dict[str, Rounds] = {}
        calls: dict[str, Callable[[], float]] = {}
        for how, change in changes.items():
            program._shared.cache_clear()  # otherwise the previous program would be used
            with change:
                runs[how] = rounds()
                calls[how] = functools.partial(seconds, runs[how].evaluate if "evaluation" in name else runs[how])
                calls[how]()
        times = in_turn(calls, args.repeats)
        length, ours = runs[UNCHANGED].length, np.array(times[UNCHANGED])
        found: dict[str, Any] = {"seconds": round(float(np.median(ours)) / length, 4)}
        for how in list(runs)[1:]:
            ratios = np.array(times[how]) / ours
            found[how] = [round(float(np.quantile(ratios, q)), 3) for q in (0.5, 0.25, 0.75)]
        facts["results"][name] = found
        print(f"{name:36s} {found}", flush=True)
        args.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    srp.use_all_cores()
    main()
