"""The rival in PyTorch: a loop over clients without data loader and copies."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn


def mlp(features: int, hidden: Sequence[int], num_classes: int = 10) -> nn.Sequential:
    """Dense layers with ReLU between them."""
    widths = [features, *hidden, num_classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet5(channels: Sequence[int] = (64, 64), num_classes: int = 10) -> nn.Sequential:
    """The SRPFL paper's LeNet-5 for CIFAR-10."""
    return nn.Sequential(
        nn.Conv2d(3, channels[0], 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels[0], channels[1], 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(25 * channels[1], 120), nn.ReLU(), nn.Linear(120, 64), nn.ReLU(),
        nn.Linear(64, num_classes),
    )  # fmt: skip


class Residual(nn.Module):
    """Two 3 x 3 convolutions beside a residual connection, or a 1 x 1 one where shapes differ."""

    def __init__(self, before: int, after: int, stride: int, groups: int | None):
        super().__init__()
        self.own = nn.Sequential(
            *_normalized(before, after, 3, stride, groups), nn.ReLU(),
            *_normalized(after, after, 3, 1, groups),
        )  # fmt: skip
        self.past = nn.Sequential()
        if stride > 1 or before != after:
            self.past = nn.Sequential(*_normalized(before, after, 1, stride, groups))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.own(x) + self.past(x))


def _normalized(
    before: int, after: int, size: int, stride: int, groups: int | None
) -> list[nn.Module]:
    norm = nn.BatchNorm2d(after)
    if groups is not None:
        norm = nn.GroupNorm(groups, after)
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), norm]


def resnet18(
    groups: int | None = None,
    channels: Sequence[int] = (64, 128, 256, 512),
    num_classes: int = 10,
) -> nn.Sequential:
    """ResNet-18 for small images, with GroupNorm of so many groups, or BatchNorm."""
    layers = [*_normalized(3, channels[0], 3, 1, groups), nn.ReLU()]
    before = channels[0]
    for stage, after in enumerate(channels):
        layers += [
            Residual(before, after, 1 + (stage > 0), groups),
            Residual(after, after, 1, groups),
        ]
        before = after
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes)
    )


