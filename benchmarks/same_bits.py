"""Compare two commits bit by bit: a hash of every result of short runs of all methods.

    python benchmarks/same_bits.py --out before.json       # on the one commit
    python benchmarks/same_bits.py --compare before.json   # on the other, with the same JAX on the same machine

Three rounds on digits with 12 clients: every method of the registry with a fixed and a dynamic clock, its own
participation and another one, with momentum; with other options; some without momentum; the seeds of a batch; linear
tasks. A hash covers shapes, types and bytes of the final states of server and clients, of all evaluations, times,
cohorts, metrics and traffic. A run that fails has its error instead of a hash, and the others go on.

The compiler may fuse a multiplication and an addition, with one rounding, depending on the rest of the program. So
commits with the same computation may differ in last bits; with `XLA_FLAGS=--xla_cpu_max_isa=AVX`, which has no such
instruction, they do not.

`--compare` prints the runs that differ, with the parts that do, and exits with 1 if there are any. `--only REGEX`
restricts the runs, and `--quick` compiles without optimizations, which gives other bits in a third of the time. To
test the code of another folder: `PYTHONPATH=FOLDER python same_bits.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_srp as srp

Run = Callable[[], list[srp.History]]
PARTS = ("server", "clients", "accuracy", "time")
NUM_CLIENTS = 12
NUM_ROUNDS = 3
# Flags of tests/conftest.py.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
QUICK_010 = "--xla_cpu_use_fusion_emitters=false"  # later versions abort at the name

CLOCKS = {
    "fixed": srp.clocks.Fixed(srp.clocks.Exponential(1.0)),
    "dynamic": srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Uniform(1 / NUM_CLIENTS, 1.0))
    ),
}
DOUBLING = srp.participation.Doubling(initial=3, rounds_per_stage=1)
DOUBLED = (
    "srpfl",
    "lg_srpfl",
    "flanp_fedavg",
    "flanp_fedavg_ft",
)  # double by default; their other policy is `full`
POLICY = {
    "initial": 3,
    "rounds_per_stage": 1,
    "k": 2,
}  # each policy takes those that it reads
TRAINING = {"learning_rate": 0.05, "momentum": 0.5}
OTHERS = {
    "epochs": 2,
    "batch_size": 7,
    "weighting": "num_examples",
    "weight_decay": 1e-3,
    "fine_tune_epochs": 3,
}
# Further cases, on the dynamic clock: method, participation, options. With this seed l2gd trains, aggregates and trains
# again; with that of the other runs it aggregates before any client has trained.
MORE_SEED = 10
MORE: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "l2gd, often local": ("l2gd", None, {"aggregation_probability": 0.5}),
    "l2gd, often local, doubling": ("l2gd", "doubling", {"aggregation_probability": 0.5}),
    "apfl, adaptive": ("apfl", None, {"adaptive": True}),
    "hf_maml, two inner steps": (
        "hf_maml",
        None,
        {"support_fraction": 0.5, "inner_steps": 2},
    ),
    "scaffold, small server steps": (
        "scaffold",
        None,
        {"server_step_size": 0.5, "counts_momentum": False},
    ),
    "fedgate, small server steps": ("fedgate", "doubling", {"server_step_size": 0.5}),
    "fedbuff, small server steps": (
        "fedbuff",
        None,
        {"server_step_size": 0.5, "staleness_exponent": 1.0},
    ),
    "fedrep, a pool": (
        "fedrep",
        None,
        {"pool": 6, "fine_tune_optimizer.momentum": 0.9, "representation_epochs": 2},
    ),
    "srpfl, a pool of each stage": (
        "srpfl",
        None,
        {"pool": 8, "redraw": "stage", "by": "expected"},
    ),
    "fedrep, the criterion": (
        "fedrep",
        "statistical_accuracy",
        {"by": "realised", "first_threshold": 0.5},
    ),
    "fedavg, the fastest": ("fedavg", "fastest", {"by": "expected"}),
    "fedrep, partial work": ("fedrep", "partial_work", {"max_work": 3}),
    "fedavg, fine-tuned": ("fedavg", "uniform", {"evaluation": "fine_tune"}),
}


def method(
    name: str,
    data: Any,
    shared: dict[str, Any],
    participation: str | None = None,
    **options: Any,
) -> Any:
    """A method of the registry on a small model; it takes those of the shared options that it reads."""
    hidden = (16,)
    if name.startswith("lg_"):  # heads of two layers
        hidden = (16, 8)
    options |= {"participation": participation, "shared": POLICY | shared}
    return srp.methods.get(name, dataset=data, hidden=hidden, **options)


def linear_algorithms(task: Any) -> dict[str, Any]:
    fedrep = partial(
        srp.algorithms.LinearFedRep, task, step_size=0.1, samples_per_round=10
    )
    return {
        "linear_fedrep": fedrep(),
        "linear_fedrep, full": fedrep(sampling="full"),
        "linear_fedrep, 2 steps": fedrep(head=2, sampling="fixed", start="random"),
        "linear_fedavg": srp.algorithms.LinearFedAvg(task, step_size=0.4),
    }


def simulated(
    make: Callable[[], Any], data: Any, clock: str, seed: int = 7, **options: Any
) -> list[srp.History]:
    """One run, or those of several keys."""
    options |= {
        "clock": CLOCKS[clock],
        "num_rounds": NUM_ROUNDS,
        "eval_every": NUM_ROUNDS,
    }
    options |= {"evaluations": "all", "keep_clients": True, "progress": False}
    if "keys" in options:
        return srp.simulate_seeds(make(), data, **options)
    return [srp.simulate(make(), data, key=jax.random.key(seed), **options)]


def runs() -> dict[str, Run]:
    """Every run by name, to be built when it is called."""
    data = srp.data.load("digits", num_clients=NUM_CLIENTS, classes_per_client=4)
    made: dict[str, Run] = {}

    def add(
        label: str,
        name: str,
        clock: str,
        shared: dict[str, Any],
        seed: int = 7,
        **options: Any,
    ) -> None:
        made[label] = partial(
            simulated, partial(method, name, data, shared, **options), data, clock, seed
        )

    for name in srp.methods.names():
        for clock in ("fixed", "dynamic"):
            add(f"{name}, {clock}, own", name, clock, {}, **TRAINING)
            other = "full" if name in DOUBLED else "doubling"
            add(
                f"{name}, {clock}, {other}",
                name,
                clock,
                {},
                participation=other,
                **TRAINING,
            )
        is_uniform = getattr(
            srp.methods.recipe(name.removesuffix("_ft")).factory,
            "requires_uniform_weighting",
            False,
        )
        others = {o: v for o, v in OTHERS.items() if o != "weighting" or not is_uniform}
        add(f"{name}, fixed, own, other options", name, "fixed", others, **TRAINING)
    for name in ("fedavg", "fedrep", "scaffold"):
        add(f"{name}, fixed, own, no momentum", name, "fixed", {}, learning_rate=0.05)
    for name in ("fedavg", "scaffold"):
        add(f"{name}, fixed, own, steps", name, "fixed", {}, steps=3, **TRAINING)
    for label, (name, participation, options) in MORE.items():
        add(
            f"more: {label}",
            name,
            "dynamic",
            {},
            MORE_SEED,
            participation=participation,
            **TRAINING,
            **options,
        )
    keys = jax.random.split(jax.random.key(7), 2)
    fedavg = partial(method, "fedavg", data, {}, **TRAINING)
    made["fedavg, two seeds"] = partial(
        simulated, fedavg, data, "fixed", keys=keys, values={"learning_rate": [0.05, 0.1]}
    )
    task = srp.data.linear_task(
        jax.random.key(0), num_clients=NUM_CLIENTS, dim=10, rank=2, noise_std=0.1
    )
    for name, algorithm in linear_algorithms(task).items():
        made[f"{name}, fixed, own"] = partial(
            simulated, lambda a=algorithm: a, task, "fixed"
        )
        made[f"{name}, dynamic, doubling"] = partial(
            simulated, lambda a=algorithm: a, task, "dynamic", participation=DOUBLING
        )
    return made


def results(history: srp.History) -> dict[str, Any]:
    """Part of a run -> its arrays, some with names.

    Raises:
        ValueError: a run without anything to compare.
    """
    rounds = (history.round, history.stage, history.cohort_size, history.compute_time)
    flags = (history.communicated, history.finite, history.client_time)
    traffic = (history.bytes_up, history.bytes_down)
    if not jax.tree.leaves(history.server_state) or not history.accuracies:
        raise ValueError("no final state or no evaluation: there is nothing to compare")
    return {
        "server": jax.tree.leaves(history.server_state),
        "clients": jax.tree.leaves(history.client_states),
        "accuracy": (*history.accuracies.items(), history.eval_round, history.test_count),
        "time": (*rounds, *flags, *traffic, *sorted(history.metrics.items())),
    }


def digest(values: Any) -> str:
    """SHA-256 over names, shapes, types and bytes, in this order."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, list | tuple):
            found.update(f"[{len(value)}]".encode())
            for each in value:
                add(each)
        elif isinstance(value, str):
            found.update(f"{value!r}".encode())
        else:
            if isinstance(value, jax.Array) and jax.dtypes.issubdtype(
                value.dtype, jax.dtypes.prng_key
            ):
                value = jax.random.key_data(value)
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise TypeError(
                    f"{type(value).__name__} is no array: its bytes are no value"
                )
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())

    add(values)
    return found.hexdigest()


