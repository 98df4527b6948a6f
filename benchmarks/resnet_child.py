"""ResNet-18 in PyTorch: the child process of `resnet.py`, in an environment with PyTorch.

    PYTHON benchmarks/resnet_child.py EXAMPLES.npz GROUPS WORKERS JSON

EXAMPLES has x and y of the clients, GROUPS is that of GroupNorm, or 0 for BatchNorm. "round" is a round of FedAvg in so
many processes, "layer 3" some steps on the convolution of that number in JSON, in one thread of this process.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable

import numpy as np
import torch
from harness.command import serve
from harness.torch_loop import Processes, resnet18


def steps_of(layer: dict[str, int], number: int) -> Callable[[], None]:
    """Steps of SGD on a convolution whose output's gradient is 1."""
    size = layer["kernel"]
    convolution = torch.nn.Conv2d(
        layer["inputs"], layer["outputs"], size, layer["stride"], size // 2, bias=False
    )
    x = torch.randn(layer["batch"], layer["inputs"], layer["side"], layer["side"])
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    convolution.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD([x, convolution.weight], lr=1e-6)

    def run() -> None:
        for _ in range(number):
            optimizer.zero_grad()
            out = convolution(x)
            out.backward(torch.ones_like(out))
            optimizer.step()

    return run


def main() -> None:
    file, groups, workers, layers = sys.argv[1:]
    torch.set_num_threads(1)
    with np.load(file) as found:
        examples = [found[name] for name in ("x", "y", "x", "y")]
    asked = json.loads(layers)
    model = functools.partial(resnet18, int(groups) or None, asked["channels"])
    processes = Processes(examples, int(workers), model)
    functions: dict[str, Callable[[], object]] = {
        "round": functools.partial(processes.run, "fedavg_round")
    }
    for place, layer in enumerate(asked["layers"]):
        functions[f"layer {place}"] = steps_of(layer, asked["steps"])
    serve(functions)
    processes.close()


if __name__ == "__main__":
    main()
