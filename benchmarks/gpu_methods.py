"""Every method of the registry on the CPU and on a GPU, in small: part 6 of `gpu.py`."""

from __future__ import annotations

import functools
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gpu_compare import BOUNDS, WrongError, check_difference, difference, trained_arrays
from harness.measure import synthetic

import fedjax_srp as srp


def on_both(method_name: str) -> dict[str, Any]:
    """Three rounds of a method on the CPU and on the default device, with products in full precision."""
    begin = time.perf_counter()
    # Of a size so that a GPU trains the first layer in the span.
    data = synthetic(12, 40, 10, (16, 16))
    model = srp.models.MLP(data.example_shape, 10, (32, 16))
    options = {
        "initial": 3,
        "rounds_per_stage": 1,
        "learning_rate": 0.05,
        "fine_tune_epochs": 1,
        "k": 3,
    }
    if method_name == "fedat":
        options["k"] = 1
    try:
        method = srp.methods.get(method_name, dataset=data, model=model, shared=options)
        with jax.default_matmul_precision("highest"):
            run = functools.partial(
                srp.simulate,
                method,
                data,
                num_rounds=3,
                key=jax.random.key(0),
                progress=False,
            )
            histories = [
                run(devices=[kind[0]], keep_clients=True)
                for kind in (jax.devices("cpu"), jax.devices())
            ]
        cpu, gpu = (
            trained_arrays(h.server_state, h.client_states, data.num_clients)
            for h in histories
        )
        facts = check_difference(
            *difference(
                gpu, cpu, {name: np.zeros_like(value) for name, value in cpu.items()}
            ),
            BOUNDS["highest"],
            "the CPU",
        )
        cpu_run, gpu_run = histories
        same = np.array_equal(cpu_run.rounds_taken, gpu_run.rounds_taken)
        same &= np.allclose(cpu_run.compute_time, gpu_run.compute_time, rtol=1e-5)
        if not same:
            facts["wrong"] = "other times or cohorts"
    except WrongError as error:
        facts = error.found | {"wrong": str(error)}
    except Exception as error:
        facts = {"wrong": f"{type(error).__name__}: {error}"[:500]}
    return facts | {"seconds": time.perf_counter() - begin}


def methods(*, folder: Path, name: str, processes: int) -> dict[str, Any]:
    """Every algorithm of the registry on the CPU and on the default device (`on_both`), several at once."""
    names = list(
        {
            srp.methods.recipe(of).factory: of for of in reversed(srp.methods.names())
        }.values()
    )
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        found = dict(zip(names, pool.map(on_both, names), strict=True))
    wrong = [f"{of}: {facts['wrong']}" for of, facts in found.items() if "wrong" in facts]
    return {"methods": found, "wrong": wrong}
