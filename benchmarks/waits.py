"""Gains of two choices on a CPU: each client is trained on the device that owns it, and XLA's options for copies.

    python benchmarks/waits.py [--repeats 15] [--quick] [--out FILE.json]

Rounds are timed in turn with the same rounds whose cohorts are divided among the devices regardless of ownership, so
that the states of every chunk move between devices, and with the same rounds compiled with XLA's default options. Each
ratio is their time over that of unchanged rounds: the median over pairs, with quartiles. 100 clients of 150 images,
batches of 10, a device for each core; "MLP" is 784-512-256-64-10.
"""

from __future__ import annotations

import contextlib
import functools
import unittest.mock
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from harness.command import parser, write
from harness.measure import Rounds, in_turn, machine, ratios, seconds, synthetic

import fedjax_srp as srp
from fedjax_srp import algorithms, models
from fedjax_srp.base import Array
from fedjax_srp.driver import programs as program
from fedjax_srp.rounds import round as engine_round
from fedjax_srp.rounds.sharding import Layout

UNCHANGED = "as it is"
EXCHANGED = "all states exchanged"
BY_DEFAULT = "copies by XLA's default"


def without_owners(
    layout: Layout, client_ids: Array, size: Array, *more: Array
) -> tuple[Array, ...]:
    """Replacement of `owners_first`: a cohort in its own order, with no client on its owner."""
    del layout, size
    return jnp.int32(0), client_ids, *more


def cases(
    clients: int, examples: int, hidden: tuple[int, ...]
) -> dict[str, Callable[..., Rounds]]:
    """Rounds by name, made with options of `Rounds`."""
    data = synthetic(clients, examples)
    mlp, small = (
        models.MLP(data.example_shape, 10, widths) for widths in (hidden, hidden[-1:])
    )
    two = models.MLP(data.example_shape, 10, hidden, cut=f"fc{len(hidden)}")
    fedrep = functools.partial(
        Rounds, algorithms.FedRep(mlp, srp.Training(srp.SGD(0.01, momentum=0.5))), data
    )
    few = srp.participation.Fastest(max(1, clients // 10))
    return {
        "FedAvg, MLP": functools.partial(Rounds, algorithms.FedAvg(mlp), data),
        "FedRep, MLP": fedrep,
        "FedRep, MLP, evaluation": functools.partial(fedrep, evaluations=("fine_tune",)),
        "FedRep, MLP, a tenth takes part": functools.partial(
            fedrep, participation=few, length=4
        ),
        "FedRep, MLP, data sharded": functools.partial(fedrep, shard_data=True),
        "FedRep, one hidden layer of 64": functools.partial(
            Rounds, algorithms.FedRep(small), data, length=2
        ),
        "Local only, one hidden layer of 64": functools.partial(
            Rounds, algorithms.LocalOnly(small), data, length=2
        ),
        "LG-FedAvg, MLP": functools.partial(Rounds, algorithms.LGFedAvg(two), data),
    }


def main(arguments: list[str] | None = None) -> None:
    command = parser(__doc__, 15)
    command.add_argument(
        "--quick", action="store_true", help="toy sizes, to check that it runs"
    )
    args = command.parse_args(arguments)
    results: dict[str, Any] = {
        "machine": machine(),
        "repeats": args.repeats,
        "results": {},
    }
    for name, rounds in cases(
        *((6, 20, (8, 4)) if args.quick else (100, 150, (512, 256, 64)))
    ).items():
        changes = {
            UNCHANGED: contextlib.nullcontext(),
            EXCHANGED: unittest.mock.patch.object(
                engine_round, "owners_first", without_owners
            ),
            BY_DEFAULT: unittest.mock.patch.object(
                program, "compiler_options", return_value={}
            ),
        }
        calls: dict[str, Callable[[], float]] = {}
        for how, change in changes.items():
            program._jitted.cache_clear()  # otherwise the previous program would be used
            with change:
                run = rounds()
                calls[how] = functools.partial(
                    seconds, run.evaluate if "evaluation" in name else run
                )
                calls[how]()
        times = in_turn(calls, args.repeats)
        found: dict[str, Any] = {
            "seconds": float(np.median(times[UNCHANGED])) / run.length
        }
        for how in (EXCHANGED, BY_DEFAULT):
            found[how] = np.quantile(
                ratios(times, how, UNCHANGED), (0.5, 0.25, 0.75)
            ).tolist()
        results["results"][name] = found
        print(f"{name:36s} {found}", flush=True)
        write(args.out, results)


if __name__ == "__main__":
    srp.use_all_cores()
    main()