def crop_and_flip(x: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """A random crop and mirror image of each of a batch (batch, c, h, w), by one indexing."""
    batch, _, height, width = x.shape
    padded = nn.functional.pad(x, (padding,) * 4)
    device = x.device
    rows = torch.randint(0, 2 * padding + 1, (batch, 1), device=device) + torch.arange(
        height, device=device
    )
    columns = torch.arange(width, device=device).expand(batch, width)
    columns = torch.where(
        torch.rand(batch, 1, device=device) < 0.5, columns.flip(1), columns
    )
    columns = columns + torch.randint(0, 2 * padding + 1, (batch, 1), device=device)
    each = torch.arange(batch, device=device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)  # channels last in memory


def multiply_as(precision: str) -> str:
    """Set torch's float32 products to JAX's precision (on a GPU TF32 unless "highest"); returns torch's name of it."""
    torch.set_float32_matmul_precision("highest" if precision == "highest" else "high")
    return torch.get_float32_matmul_precision()


class TorchLoop:
    """FedAvg and FedRep rounds and FedRep's evaluation, on the first GPU where torch has one.

    Args:
        model: its last layer is the head; in channels-last format if the images should be too.
        examples: x (clients, examples, ...) float32, y (clients, examples) int, x_test, y_test likewise; images have
            their channels last.
        batch_size: examples a step.
        augment: whether every step crops and flips its images.
        cache: whether the head's inputs are computed once a round, and not in each of its epochs as most code does.
    """

    def __init__(
        self,
        model: nn.Sequential,
        examples: Sequence[np.ndarray],
        batch_size: int = 10,
        augment: bool = False,
        cache: bool = False,
    ):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(device)
        self.batch_size = batch_size
        self.augment = augment
        self.cache = cache
        x, y, x_test, y_test = examples
        self.x, self.x_test = (self._inputs(values).to(device) for values in (x, x_test))
        self.y, self.y_test = (
            torch.tensor(labels, dtype=torch.long, device=device)
            for labels in (y, y_test)
        )
        self.num_clients = len(x)
        self.device = device
        self.head = model[-1]
        self.below = model[:-1]
        self.body = list(self.below.parameters())
        self.heads = [
            copy.deepcopy(self.head.state_dict()) for _ in range(self.num_clients)
        ]
        self.loss = nn.CrossEntropyLoss()

    def _inputs(self, values: np.ndarray) -> torch.Tensor:
        inputs = torch.tensor(values)
        if inputs.ndim < 5:
            return inputs
        channels_last = any(
            p.ndim == 4 and not p.is_contiguous() for p in self.model.parameters()
        )
        inputs = inputs.permute(0, 1, 4, 2, 3)
        if channels_last:
            return inputs
        return inputs.contiguous()

    def _epochs(
        self,
        client: int,
        parameters: Iterable[nn.Parameter],
        epochs: int,
        momentum: float = 0.0,
    ) -> None:
        parameters = list(parameters)
        for p in self.model.parameters():
            p.requires_grad_(any(p is q for q in parameters))
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=momentum)
        model = self.model
        x = self.x[client]
        y = self.y[client]
        if self.cache and not self.augment and parameters[0] is self.head.weight:
            model = self.head
            with torch.no_grad():
                x = self.below(x)
        for _ in range(epochs):
            order = torch.randperm(len(y), device=self.device)
            for begin in range(0, len(y), self.batch_size):
                rows = order[begin : begin + self.batch_size]
                batch = x[rows]
                if self.augment:
                    batch = crop_and_flip(batch)
                optimizer.zero_grad()
                self.loss(model(batch), y[rows]).backward()
                optimizer.step()

    def fedavg_round(self) -> None:
        """One epoch at every client, and the mean."""
        start = [p.detach().clone() for p in self.model.parameters()]
        total = [torch.zeros_like(p) for p in start]
        for client in range(self.num_clients):
            self._load(self.model.parameters(), start)
            self._epochs(client, self.model.parameters(), 1)
            for t, p in zip(total, self.model.parameters(), strict=True):
                t += p.detach()
        self._load(self.model.parameters(), [t / self.num_clients for t in total])
        self._wait()

    def fedrep_round(self, head_epochs: int = 10) -> None:
        """Epochs of the head, one of the rest at every client, and the mean of the rest."""
        start = [p.detach().clone() for p in self.body]
        total = [torch.zeros_like(p) for p in start]
        for client in range(self.num_clients):
            self._load(self.body, start)
            self.head.load_state_dict(self.heads[client])
            self._epochs(client, self.head.parameters(), head_epochs, 0.5)
            self._epochs(client, self.body, 1, 0.5)
            self.heads[client] = copy.deepcopy(self.head.state_dict())
            for t, p in zip(total, self.body, strict=True):
                t += p.detach()
        self._load(self.body, [t / self.num_clients for t in total])
        self._wait()

    def fine_tuned_evaluation(self, epochs: int = 10) -> float:
        """Mean accuracy after epochs of the head at every client."""
        start = copy.deepcopy(self.head.state_dict())
        correct = []
        for client in range(self.num_clients):
            self.head.load_state_dict(start)
            self._epochs(client, self.head.parameters(), epochs, 0.5)
            with torch.no_grad():
                guess = self.model(self.x_test[client]).argmax(1)
            correct.append((guess == self.y_test[client]).float().mean())
        self.head.load_state_dict(start)
        return float(np.mean([value.item() for value in correct]))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @staticmethod
    @torch.no_grad()
    def _load(parameters: Iterable[nn.Parameter], values: Iterable[torch.Tensor]) -> None:
        for p, v in zip(parameters, values, strict=True):
            p.copy_(v)


class Processes:
    """Clients divided among processes of one thread each, images with channels last; the mean over the processes is
    left out, in the rival's favour.

    Args:
        examples: as for `TorchLoop`.
        number: of processes.
        model: that makes the network in each process.
        options: of `TorchLoop`.
    """

    def __init__(
        self,
        examples: Sequence,
        number: int,
        model: Callable[[], nn.Sequential] = lenet5,
        **options: bool,
    ):
        context = multiprocessing.get_context("spawn")
        self.ends = []
        self.processes = []
        for i in range(number):
            ours, theirs = context.Pipe()
            share = tuple(part[i::number] for part in examples)
            process = context.Process(
                target=_serve, args=(theirs, share, model, options), daemon=True
            )
            process.start()
            self.ends.append(ours)
            self.processes.append(process)
        self._wait()

    def _wait(self) -> None:
        for end in self.ends:
            end.recv()

    def run(self, name: str) -> None:
        """Calls the method `name` of every loop and waits for all."""
        for end in self.ends:
            end.send(name)
        self._wait()

    def close(self) -> None:
        """Ends all processes."""
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join()


def _serve(
    end: Any,
    examples: Sequence,
    model: Callable[[], nn.Sequential],
    options: dict[str, bool],
) -> None:
    torch.set_num_threads(1)
    network = model()
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    loop = TorchLoop(network, examples, **options)
    end.send(True)
    while (name := end.recv()) is not None:
        getattr(loop, name)()
        end.send(True)
