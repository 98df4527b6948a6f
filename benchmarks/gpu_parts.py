"""The cases of each part of `gpu.py`, the most important first.

A `Workload` is the computation, `Options` are the settings that must not change its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from children import Case

WARM = 3  # calls before the first that is timed
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
# Makes the choices of two compilations equal.
EXACT = {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"} | UNCACHED
SHARED_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # PyTorch needs some of the memory


class Workload(NamedTuple):
    """Rounds to compute."""

    algorithm: str  # "fedavg", "fedrep", "linear_fedrep"
    model: str  # "mlp", "lenet5", "linear"
    clients: int
    examples: int = 150
    tests: int = 50
    shape: tuple[int, ...] = (28, 28)  # of an image
    widths: tuple[int, ...] = (512, 256, 64)  # hidden layers, channels, or (dimension, rank)
    momentum: float = 0.0
    cohort: int | None = None  # size of the cohort, the fastest clients; None for all
    initial: int | None = None  # size of the first cohort; cohorts double ...
    per_stage: int | None = None  # ... after so many rounds
    judged: bool = False  # every client is evaluated after each call
    length: int = 1  # rounds of a call
    calls: int = WARM  # calls before the comparison with the CPU

    @property
    def reference(self) -> str:
        """Name of the case that computes it on the CPU."""
        defaults = self._field_defaults
        return "cpu: " + ", ".join(f"{name}={v}" for name, v in self._asdict().items() if v != defaults.get(name))


class Options(NamedTuple):
    """Settings that must not change the results."""

    chunk: int | None = None  # clients that train at once; None for the engine's choice
    judged_at_once: int | None = None  # clients that are evaluated at once
    graphs: bool = False  # loops inside CUDA graphs
    precision: str = "default"  # of products of models: "default" (TF32 on a GPU), "highest"
    convolution: str = "auto"
    span: bool | None = None  # the first dense layer is trained in the span of the examples; None: the engine's choice


class Sizes(NamedTuple):
    """Sizes of all cases."""

    few: int
    some: int
    many: int
    examples: int
    tests: int
    widths: tuple[int, ...]
    chunks: tuple[int | None, ...]  # of some clients; None for the engine's choice
    many_chunks: tuple[int | None, ...]
    judged_at_once: tuple[int, ...]  # of many clients
    judged_cohort: int  # size of the cohort where an evaluation is timed
    images: tuple[int, int, tuple[int, ...], tuple[int, ...]]  # clients, examples, shape, channels
    linear: tuple[tuple[int, int], ...]  # clients, dimension
    initial: int
    per_stage: int
    length: int  # rounds of a call, if rounds are short
    repeats: int
    matrix: int
    at_least: float  # seconds that a measurement of the device's limits lasts


FULL = Sizes(
    few=100,
    some=1000,
    many=10_000,
    examples=150,
    tests=50,
    widths=(512, 256, 64),
    chunks=(512, 128, 1000, None),
    many_chunks=(156, 1000, 5000, None),
    judged_at_once=(156, 2279),
    judged_cohort=128,
    images=(128, 100, (32, 32, 3), (64, 64)),
    linear=((1000, 100), (100_000, 1000)),
    initial=10,
    per_stage=6,
    length=5,
    repeats=7,
    matrix=8192,
    at_least=0.1,
)
QUICK = Sizes(
    few=4,
    some=6,
    many=8,
    examples=12,
    tests=12,
    widths=(8,),
    chunks=(4,),
    many_chunks=(8,),
    judged_at_once=(3,),
    judged_cohort=2,
    images=(4, 10, (16, 16, 1), (2, 2)),
    linear=((8, 6),),
    initial=2,
    per_stage=4,
    length=2,
    repeats=2,
    matrix=64,
    at_least=0.002,
)
METHODS = ("fedavg", "fedrep")


def _case(name: str, kind: str, world: Workload, how: Options | None = None, **fields: Any) -> Case:
    """A case that needs the CPU's rounds of its workload; `fields` are those of `Case` and settings of its kind."""
    how = Options() if how is None else how
    own = {field: fields.pop(field) for field in ("environment", "child", "needs") if field in fields}
    settings = {"world": world._asdict(), "how": how._asdict(), **fields}
    own["needs"] = (world.reference, *own.get("needs", ()))
    return Case(name, kind, settings, **own)


def _complete(sizes: Sizes, cases: Iterable[Case]) -> list[Case]:
    """The cases, after those of the machine, its limits, and the CPU's rounds of every workload."""
    cases = list(cases)
    limits = {"size": sizes.matrix, "at_least": sizes.at_least}
    first = [Case("machine", "about", {"needs_gpu": sizes is FULL}), Case("limits", "bandwidth", limits)]
    worlds = {Workload(**case.settings["world"]): None for case in cases}
    on_cpu = {"JAX_PLATFORMS": "cpu"} | UNCACHED
    how = Options(convolution="patches")._asdict()
    return [
        *first,
        *(Case(w.reference, "reference", {"world": w._asdict(), "how": how}, on_cpu, "cpu") for w in worlds),
        *cases,
    ]


