"""The cases of each part of `gpu.py`, the most important first.

A `Workload` is the computation, `Options` are the settings that must not change its results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from children import Case

WARM = 3  # calls before the first that is timed
# timed calls
REPEATS = 7
FEWER = 5
METHODS = ("fedavg", "fedrep")
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
# Makes the choices of two compilations equal.
EXACT = {
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
} | UNCACHED
SHARED_MEMORY = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false"
}  # PyTorch needs some of the memory


class Workload(NamedTuple):
    """Rounds to compute."""

    algorithm: str  # "fedavg", "fedrep", "linear_fedrep"
    model: str  # "mlp", "lenet5", "linear"
    clients: int
    examples: int = 150
    tests: int = 50
    shape: tuple[int, ...] = (28, 28)  # of an image
    widths: tuple[int, ...] = (
        512,
        256,
        64,
    )  # hidden layers, channels, or (dimension, rank)
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
        return "cpu: " + ", ".join(
            f"{name}={v}" for name, v in self._asdict().items() if v != defaults.get(name)
        )


class Options(NamedTuple):
    """Settings that must not change the results."""

    chunk: int | None = None  # clients that train at once; None for the engine's choice
    judged_at_once: int | None = None  # clients that are evaluated at once
    precision: str = (
        "default"  # of products of models: "default" (TF32 on a GPU), "highest"
    )
    convolution: str = "auto"
    span: bool | None = (
        None  # the first dense layer is trained in the span of the examples; None: the engine's choice
    )


def cases(part: str, quick: bool = False) -> list[Case]:
    """All cases of a part, after those of the machine, its limits, and the CPU's rounds of every workload.

    With `quick` they are toys, and need no GPU.
    """
    wanted = PARTS[part]()
    limits = {"size": 8192, "at_least": 0.1}
    if quick:
        wanted = _toys(wanted)
        limits = {"size": 64, "at_least": 0.002}
    worlds = {
        case.name: Workload(**case.settings["world"])
        for case in wanted
        if "world" in case.settings
    }
    on_cpu = {"JAX_PLATFORMS": "cpu"} | UNCACHED
    how = Options(convolution="patches")._asdict()
    return [
        Case("machine", "about", {"needs_gpu": not quick}),
        Case("limits", "bandwidth", limits),
        *(
            Case(
                world.reference,
                "reference",
                {"world": world._asdict(), "how": how},
                on_cpu,
                "cpu",
            )
            for world in dict.fromkeys(worlds.values())
        ),
        *(
            case._replace(needs=(worlds[case.name].reference, *case.needs))
            if case.name in worlds
            else case
            for case in wanted
        ),
    ]


MOST = {  # of a toy
    "clients": 6, "examples": 12, "tests": 12, "cohort": 2, "initial": 2, "length": 2, "chunk": 4, "judged_at_once": 3,
    "repeats": 2, "processes": 2,
}  # fmt: skip


def _toys(cases: Iterable[Case]) -> list[Case]:
    """The same cases at toy sizes, each once."""

    def small(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {field: small(field, of) for field, of in value.items()}
        if name == "widths":
            return tuple(min(8, width) for width in value)
        if name == "shape" and len(value) == 3:
            return 16, 16, 1
        if value is not None and name in MOST:
            return min(value, MOST[name])
        return value

    found: dict[str, Case] = {}
    for case in cases:
        settings = small("", case.settings)
        environment = {
            name: value
            for name, value in case.environment.items()
            if name != "JAX_PLATFORMS"
        }
        key = json.dumps([case.kind, settings, environment])
        found.setdefault(key, case._replace(settings=settings, environment=environment))
    return list(found.values())


def _case(name: str, kind: str, world: Workload, how: Options, **fields: Any) -> Case:
    """A case that is compared with the CPU's rounds; `fields` are those of `Case` and settings of its kind."""
    own = {
        field: fields.pop(field)
        for field in ("environment", "child", "needs")
        if field in fields
    }
    return Case(
        name, kind, {"world": world._asdict(), "how": how._asdict(), **fields}, **own
    )


def rounds() -> list[Case]:
    """FedAvg and FedRep with 1,000 clients: precision, chunks, the span."""

    def timed(chunks: Iterable[int | None], title: str, **how: Any) -> list[Case]:
        return [
            _case(
                f"{name}, chunk {chunk or 'by default'}{title}", "rounds", Workload(name, "mlp", 1000),
                Options(chunk, **how), repeats=REPEATS, child=title,
            )
            for chunk in chunks
            for name in METHODS
        ]  # fmt: skip

    chunks = 512, 128, 1000, None
    name = "four segments"
    segments = Workload("fedrep", "mlp", 100, judged=True, length=2, calls=4)
    how = Options(precision="highest")
    fields = {"repeats": REPEATS, "environment": EXACT}
    return [
        *timed([512], ", highest", precision="highest", span=False),
        *timed(chunks, "", span=False),
        *timed([512, 1000], ", span", span=True),
        _case(name, "rounds", segments, how, child="segments", **fields),
    ]


