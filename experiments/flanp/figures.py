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
# FedAvg hardly differs from FedGATE
FEW = tuple(method for method in DEEP if method != "fedavg")
LOSSES = {"mnist": (0.5, 0.4, 0.3, 0.2), "cifar10": (2.1, 2.0, 1.9, 1.8)}
MNIST, CIFAR = {"name": "mnist", "step": 0.05}, {"name": "cifar10", "step": 0.02}
DIGITS = {"name": "digits", "num_clients": 4, "samples": 40}


def _network(
    title: str, options: dict[str, Any], methods: tuple[str, ...], rounds: int
) -> Panel:
    losses = LOSSES[options["name"]]
    return Panel(title, "network", options, methods, rounds, 3, values=losses)


def _deep(
    title: str,
    options: dict[str, Any],
    samples: dict[str, int],
    rounds: int,
    methods: tuple[str, ...] = DEEP,
) -> dict[str, list[Panel]]:
    small = options | DIGITS | {"step": 0.05}
    panels = {"smoke": [Panel(title, "network", small, DEEP, 4, 2, 2)]}
    for scale, s in samples.items():
        world = options | {"num_clients": 20, "samples": s}
        panels[scale] = [_network(f"{title}, s = {s:,}", world, methods, rounds)]
    return panels


def _linears(
    title: str, methods: tuple[str, ...], worlds: list[dict[str, Any]]
) -> dict[str, list[Panel]]:
    small = worlds[0] | {"num_clients": 4, "samples": 30, "dim": 3}
    full = [
        Panel(title.format(**world), "linear", world, methods, 120, seeds=5)
        for world in worlds
    ]
    smoke = Panel(title.format(**small), "linear", small, methods, 30, seeds=2)
    return {"full": full, "cpu": full, "smoke": [smoke]}


def _partial(rounds: int, samples: int) -> list[Panel]:
    panels = []
    for kind, words in {"random": "drawn at random", "fastest": "the fastest"}.items():
        methods = ("flanp", f"{kind}5", f"{kind}25")
        world = MNIST | {"num_clients": 50, "samples": samples}
        panels.append(_network(f"k clients that are {words}", world, methods, rounds))
    return panels


LOGISTIC = {"name": "mnist", "num_clients": 50, "samples": 1200}
FIGURE_1 = Panel("MNIST, N = 50, s = 1200", "logistic", LOGISTIC, CONVEX, 150, 2, 2)
FIGURE_1_FULL = FIGURE_1._replace(
    methods=("flanp", "half", "fedgate"),
    num_rounds=500,
    eval_every=5,
    seeds=3,
    values=(0.6, 0.5, 0.4, 0.36),
)
SMALL = MNIST | DIGITS | {"num_clients": 30, "samples": 20}
SYNTHETIC = {"num_clients": 100, "samples": 100, "speeds": "uniform"}
FIGURES = {
    "figure1": Figure(
        "logistic regression on MNIST, speeds uniform on [50, 500]",
        {
            "full": [FIGURE_1_FULL],
            "cpu": [FIGURE_1],
            "smoke": [Panel("digits", "logistic", DIGITS, CONVEX, 6, 2, 2)],
        },
    ),
    "figure2": Figure(
        "linear regression on synthetic data, speeds uniform on [50, 500]",
        _linears("N = {num_clients}, s = {samples}", CONVEX, [SYNTHETIC]),
    ),
    "figure3": Figure(
        "network 128-64, speeds uniform on [50, 500]",
        _deep("MNIST, N = 20", MNIST, {"full": 3000, "cpu": 200}, 120),
    ),
    "figure4": Figure(
        "network 128-64, speeds uniform on [50, 500]",
        _deep("CIFAR-10, N = 20", CIFAR, {"full": 2500, "cpu": 100}, 90, FEW),
    ),
    "figure5": Figure(
        "network 128-64, exponential speeds",
        _deep(
            "MNIST, N = 20",
            MNIST | {"speeds": "exponential"},
            {"full": 3000, "cpu": 200},
            120,
        ),
    ),
    "figure6": Figure(
        "network 128-64 on MNIST, N = 50, partial participation",
        {
            "full": _partial(480, 1200),
            "cpu": _partial(120, 80),
            "smoke": [
                panel._replace(
                    options=SMALL, num_rounds=4, eval_every=2, seeds=2, values=()
                )
                for panel in _partial(4, 20)
            ],
        },
    ),
    "figure7": Figure(
        "linear regression, N = 50, exponential speeds",
        _linears(
            "s = {samples}",
            ("flanp", "fedgate"),
            [{"num_clients": 50, "samples": s} for s in (20, 200, 2000)],
        ),
    ),
    "figure8": Figure(
        "linear regression, s = 100, exponential speeds",
        _linears(
            "N = {num_clients}",
            ("flanp", "fedgate"),
            [{"num_clients": n, "samples": 100} for n in (10, 100, 1000)],
        ),
    ),
    "figure9": Figure(
        "stages by the criterion and by the heuristic: linear regression, exponential speeds",
        _linears(
            "N = {num_clients}, s = {samples}",
            ("flanp", "heuristic", "tuned", "whole", "fedgate"),
            [{"num_clients": 50, "samples": 200}],
        ),
    ),
}
