"""The rival of lenet.py: the lean PyTorch loop of `fedjax_srp.benchmark` with LeNet-5, and processes that share it."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Sequence

import torch
from torch import nn

from fedjax_srp.benchmark.torch_loop import TorchLoop


def lenet5() -> nn.Sequential:
    """The SRPFL paper's LeNet-5 for CIFAR-10."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 120), nn.ReLU(), nn.Linear(120, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def crop_and_flip(x: torch.Tensor, padding: int = 4) -> torch.Tensor:
    """A random crop and mirror image of each of a batch (batch, c, h, w), by one indexing."""
    batch, _, height, width = x.shape
    padded = nn.functional.pad(x, (padding,) * 4)
    rows = torch.randint(0, 2 * padding + 1, (batch, 1)) + torch.arange(height)
    columns = torch.arange(width).expand(batch, width)
    columns = torch.where(torch.rand(batch, 1) < 0.5, columns.flip(1), columns)
    columns = columns + torch.randint(0, 2 * padding + 1, (batch, 1))
    moved = padded.permute(0, 2, 3, 1)[torch.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)  # channels last in memory


class LeNetLoop(TorchLoop):
    """One client after the other.

    Args:
        x: (clients, examples, h, w, c) float32 training images.
        y: (clients, examples) int labels.
        x_test: (clients, test examples, h, w, c).
        y_test: (clients, test examples).
        channels_last: how images lie in memory.
        augment: whether every step crops and flips its images.
        cache: whether FedRep's features are computed once a round.
    """

    def __init__(self, x, y, x_test, y_test, channels_last=False, augment=False, cache=False):
        super().__init__(x, y, x_test, y_test, hidden=())
        self.x, self.x_test = (images.permute(0, 1, 4, 2, 3) for images in (self.x, self.x_test))
        self.model = lenet5()
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        else:
            self.x, self.x_test = self.x.contiguous(), self.x_test.contiguous()
        self.head, self.below = self.model[-1], self.model[:-1]
        self.body = list(self.below.parameters())
        self.heads = [copy.deepcopy(self.head.state_dict()) for _ in range(self.num_clients)]
        self.augment, self.cache = augment, cache

    def _epochs(self, client, parameters, epochs, momentum=0.0):
        parameters = list(parameters)
        for p in self.model.parameters():
            p.requires_grad_(any(p is q for q in parameters))
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=momentum)
        model, x, y = self.model, self.x[client], self.y[client]
        if self.cache and len(parameters) == 2:  # the head
            model = self.head
            with torch.no_grad():
                x = self.below(x)
        for _ in range(epochs):
            order = torch.randperm(len(y))
            for begin in range(0, len(y), self.batch_size):
                rows = order[begin : begin + self.batch_size]
                batch = crop_and_flip(x[rows]) if self.augment else x[rows]
                optimizer.zero_grad()
                self.loss(model(batch), y[rows]).backward()
                optimizer.step()


class Processes:
    """`LeNetLoop`s in processes of one thread each: layers this small share threads badly.

    The clients are dealt out; the mean over the processes is left out, in the rival's favour.

    Args:
        examples: x, y, x_test, y_test as for `LeNetLoop`.
        number: of processes.
        options: of `LeNetLoop`.
    """

    def __init__(self, examples: Sequence, number: int, **options: bool):
        context = multiprocessing.get_context("spawn")
        self.ends, self.processes = [], []
        for i in range(number):
            ours, theirs = context.Pipe()
            share = tuple(part[i::number] for part in examples)
            process = context.Process(target=_serve, args=(theirs, share, options), daemon=True)
            process.start()
            self.ends.append(ours)
            self.processes.append(process)
        self._wait()

    def _wait(self):
        for end in self.ends:
            end.recv()

    def run(self, name: str) -> None:
        """Calls the method `name` of every loop and waits for all."""
        for end in self.ends:
            end.send(name)
        self._wait()

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join()


def _serve(end, examples, options):
    torch.set_num_threads(1)
    loop = LeNetLoop(*examples, **options)
    end.send(True)
    while (name := end.recv()) is not None:
        getattr(loop, name)()
        end.send(True)