def scale() -> list[Case]:
    """Many clients and few: chunks, evaluation, memory, precision. Larger chunks come later: a peak is of a child."""

    def trained(name: str, clients: int, how: Options, label: str, **fields: Any) -> Case:
        world = Workload(name, "mlp", clients, calls=1, length=5 if clients == 100 else 1)
        return _case(f"{name}, N = {clients}{label}", "rounds", world, how, **fields)

    def judged(clients: int, cohort: int, at_once: int, label: str, child: str) -> Case:
        world = Workload("fedrep", "mlp", clients, cohort=cohort, judged=True, calls=1)
        how = Options(judged_at_once=at_once)
        return _case(
            f"evaluation, N = {clients}{label}",
            "evaluation",
            world,
            how,
            repeats=REPEATS,
            child=child,
        )

    exact = Options(1000, precision="highest")
    return [
        *(
            trained(
                name,
                10_000,
                Options(chunk),
                f", chunk {chunk or 'by default'}",
                repeats=FEWER,
                child=name,
            )
            for name in METHODS
            for chunk in (156, 1000, 5000, None)
        ),
        *(
            judged(10_000, 128, at_once, f", {at_once} at once", "evaluation")
            for at_once in (156, 2279)
        ),
        *(
            trained(name, 100, Options(100), "", repeats=REPEATS, child="few")
            for name in METHODS
        ),
        judged(100, 100, 100, "", "few"),
        *(
            trained(
                name,
                10_000,
                exact,
                ", chunk 1000, highest",
                repeats=FEWER,
                child="highest",
            )
            for name in METHODS
        ),
    ]


def convolutions() -> list[Case]:
    """LeNet-5: XLA's grouped convolutions against patches."""
    return [
        _case(
            f"LeNet {name}, {convolution}", "rounds",
            Workload(name, "lenet5", 128, 100, shape=(32, 32, 3), widths=(64, 64)),
            Options(128, convolution=convolution), repeats=REPEATS, child=convolution,
        )
        for convolution in ("xla", "patches")
        for name in METHODS
    ]  # fmt: skip


def rivals() -> list[Case]:
    """Cohorts that grow, loops over clients on the same device, linear rounds."""
    growing = Workload("fedrep", "mlp", 1000, initial=10, per_stage=6)
    cases = [
        _case(
            f"SRPFL from n = 10, chunk {label}",
            "stages",
            growing,
            Options(chunk),
            repeats=6,
            child="stages",
        )
        for label, chunk in (("by default", None), ("512", 512))
    ]
    for clients, dim, length in ((1000, 100, 5), (100_000, 1000, 1)):
        world = Workload(
            "linear_fedrep", "linear", clients, widths=(dim, 5), length=length
        )
        name = f"linear FedRep, N = {clients}, d = {dim}"
        how = Options(min(4096, clients))
        cases.append(_case(name, "rounds", world, how, repeats=REPEATS, child="linear"))
    many = Workload(
        "linear_fedrep", "linear", 65_536, widths=(1000, 5), initial=1024, per_stage=6
    )
    name = "linear SRPFL from n = 1024, N = 65536, d = 1000"
    cases.append(_case(name, "stages", many, Options(), repeats=6, child="linear"))
    how = Options(100, judged_at_once=100)
    fields = {"repeats": FEWER, "child": "rivals", "environment": SHARED_MEMORY}
    fedavg = Workload("fedavg", "mlp", 100)
    fedrep = Workload("fedrep", "mlp", 100, momentum=0.5)
    evaluation = fedrep._replace(judged=True, calls=1)
    for against, worlds in {
        "jitted loop": {"fedavg round": fedavg, "fedrep round": fedrep},
        "torch": {
            "fedavg round": fedavg,
            "fedrep round": fedrep,
            "fedrep evaluation": evaluation,
        },
        "torch, features cached": {
            "fedrep round": fedrep,
            "fedrep evaluation": evaluation,
        },
    }.items():
        cases += [
            _case(
                f"{name} against {against}",
                "rival",
                world,
                how,
                against=against,
                **fields,
            )
            for name, world in worlds.items()
        ]
    return cases


def compilers() -> list[Case]:
    """Flags of XLA for matrix products, and one profile of each method."""
    flags = {
        "default flags": {},
        "triton gemm off": {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"},
        "autotune level 0": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},
    }
    timed = [
        _case(
            f"{name}, chunk 512, {label}", "rounds", Workload(name, "mlp", 1000), Options(512), repeats=REPEATS,
            environment=environment | UNCACHED, child=label,
        )
        for label, environment in flags.items()
        for name in METHODS
    ]  # fmt: skip
    profiles = [
        _case(
            f"{name}, chunk 512{', span' * span}, profile", "profile", Workload(name, "mlp", 1000),
            Options(512, span=span), child="profile",
        )
        for span in (False, True)
        for name in METHODS
    ]  # fmt: skip
    return timed + profiles


def methods() -> list[Case]:
    """Every method of the registry on a GPU and on the CPU, in small."""
    environment = {"JAX_PLATFORMS": "cuda,cpu"} | SHARED_MEMORY
    return [Case("methods", "methods", {"processes": 12}, environment)]


PARTS: dict[str, Callable[[], list[Case]]] = {
    "1": rounds,
    "2": scale,
    "3": convolutions,
    "4": rivals,
    "5": compilers,
    "6": methods,
}


def figures(quick: bool, data_dir: str | None, runs: str) -> list[Case]:
    """SRPFL's figures 3 to 6 on MNIST, as many images a client as EMNIST's digits have; quick: on scikit-learn's."""
    settings = {"scale": "smoke" if quick else "gpu", "data_dir": data_dir, "out": runs}
    each = [
        Case(f"figure {n}", "figure", {"number": n, **settings}, child=f"figure {n}")
        for n in (3, 4, 5, 6)
    ]
    return [Case("machine", "about", {"needs_gpu": not quick}), *each]
