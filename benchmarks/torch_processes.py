"""Rivals of lenet.py: PyTorch loops in processes of one thread each, as such small layers use threads badly."""

# pyright: reportMissingImports=false

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import torch
from harness.torch_loop import TorchLoop, lenet5


class Processes:
    """Clients divided among processes; the mean over the processes is left out, in the rival's favour.

    Args:
        examples: as for `TorchLoop`.
        number: of processes.
        channels_last: how images lie in memory.
        options: of `TorchLoop`.
    """

    def __init__(self, examples: Sequence, number: int, channels_last: bool = False, **options: bool):
        context = multiprocessing.get_context("spawn")
        self.ends, self.processes = [], []
        for i in range(number):
            ours, theirs = context.Pipe()
            share = tuple(part[i::number] for part in examples)
            process = context.Process(target=_serve, args=(theirs, share, channels_last, options), daemon=True)
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


def _serve(end, examples, channels_last, options):
    torch.set_num_threads(1)
    model = lenet5()
    if channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    loop = TorchLoop(model, examples, **options)
    end.send(True)
    while (name := end.recv()) is not None:
        getattr(loop, name)()
        end.send(True)
