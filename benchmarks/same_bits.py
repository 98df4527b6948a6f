"""Whether two commits compute the same bits: a hash of every result of short runs of all methods.

    python benchmarks/same_bits.py --out before.json       # on the one commit
    python benchmarks/same_bits.py --compare before.json   # on the other, with the same JAX on the same machine

Three rounds on digits with 12 clients: every method of the registry with a fixed and a dynamic clock, its own
participation and another one, with momentum; with other options; some without momentum; the seeds of a batch; linear
tasks. A hash covers shapes, types and bytes of the final states of server and clients, of all evaluations, times,
cohorts, metrics and traffic. A run that fails has its error instead of a hash, and the others go on.

A compiler may contract a multiplication and an addition into one rounding, and where it does depends on what else is in
the program. So commits that compute the same may differ in last bits; `XLA_FLAGS=--xla_cpu_max_isa=AVX`, a machine
without such an instruction, tells that apart from another computation.

`--compare` prints the runs that differ, with the parts that do, and exits with 1 if there are any. `--only REGEX`
restricts the runs, and `--quick` compiles without optimizations, which gives other bits in a third of the time. To
read code of another folder: `PYTHONPATH=FOLDER python same_bits.py`.
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
NUM_CLIENTS, NUM_ROUNDS = 12, 3
# Those of tests/conftest.py.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
QUICK_010 = "--xla_cpu_use_fusion_emitters=false"  # later versions abort at the name

# Names of before the refactoring, tried where there are no new ones. To be deleted when nobody compares with it.
OLD_OPTIONS = {
    "fine_tune_optimizer.momentum": "fine_tune_momentum",
    "epochs": "local_epochs",
    "steps": "local_steps",
    "weighting": "client_weighting",
}


def named(module: Any, new: str, old: str) -> Any:
    """A class by its new name, or the function of the old name."""
    return getattr(module, new) if hasattr(module, new) else getattr(module, old)


def spelled(options: dict[str, Any]) -> dict[str, Any]:
    """Options as this commit calls them."""
    is_old = "local_epochs" in srp.methods.option_names("fedavg")
    return {OLD_OPTIONS.get(name, name) if is_old else name: value for name, value in options.items()}


def clocks() -> dict[str, Any]:
    exponential, uniform = named(srp.clocks, "Exponential", "exponential"), named(srp.clocks, "Uniform", "uniform")
    return {
        "fixed": named(srp.clocks, "Fixed", "fixed")(exponential(1.0)),
        "dynamic": named(srp.clocks, "Dynamic", "dynamic")(exponential(uniform(1 / NUM_CLIENTS, 1.0))),
    }


def doubling() -> Any:
    return named(srp.participation, "Doubling", "doubling")(initial=3, rounds_per_stage=1)


_START = "start" if hasattr(srp.algorithms, "LinearFedRep") else "init"
MEANS_ARE_UNIFORM = ("local_only", "scaffold", "scaffold_ft", "fed_mtl")  # which refuse another weighting now


def linear_algorithms(task: Any) -> dict[str, Any]:
    fedrep = named(srp.algorithms, "LinearFedRep", "linear_fedrep")
    fedavg = named(srp.algorithms, "LinearFedAvg", "linear_fedavg")
    return {
        "linear_fedrep": fedrep(task, step_size=0.1, samples_per_round=10),
        "linear_fedrep, full": fedrep(task, step_size=0.1, samples_per_round=10, sampling="full"),
        "linear_fedrep, 2 steps": fedrep(
            task, step_size=0.1, samples_per_round=10, head=2, sampling="fixed", **{_START: "random"}
        ),
        "linear_fedavg": fedavg(task, step_size=0.4),
    }


# End of the names.

DOUBLED = ("srpfl", "lg_srpfl", "flanp_fedavg", "flanp_fedavg_ft")  # of themselves; the other policy is `full`
POLICY = {"initial": 3, "rounds_per_stage": 1, "k": 3}  # each of those that a policy reads
TRAINING = {"learning_rate": 0.05, "momentum": 0.5}
OTHERS = {"epochs": 2, "batch_size": 7, "weighting": "num_examples", "weight_decay": 1e-3, "fine_tune_epochs": 3}
# What the runs above leave out, on the dynamic clock: method, its participation, options. With this key l2gd trains,
# aggregates and trains again; above it aggregates before anybody has trained.
MORE_SEED = 10
MORE: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "l2gd, often local": ("l2gd", None, {"aggregation_probability": 0.5}),
    "l2gd, often local, doubling": ("l2gd", "doubling", {"aggregation_probability": 0.5}),
    "apfl, adaptive": ("apfl", None, {"adaptive": True}),
    "hf_maml, two inner steps": ("hf_maml", None, {"support_fraction": 0.5, "inner_steps": 2}),
    "scaffold, small server steps": ("scaffold", None, {"server_step_size": 0.5, "counts_momentum": False}),
    "fedgate, small server steps": ("fedgate", "doubling", {"server_step_size": 0.5}),
    "fedbuff, small server steps": ("fedbuff", None, {"server_step_size": 0.5, "staleness_exponent": 1.0}),
    "fedrep, a pool": ("fedrep", None, {"pool": 6, "fine_tune_optimizer.momentum": 0.9, "representation_epochs": 2}),
    "srpfl, a pool of each stage": ("srpfl", None, {"pool": 8, "redraw": "stage", "by": "expected"}),
    "fedrep, the criterion": ("fedrep", "statistical_accuracy", {"by": "realised"}),
    "fedavg, the fastest": ("fedavg", "fastest", {"by": "expected"}),
    "fedrep, partial work": ("fedrep", "partial_work", {"max_work": 3}),
    "fedavg, fine-tuned": ("fedavg", "uniform", {"evaluation": "fine_tune"}),
}


def method(name: str, data: Any, shared: dict[str, Any], participation: str | None = None, **options: Any) -> Any:
    """A method of the registry on a small model; of the shared options it takes what it reads."""
    hidden = (16, 8) if name.startswith("lg_") else (16,)  # heads of two layers
    shared = spelled(POLICY | shared)
    options = spelled(options)
    return srp.methods.get(name, dataset=data, hidden=hidden, participation=participation, shared=shared, **options)


def simulated(make: Callable[[], Any], data: Any, clock: str, seed: int = 7, **options: Any) -> list[srp.History]:
    """One run, or those of several keys."""
    options |= {"clock": clocks()[clock], "num_rounds": NUM_ROUNDS, "eval_every": NUM_ROUNDS}
    options |= {"evaluations": "all", "keep_clients": True, "progress": False}
    if "keys" in options:
        return srp.simulate_seeds(make(), data, **options)
    return [srp.simulate(make(), data, key=jax.random.key(seed), **options)]


def on_task(name: str, task: Any, clock: str, with_doubling: bool) -> list[srp.History]:
    participation = doubling() if with_doubling else None
    return simulated(lambda: linear_algorithms(task)[name], task, clock, participation=participation)


def runs() -> dict[str, Run]:
    """Every run by name, nothing made yet."""
    data = srp.data.load("digits", num_clients=NUM_CLIENTS, classes_per_client=4)
    made: dict[str, Run] = {}

    def add(label: str, name: str, clock: str, shared: dict[str, Any], seed: int = 7, **options: Any) -> None:
        made[label] = partial(simulated, partial(method, name, data, shared, **options), data, clock, seed)

    for name in srp.methods.names():
        for clock in ("fixed", "dynamic"):
            add(f"{name}, {clock}, own", name, clock, {}, **TRAINING)
            other = "full" if name in DOUBLED else "doubling"
            add(f"{name}, {clock}, {other}", name, clock, {}, participation=other, **TRAINING)
        others = {o: v for o, v in OTHERS.items() if o != "weighting" or name not in MEANS_ARE_UNIFORM}
        add(f"{name}, fixed, own, other options", name, "fixed", others, **TRAINING)
    for name in ("fedavg", "fedrep", "scaffold"):
        add(f"{name}, fixed, own, no momentum", name, "fixed", {}, learning_rate=0.05)
    for name in ("fedavg", "scaffold"):
        add(f"{name}, fixed, own, steps", name, "fixed", {}, steps=3, **TRAINING)
    for label, (name, participation, options) in MORE.items():
        add(f"more: {label}", name, "dynamic", {}, MORE_SEED, participation=participation, **TRAINING, **options)
    keys = jax.random.split(jax.random.key(7), 2)
    fedavg = partial(method, "fedavg", data, {}, **TRAINING)
    made["fedavg, two seeds"] = partial(
        simulated, fedavg, data, "fixed", keys=keys, values={"learning_rate": [0.05, 0.1]}
    )
    task = srp.data.linear_task(jax.random.key(0), num_clients=NUM_CLIENTS, dim=10, rank=2, noise_std=0.1)
    for name in ("linear_fedrep", "linear_fedrep, full", "linear_fedrep, 2 steps", "linear_fedavg"):
        made[f"{name}, fixed, own"] = partial(on_task, name, task, "fixed", False)
        made[f"{name}, dynamic, doubling"] = partial(on_task, name, task, "dynamic", True)
    return made


def results(history: srp.History) -> dict[str, Any]:
    """Part of a run -> its arrays, some with names.

    Raises:
        ValueError: a run that left nothing to compare.
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
            if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise TypeError(f"{type(value).__name__} is no array: its bytes say nothing")
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())

    add(values)
    return found.hexdigest()