def hashes(run: Run) -> tuple[str, dict[str, str]]:
    """Hash of a run and of each part; the error of a run that fails."""
    try:
        by_history = [results(history) for history in run()]
        parts = {part: digest([found[part] for found in by_history]) for part in PARTS}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"error: {type(error).__name__}: {lines[0][:200]}", {}
    return digest(list(parts.values())), parts


def differences(ours: dict[str, Any], theirs: dict[str, Any], only: str) -> list[str]:
    """A line for every run that differs or exists on one side only."""
    lines = [
        f"{fact}: {ours[fact]} here, {theirs.get(fact)} there: hashes of these cannot be compared"
        for fact in ("quick", "jax")
        if ours[fact] != theirs.get(fact)
    ]
    names = dict.fromkeys([*theirs["runs"], *ours["runs"]])
    for name in (name for name in names if re.search(only, name)):
        one = ours["runs"].get(name, "no such run")
        other = theirs["runs"].get(name, "no such run")
        if one == other:
            continue
        if name in ours["parts"] and name in theirs["parts"]:
            parts = [
                part
                for part in PARTS
                if ours["parts"][name][part] != theirs["parts"][name][part]
            ]
            lines.append(f"{name}: {', '.join(parts)}")
        else:
            lines.append(f"{name}: {one} here, {other} there")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="file for the hashes, JSON; written after every run"
    )
    parser.add_argument("--compare", type=Path, help="hashes of another commit")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="regular expression of names of runs"
    )
    parser.add_argument(
        "--quick", action="store_true", help="compile quickly, as the tests do"
    )
    args = parser.parse_args()
    if args.quick:
        flags = [os.environ.get("XLA_FLAGS", ""), QUICK]
        if jax.__version__.startswith("0.10."):
            flags.append(QUICK_010)
        # Read when the first program is compiled.
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    jax.config.update("jax_enable_compilation_cache", False)
    print(
        f"code of {Path(srp.__file__).parent}, jax {jax.__version__}, {jax.devices()}",
        flush=True,
    )
    facts: dict[str, Any] = {
        "quick": args.quick,
        "jax": jax.__version__,
        "processor": platform.machine(),
    }
    facts |= {"seconds": 0.0, "runs": {}, "parts": {}}
    chosen = {name: run for name, run in runs().items() if re.search(args.only, name)}
    begin = time.perf_counter()
    for number, (name, run) in enumerate(chosen.items(), 1):
        before = time.perf_counter()
        facts["runs"][name], parts = hashes(run)
        if parts:
            facts["parts"][name] = parts
        facts["seconds"] = round(time.perf_counter() - begin, 1)
        took = time.perf_counter() - before
        outcome = facts["runs"][name]
        if parts:  # a hash, not an error
            outcome = outcome[:12]
        print(f"{number}/{len(chosen)} {took:5.1f} s  {name}: {outcome}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    failed = sum(found.startswith("error: ") for found in facts["runs"].values())
    print(f"{len(chosen)} runs, {failed} of them with an error, {facts['seconds']:.0f} s")
    if args.compare:
        lines = differences(facts, json.loads(args.compare.read_text("utf-8")), args.only)
        if lines:
            print("\n".join(lines))
        else:
            print(f"the same bits as {args.compare}")
        raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
