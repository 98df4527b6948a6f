"""Compiles rounds and evaluations of a method for absent devices, from shapes alone."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from harness.measure import synthetic

import fedjax_srp as srp
from fedjax_srp.backend import compiler_options
from fedjax_srp.data import FederatedData
from fedjax_srp.engine.prepare import Prepared, Request, prepare
from fedjax_srp.engine.program import Traced
from gpu_program import hlo, thunks, trips
from gpu_program.roofline import Totals, account
from gpu_program.targets import Target

PACKAGE = str(Path(srp.__file__).parent)
EXAMPLES, TESTS = 150, 50  # of a client
SHAPES = {"mlp": (28, 28), "lenet5": (32, 32, 3)}
OPTIONS: dict[str, dict[str, Any]] = {"mlp": {"hidden": (512, 256, 64)}, "lenet5": {}}
TRAINS = {"l2gd": {"aggregation_probability": 1e-6}}  # a round that trains and does not only aggregate
PARTS = ("start", "round", "evaluation")


class Case(NamedTuple):
    """Settings of a program to compile, without its target."""

    method: str
    model: str
    clients: int
    chunk: int | None  # None: the package's default
    devices: int
    shard_data: bool
    momentum: float


class Found(NamedTuple):
    """A program on one of its devices."""

    totals: Totals
    working: int  # bytes, without arguments and results
    peak: int
    arguments: int
    compile_seconds: float


class Traces(NamedTuple):
    """Traced programs of a case on a target."""

    run: Prepared
    programs: dict[str, tuple[jax.stages.Traced, list[trips.Loop]]]  # by part, with the trips of their loops


def trace(case: Case, devices: Sequence[Any], parts: Sequence[str]) -> Traces:
    """Traces the parts of a case, and finds the trips of their loops.

    Raises:
        ValueError: a bound of a loop that depends on examples or on a model.
    """
    data, _ = _data(case.model, case.clients)
    programs: dict[str, tuple[jax.stages.Traced, list[trips.Loop]]] = {}
    run = _prepared(case, devices, ())
    for part in parts:
        length = 0 if part == "evaluation" else 1
        run = _prepared(case, devices, None if part == "evaluation" else ())
        traced = run.traced(length)
        layout = run.layout.for_evaluation() if part == "evaluation" else run.layout
        single = traced
        if case.devices > 1:  # all make the same trips, and so does one device that serves their whole window alone
            if layout.large_chunk:
                raise ValueError("on several devices the trips of two sizes of chunks are not counted; give --chunk")
            alone = case._replace(chunk=layout.window, devices=1, shard_data=False)
            single = _prepared(alone, devices[:1], run.evaluations).traced(length)
        of_start, of_segment = _loops(single, data)
        programs[part] = (traced.start, of_start) if part == "start" else (traced.segment, of_segment)
    return Traces(run, programs)


def compile_for(traced: jax.stages.Traced, loops: list[trips.Loop], target: Target, graphs: bool) -> Found:
    """Compiles a program and reads its costs from the result.

    Args:
        traced: for devices of the target.
        loops: of the program.
        target: kind of the devices.
        graphs: whether loops go into CUDA graphs.

    Raises:
        ValueError: output of the compiler in an unknown format.
    """
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        srp.use_cuda_graphs(graphs)
        options |= compiler_options("gpu")
        compiled = traced.lower().compile(compiler_options=options)
        seconds = time.perf_counter() - begin
        dumps = sorted(Path(folder).glob("*.thunk_sequence_after_thunk_passes.txt"))
        if len(dumps) != 1:
            raise ValueError(
                f"the compiler left {len(dumps)} dumps of thunks and one was expected; use JAX 0.10 or 0.11"
            )
        steps = thunks.parse(dumps[0].read_text())
    text, memory = compiled.as_text(), compiled.memory_analysis()
    if text is None or memory is None:
        raise ValueError("the compiler gives no text or no memory analysis of a program; use JAX 0.10 or 0.11")
    totals = account(hlo.parse(text), steps, loops, target, PACKAGE)
    return Found(
        totals,
        working=memory.temp_size_in_bytes,
        peak=memory.peak_memory_in_bytes,
        arguments=memory.argument_size_in_bytes,
        compile_seconds=seconds,
    )


def _loops(traced: Traced, data: FederatedData) -> tuple[list[trips.Loop], list[trips.Loop]]:
    """Loops of start and segment; the segment begins with the state after the start."""
    given = [trips.given(leaf) for leaf in jax.tree.leaves((jax.random.key(0), traced.parts, data))]
    of_start, started = trips.loops_of(traced.start.jaxpr, given, PACKAGE)
    state = started[: len(jax.tree.leaves(traced.start.out_info.state))]
    of_segment, _ = trips.loops_of(traced.segment.jaxpr, state + given, PACKAGE)
    return of_start, of_segment


def _prepared(case: Case, devices: Sequence[Any], evaluations: tuple[str, ...] | None) -> Prepared:
    data, small = _data(case.model, case.clients)
    shared = {"momentum": case.momentum or None, **OPTIONS[case.model], **TRAINS.get(case.method, {})}
    method = srp.methods.get(case.method, dataset=small, model=case.model, shared=shared)
    return prepare(
        Request(
            method,
            data,
            evaluations=evaluations,
            chunk_size=case.chunk,
            devices=list(devices),
            shard_data=case.shard_data,
        )
    )


@functools.cache
def _data(model: str, clients: int) -> tuple[FederatedData, FederatedData]:
    """Federation whose examples are shapes only, and a small one with real examples."""
    small = synthetic(clients, 1, 1, SHAPES[model])
    parts: dict[str, Any] = {}
    for split, count in (("train", EXAMPLES), ("test", TESTS)):
        for name in (f"x_{split}", f"y_{split}"):
            one = getattr(small, name)
            parts[name] = jax.ShapeDtypeStruct((clients * count, *one.shape[1:]), one.dtype)
        parts[f"{split}_indices"] = np.arange(clients * count, dtype=np.int32).reshape(clients, count)
        parts[f"{split}_counts"] = np.full(clients, count, np.int32)
    return dataclasses.replace(small, **parts), small
