"""Worlds, methods and sizes of the FLANP paper's figures.

`full` is the paper's size, `cpu` takes minutes on 2 cores, and tests run `smoke`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from experiments.flanp.panels import Panel


class Figure(NamedTuple):
    """A figure: its title, and for each scale the panels from left to right."""

    title: str
    panels: dict[str, list[Panel]]


CONVEX = ("flanp", "fedgate", "fedavg")
DEEP = ("flanp", "gentle", "early", "fedgate", "fedavg", "fednova", "fednova_drawn")
FEW = (
    "flanp",
    "gentle",
    "early",
    "fedgate",
    "fednova",
    "fednova_drawn",
)  # FedAvg hardly differs from FedGATE
LOSSES = {"mnist": (0.5, 0.4, 0.3, 0.2), "cifar10": (2.1, 2.0, 1.9, 1.8)}
MNIST, CIFAR = {"name": "mnist", "step": 0.05}, {"name": "cifar10", "step": 0.02}
DIGITS = {"name": "digits", "num_clients": 4, "samples": 40}


def _deep(
    title: str,
    options: dict[str, Any],
    full: int,
    cpu: int,
    rounds: int,
    methods: tuple[str, ...] = DEEP,
) -> dict[str, list[Panel]]:
    of = lambda samples, **more: options | {"num_clients": 20, "samples": samples} | more
    small, losses = (
        {"name": "digits", "step": 0.05, "num_clients": 4, "samples": 40},
        LOSSES[options["name"]],
    )
    return {
        "full": [
            Panel(
                f"{title}, s = {full:,}",
                "network",
                of(full),
                methods,
                rounds,
                3,
                values=losses,
            )
        ],
        "cpu": [
            Panel(
                f"{title}, s = {cpu}",
                "network",
                of(cpu),
                methods,
                rounds,
                3,
                values=losses,
            )
        ],
        "smoke": [Panel(title, "network", options | small, DEEP, 4, 2, 2)],
    }


def _linear(
    title: str,
    methods: tuple[str, ...],
    worlds: list[dict[str, Any]],
    rounds: int,
    seeds: int,
) -> list[Panel]:
    return [
        Panel(title.format(**world), "linear", world, methods, rounds, seeds=seeds)
        for world in worlds
    ]


def _linears(
    title: str,
    methods: tuple[str, ...],
    worlds: list[dict[str, Any]],
    rounds: int,
    seeds: int,
):
    small = [world | {"num_clients": 4, "samples": 30, "dim": 3} for world in worlds[:1]]
    full = _linear(title, methods, worlds, rounds, seeds)
    return {"full": full, "cpu": full, "smoke": _linear(title, methods, small, 30, 2)}


def _partial(kind: str) -> dict[str, list[Panel]]:
    title = (
        f"k clients that are {'drawn at random' if kind == 'random' else 'the fastest'}"
    )
    methods = ("flanp", *(f"{kind}{k}" for k in (5, 25)))
    options, losses = MNIST | {"num_clients": 50}, LOSSES["mnist"]
    return {
        "full": [
            Panel(
                title,
                "network",
                options | {"samples": 1200},
                methods,
                480,
                3,
                values=losses,
            )
        ],
        "cpu": [
            Panel(
                title,
                "network",
                options | {"samples": 80},
                methods,
                120,
                3,
                values=losses,
            )
        ],
        "smoke": [
            Panel(
                title,
                "network",
                MNIST | DIGITS | {"num_clients": 30, "samples": 20},
                methods,
                4,
                2,
                2,
            )
        ],
    }


LOGISTIC = {"name": "mnist", "num_clients": 50, "samples": 1200}
SYNTHETIC = {"num_clients": 100, "samples": 100, "speeds": "uniform"}
random, fastest = _partial("random"), _partial("fastest")
FIGURES = {
    "figure1": Figure(
        "logistic regression on MNIST, speeds uniform on [50, 500]",
        {
            "full": [
                Panel(
                    "MNIST, N = 50, s = 1200",
                    "logistic",
                    LOGISTIC,
                    ("flanp", "half", "fedgate"),
                    500,
                    5,
                    values=(0.6, 0.5, 0.4, 0.36),
                )
            ],
            "cpu": [
                Panel("MNIST, N = 50, s = 1200", "logistic", LOGISTIC, CONVEX, 150, 2, 2)
            ],
            "smoke": [Panel("digits", "logistic", DIGITS, CONVEX, 6, 2, 2)],
        },
    ),
    "figure2": Figure(
        "linear regression on synthetic data, speeds uniform on [50, 500]",
        _linears("N = {num_clients}, s = {samples}", CONVEX, [SYNTHETIC], 120, 5),
    ),
    "figure3": Figure(
        "network 128-64, speeds uniform on [50, 500]",
        _deep("MNIST, N = 20", MNIST, 3000, 200, 120),
    ),
    "figure4": Figure(
        "network 128-64, speeds uniform on [50, 500]",
        _deep("CIFAR-10, N = 20", CIFAR, 2500, 100, 90, FEW),
    ),
    "figure5": Figure(
        "network 128-64, exponential speeds",
        _deep("MNIST, N = 20", MNIST | {"speeds": "exponential"}, 3000, 200, 120),
    ),
    "figure6": Figure(
        "network 128-64 on MNIST, N = 50, partial participation",
        {scale: random[scale] + fastest[scale] for scale in random},
    ),
    "figure7": Figure(
        "linear regression, N = 50, exponential speeds",
        _linears(
            "s = {samples}",
            ("flanp", "fedgate"),
            [{"num_clients": 50, "samples": s} for s in (20, 200, 2000)],
            120,
            5,
        ),
    ),
    "figure8": Figure(
        "linear regression, s = 100, exponential speeds",
        _linears(
            "N = {num_clients}",
            ("flanp", "fedgate"),
            [{"num_clients": n, "samples": 100} for n in (10, 100, 1000)],
            120,
            5,
        ),
    ),
    "figure9": Figure(
        "stages by the criterion and by the heuristic: linear regression, exponential speeds",
        _linears(
            "N = {num_clients}, s = {samples}",
            ("flanp", "heuristic", "tuned", "whole", "fedgate"),
            [{"num_clients": 50, "samples": 200}],
            120,
            5,
        ),
    ),
}