def hashes(run: Run) -> tuple[str, dict[str, str]]:
    """Of a run as a whole and of each part; the error of one that fails."""
    try:
        by_history = [results(history) for history in run()]
        parts = {part: digest([found[part] for found in by_history]) for part in PARTS}
    except Exception as error:  # whatever it is: a tree may be half ported
        lines = str(error).strip().splitlines() or [""]
        return f"error: {type(error).__name__}: {lines[0][:200]}", {}
    return digest(list(parts.values())), parts


def differences(ours: dict[str, Any], theirs: dict[str, Any], only: str) -> list[str]:
    """A line for every run that differs, or that only one of the two has."""
    lines = [
        f"{fact}: {ours[fact]} here, {theirs.get(fact)} there: hashes of these cannot be compared"
        for fact in ("quick", "jax")
        if ours[fact] != theirs.get(fact)
    ]
    names = dict.fromkeys([*theirs["runs"], *ours["runs"]])
    for name in (name for name in names if re.search(only, name)):
        one, other = ours["runs"].get(name, "no such run"), theirs["runs"].get(name, "no such run")
        if one == other:
            continue
        if name in ours["parts"] and name in theirs["parts"]:
            parts = [part for part in PARTS if ours["parts"][name][part] != theirs["parts"][name][part]]
            lines.append(f"{name}: {', '.join(parts)}")
        else:
            lines.append(f"{name}: {one} here, {other} there")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the hashes go, as JSON; written after every run")
    parser.add_argument("--compare", type=Path, help="hashes of another commit")
    parser.add_argument("--only", default="", metavar="REGEX", help="the runs whose name it is found in")
    parser.add_argument("--quick", action="store_true", help="compile quickly, as the tests do")
    args = parser.parse_args()
    if args.quick:
        flags = [os.environ.get("XLA_FLAGS", ""), QUICK, QUICK_010 if jax.__version__.startswith("0.10.") else ""]
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()  # read when the first program is compiled
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"code of {Path(srp.__file__).parent}, jax {jax.__version__}, {jax.devices()}", flush=True)
    facts: dict[str, Any] = {"quick": args.quick, "jax": jax.__version__, "processor": platform.machine()}
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
        shown = facts["runs"][name] if not parts else facts["runs"][name][:12]
        print(f"{number}/{len(chosen)} {took:5.1f} s  {name}: {shown}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    failed = sum(found.startswith("error: ") for found in facts["runs"].values())
    print(f"{len(chosen)} runs, {failed} of them with an error, {facts['seconds']:.0f} s")
    if args.compare:
        lines = differences(facts, json.loads(args.compare.read_text("utf-8")), args.only)
        print("\n".join(lines) if lines else f"the same bits as {args.compare}")
        raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