def _mlp(sizes: Sizes, algorithm: str, clients: int, **fields: Any) -> Workload:
    common = {"examples": sizes.examples, "tests": sizes.tests, "widths": sizes.widths}
    return Workload(algorithm, "mlp", clients, **common, **fields)


def rounds(sizes: Sizes) -> list[Case]:
    """FedAvg and FedRep with some clients: precision, chunks, CUDA graphs."""
    cases, repeats = [], sizes.repeats
    worlds = {name: _mlp(sizes, name, sizes.some) for name in METHODS}
    first = sizes.chunks[0]
    for name, world in worlds.items():
        how = Options(chunk=first, precision="highest", span=False)
        cases.append(_case(f"{name}, chunk {first}, highest", "rounds", world, how, repeats=repeats))

    def of_chunks(graphs: bool) -> list[Case]:
        label, found = ", graphs" if graphs else "", []
        for chunk in sizes.chunks:
            for name, world in worlds.items():
                how, title = (
                    Options(chunk=chunk, graphs=graphs, span=False),
                    f"{name}, chunk {chunk or 'by default'}{label}",
                )
                found.append(_case(title, "rounds", world, how, repeats=repeats, child=label))
        return found

    def in_span(graphs: bool) -> list[Case]:
        label, found = ", span, graphs" if graphs else ", span", []
        for chunk in sizes.chunks[:1] if graphs else sizes.chunks[:1] + sizes.chunks[2:3]:
            for name, world in worlds.items():
                how = Options(chunk=chunk, graphs=graphs, span=True)
                found.append(_case(f"{name}, chunk {chunk}{label}", "rounds", world, how, repeats=repeats, child=label))
        return found

    cases += of_chunks(graphs=False) + in_span(graphs=False)
    segments = _mlp(sizes, "fedrep", sizes.few, judged=True, length=2, calls=4)
    name = "four segments"
    how = Options(precision="highest")
    fields = {"repeats": repeats, "environment": EXACT}
    cases.append(_case(name, "rounds", segments, how, keep=True, child="segments", **fields))
    fields |= {"equal_to": name, "child": "segments, graphs", "needs": (name,)}
    cases.append(_case(f"{name}, graphs", "rounds", segments, how._replace(graphs=True), **fields))
    cases += of_chunks(graphs=True) + in_span(graphs=True)  # last: they have been compared by then
    return _complete(sizes, cases)


def scale(sizes: Sizes) -> list[Case]:
    """Many clients and few: chunks, evaluation, memory, precision. Larger chunks come later: a peak is of a child."""
    cases, fewer = [], max(2, sizes.repeats - 2)
    for name in METHODS:
        world = _mlp(sizes, name, sizes.many, calls=1)
        for chunk in sizes.many_chunks:
            fields = {"repeats": fewer, "child": name}
            title = f"{name}, N = {sizes.many}, chunk {chunk or 'by default'}"
            cases.append(_case(title, "rounds", world, Options(chunk=chunk), **fields))
    judged = _mlp(sizes, "fedrep", sizes.many, cohort=sizes.judged_cohort, judged=True, calls=1)
    for at_once in sizes.judged_at_once:
        fields = {"repeats": sizes.repeats, "child": "evaluation"}
        how = Options(judged_at_once=at_once)
        cases.append(_case(f"evaluation, N = {sizes.many}, {at_once} at once", "evaluation", judged, how, **fields))
    for name in METHODS:
        world = _mlp(sizes, name, sizes.few, length=sizes.length, calls=1)
        fields = {"repeats": sizes.repeats, "child": "few"}
        cases.append(_case(f"{name}, N = {sizes.few}", "rounds", world, Options(chunk=sizes.few), **fields))
    judged = _mlp(sizes, "fedrep", sizes.few, cohort=min(sizes.few, sizes.judged_cohort), judged=True, calls=1)
    how, fields = Options(judged_at_once=sizes.few), {"repeats": sizes.repeats, "child": "few"}
    cases.append(_case(f"evaluation, N = {sizes.few}", "evaluation", judged, how, **fields))
    middle = sizes.many_chunks[min(1, len(sizes.many_chunks) - 1)]
    for label, how in (("highest", Options(middle, precision="highest")), ("graphs", Options(middle, graphs=True))):
        for name in METHODS:
            world = _mlp(sizes, name, sizes.many, calls=1)
            title = f"{name}, N = {sizes.many}, chunk {middle}, {label}"
            cases.append(_case(title, "rounds", world, how, repeats=fewer, child=label))
    return _complete(sizes, cases)


