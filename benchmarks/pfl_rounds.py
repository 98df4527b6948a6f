"""The rounds of pfl-research for `pfl_cifar10.py`: FedAvg on the same federation, a round for each line of the input.

Run by `pfl_cifar10.py` in the environment that has pfl and PyTorch; imports nothing of this project.

    PYTHON benchmarks/pfl_rounds.py FEDERATION.npz SEED

Prints "ready", then for each line of the input "turn", the seconds of a round, and the accuracy where it was evaluated,
or nan; pfl prints its metrics between them.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

COHORT = 50
BATCH = 10
RATE = 0.1
EVERY = 10
MANY = 10**6


def network() -> nn.Module:
    """The CNN of pfl-research's benchmark, of images (batch, 3, 32, 32)."""
    layers = [
        *(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ),
        *(
            nn.Flatten(),
            nn.Linear(12544, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        ),
    ]
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def loss(
        self: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False
    ) -> torch.Tensor:
        self.train(not eval)
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(
        self: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = True
    ) -> dict[str, Weighted]:
        self.train(not eval)
        right = (self(inputs).argmax(-1) == targets).float().sum().item()
        return {"accuracy": Weighted(right, len(inputs))}

    model.loss = types.MethodType(loss, model)
    model.metrics = types.MethodType(metrics, model)
    return model


class Turn(TrainingProcessCallback):
    """Evaluates every tenth round, reports the seconds of a round, and waits for the next line."""

    def __init__(self, test: tuple[torch.Tensor, torch.Tensor], lines: Iterator[str]):
        self.test = test
        self.lines = lines
        self.begin = time.perf_counter()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """True at the end of the input, and no metrics."""
        accuracy = float("nan")
        if (central_iteration + 1) % EVERY == 0:
            right = 0.0
            for x, y in zip(*(part.split(1000) for part in self.test), strict=True):
                right += model.pytorch_model.metrics(x, y)["accuracy"].weighted_value
            accuracy = right / len(self.test[1])
        print("turn", time.perf_counter() - self.begin, accuracy, flush=True)
        stop = next(self.lines, None) is None
        self.begin = time.perf_counter()
        return stop, Metrics()


def main(path: str, seed: int) -> None:
    """Run rounds until the input ends."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002, pfl draws from it
    arrays = np.load(path)
    x, x_test = (
        torch.tensor(arrays[name]).movedim(-1, -3).contiguous()
        for name in ("x", "x_test")
    )
    y, y_test = (torch.tensor(arrays[name].astype(np.int64)) for name in ("y", "y_test"))
    users = len(y)
    rng = np.random.default_rng(seed)
    data = FederatedDataset(
        lambda i: Dataset(raw_data=[x[i], y[i]]), lambda: int(rng.integers(users))
    )
    module = network()
    model = PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0)
    )
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    params = NNAlgorithmParams(
        central_num_iterations=MANY,
        evaluation_frequency=MANY,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    )
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH
    )
    lines = iter(sys.stdin)
    print("ready", flush=True)
    if next(lines, None) is None:
        return
    turn = Turn((x_test, y_test), lines)
    FederatedAveraging().run(
        params, backend, model, train, NNEvalHyperParams(local_batch_size=1000), [turn]
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