def convolutions(sizes: Sizes) -> list[Case]:
    """LeNet-5: XLA's grouped convolutions against patches, with and without CUDA graphs."""
    clients, examples, shape, channels = sizes.images
    cases = []
    for graphs in (False, True):
        label = ", graphs" if graphs else ""
        for convolution in ("xla", "patches"):
            for name in METHODS:
                world = Workload(name, "lenet5", clients, examples, sizes.tests, shape, channels)
                how = Options(chunk=clients, graphs=graphs, convolution=convolution)
                fields = {"repeats": sizes.repeats, "child": f"{convolution}{label}"}
                cases.append(_case(f"LeNet {name}, {convolution}{label}", "rounds", world, how, **fields))
    return _complete(sizes, cases)


def rivals(sizes: Sizes) -> list[Case]:
    """Cohorts that grow, loops over clients on the same device, linear rounds."""
    cases, repeats = [], max(2, sizes.repeats - 2)
    growing = _mlp(sizes, "fedrep", sizes.some, initial=sizes.initial, per_stage=sizes.per_stage)
    for chunk in dict.fromkeys((None, sizes.chunks[0])):
        name = f"SRPFL from n = {sizes.initial}, chunk {chunk or 'by default'}"
        cases.append(_case(name, "stages", growing, Options(chunk=chunk), repeats=sizes.per_stage, child="stages"))
    for length, (clients, dim) in zip((sizes.length, 1), sizes.linear, strict=False):
        world = Workload("linear_fedrep", "linear", clients, widths=(dim, min(5, dim)), length=length)
        name, how = f"linear FedRep, N = {clients}, d = {dim}", Options(chunk=min(4096, clients))
        cases.append(_case(name, "rounds", world, how, repeats=sizes.repeats, child="linear"))
    how = Options(chunk=sizes.few, judged_at_once=sizes.few)
    fields = {"repeats": repeats, "child": "rivals", "environment": SHARED_MEMORY}
    worlds = {
        "fedavg round": _mlp(sizes, "fedavg", sizes.few),
        "fedrep round": _mlp(sizes, "fedrep", sizes.few, momentum=0.5),
        "fedrep evaluation": _mlp(sizes, "fedrep", sizes.few, momentum=0.5, judged=True, calls=1),
    }
    loops = ("jitted loop", "torch", "torch, features cached")
    for against in loops:
        for name, world in worlds.items():
            is_impossible = (against == loops[0] and world.judged) or (against == loops[2] and "fedavg" in name)
            if not is_impossible:
                cases.append(_case(f"{name} against {against}", "rival", world, how, against=against, **fields))
    return _complete(sizes, cases)


def methods(sizes: Sizes) -> list[Case]:
    """Every method of the registry on a GPU and on the CPU, in small, with and without CUDA graphs."""
    both = {"JAX_PLATFORMS": "cuda,cpu"} if sizes is FULL else {}
    fields = {"environment": both | SHARED_MEMORY}
    first = Case("machine", "about", {"needs_gpu": sizes is FULL})
    processes = 12 if sizes is FULL else 2
    cases = (
        Case(f"methods{', graphs' * graphs}", "methods", {"graphs": graphs, "processes": processes}, **fields)
        for graphs in (False, True)
    )
    return [first, *cases]


def compilers(sizes: Sizes) -> list[Case]:
    """Flags of XLA for matrix products, and one profile of each method (without CUDA graphs)."""
    cases, chunk = [], sizes.chunks[0]
    flags = {
        "default flags": {},
        "triton gemm off": {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"},
        "autotune level 0": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},
    }
    worlds = {name: _mlp(sizes, name, sizes.some) for name in METHODS}
    for label, environment in flags.items():
        for name, world in worlds.items():
            fields = {"repeats": sizes.repeats, "environment": environment | UNCACHED, "child": label}
            cases.append(_case(f"{name}, chunk {chunk}, {label}", "rounds", world, Options(chunk=chunk), **fields))
    for span in (False, True):
        for name, world in worlds.items():
            title, how = f"{name}, chunk {chunk}{', span' * span}, profile", Options(chunk=chunk, span=span)
            cases.append(_case(title, "profile", world, how, child="profile"))
    return _complete(sizes, cases)


PARTS: dict[str, Callable[[Sizes], list[Case]]] = {
    "1": rounds,
    "2": scale,
    "3": convolutions,
    "4": rivals,
    "5": compilers,
    "6": methods,
}


def figures(quick: bool, data_dir: str | None, runs: str) -> list[Case]:
    """SRPFL's figures 3 to 6 on MNIST, as many images a client as EMNIST's digits have; quick: on scikit-learn's."""
    scale_name = "smoke" if quick else "gpu"
    settings = {"scale": scale_name, "data_dir": data_dir, "out": runs}
    each = [Case(f"figure {n}", "figure", {"number": n, **settings}, child=f"figure {n}") for n in (3, 4, 5, 6)]
    return [Case("machine", "about", {"needs_gpu": not quick}), *each]
