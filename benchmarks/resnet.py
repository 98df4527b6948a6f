"""A client of ResNet-18 in this package and in PyTorch, rounds in turn, and its convolutions one by one.

    python benchmarks/resnet.py [--python PYTHON] [--norm batch] [--clients 4] [--images 50] [--repeats 5]
        [--out FILE.json]

FedAvg with the ResNet-18 for images of 32 x 32 (11,173,962 parameters), one epoch in batches of 10 under each client's
own weights, on random images. PYTHON is that of an environment with PyTorch; it trains in a process of one thread for
each core, channels last, and leaves out the mean between the processes and over running statistics. Without it only
ours is timed. Ratios are medians over pairs of rounds, without compiling.

Then each shape of a convolution by itself, forwards, backwards and a step, in a loop as clients' steps are: processor
seconds of a step for every way of this package (`convolution=` of a model; "auto" names its choice), and seconds of
PyTorch's one thread, medians. Ways that a stride replaces are left out.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from harness.command import Child, parser, write
from harness.measure import (
    Rounds,
    arrays,
    cpu_seconds,
    machine,
    ratios,
    seconds,
    summary,
    synthetic,
)

import fedjax_srp as srp
from fedjax_srp.models.convolution import convolve, resolve

BATCH = 10
GROUPS = 2  # of GroupNorm
STEPS = 4  # of a measurement of a layer
WAYS = ("patches", "winograd", "xla")


class Shape(NamedTuple):
    """A convolution, and how often the network has it."""

    side: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    times: int
    batch: int = BATCH


SHAPES = (
    Shape(32, 3, 64, 3, 1, 1),
    Shape(32, 64, 64, 3, 1, 4),
    Shape(32, 64, 128, 3, 2, 1),
    Shape(32, 64, 128, 1, 2, 1),
    Shape(16, 128, 128, 3, 1, 3),
    Shape(16, 128, 256, 3, 2, 1),
    Shape(16, 128, 256, 1, 2, 1),
    Shape(8, 256, 256, 3, 1, 3),
    Shape(8, 256, 512, 3, 2, 1),
    Shape(8, 256, 512, 1, 2, 1),
    Shape(4, 512, 512, 3, 1, 3),
)


def steps_of(shape: Shape, way: str) -> Callable[[], object]:
    """Compiled steps of SGD on a convolution whose output has a given gradient."""
    zeros = ((0, 0), *[(shape.kernel // 2,) * 2] * 2, (0, 0))

    def out(both: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, kernel = both
        return convolve(jnp.pad(x, zeros), kernel, way, shape.stride)

    def several(both: tuple[jax.Array, jax.Array], given: jax.Array) -> Any:
        def step(_: int, carried: Any) -> Any:
            both, _ = carried
            output, pull_back = jax.vjp(out, both)
            (gradient,) = pull_back(given)
            stepped = jax.tree.map(lambda p, g: p - 1e-6 * g, both, gradient)
            return stepped, output  # unless it is returned, nothing computes it

        return jax.lax.fori_loop(0, STEPS, step, (both, given))

    x = jax.random.normal(
        jax.random.key(0), (shape.batch, shape.side, shape.side, shape.inputs)
    )
    size = (shape.kernel, shape.kernel, shape.inputs, shape.outputs)
    kernel = jax.random.normal(jax.random.key(1), size)
    given = jnp.ones(jax.eval_shape(out, (x, kernel)).shape)
    run = jax.jit(several)
    return lambda: jax.block_until_ready(run((x, kernel), given))


def layer(
    shape: Shape, theirs: Callable[[], float] | None, repeats: int
) -> dict[str, Any]:
    """Seconds of a step in each way, in turn."""
    side = shape.side // shape.stride
    size = (shape.kernel, shape.kernel, shape.inputs, shape.outputs)
    ways = WAYS
    if shape.stride > 1 or shape.kernel == 1:
        ways = ("patches", "xla")
    found: dict[str, Any] = shape._asdict()
    found["auto"] = resolve("auto", size, (shape.batch, side, side))
    if found["auto"] not in ways:
        found["auto"] = "patches"
    contenders: dict[str, Callable[[], float]] = {}
    for way in ways:
        contenders[way] = partial(cpu_seconds, steps_of(shape, way))
    if theirs is not None:
        contenders["torch"] = theirs
    for measure in contenders.values():
        measure()  # compiles
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            times[name].append(measure() / STEPS)
    return found | {name: statistics.median(of) for name, of in times.items()}


def main() -> None:
    command = parser(__doc__, 5)
    command.add_argument("--python", help="interpreter of an environment with PyTorch")
    command.add_argument("--norm", choices=("batch", "group"), default="batch")
    command.add_argument("--clients", type=int, default=4)
    command.add_argument("--images", type=int, default=50, help="of a client")
    command.add_argument(
        "--channels", type=int, nargs=4, default=(64, 128, 256, 512), help="of the rounds"
    )
    command.add_argument("--layers", type=int, default=len(SHAPES), help="to measure")
    args = command.parse_args()
    cores = srp.use_all_cores()
    data = synthetic(args.clients, args.images, 1, (32, 32, 3))
    model = srp.models.ResNet18(
        data.example_shape,
        10,
        channels=tuple(args.channels),
        norm=args.norm,
        groups=GROUPS,
    )
    training = srp.Training(srp.SGD(0.01), BATCH)
    ours = Rounds(srp.algorithms.FedAvg(model, training), data)
    times: dict[str, list[float]] = {"ours": []}
    child = None
    shapes = SHAPES[: args.layers]
    layers = []
    with tempfile.TemporaryDirectory() as folder:
        if args.python:
            x, y, *_ = arrays(data)
            file = Path(folder) / "examples.npz"
            np.savez(file, x=x, y=y)
            asked = {
                "channels": args.channels,
                "steps": STEPS,
                "layers": [shape._asdict() for shape in shapes],
            }
            groups = GROUPS * (args.norm == "group")
            here = Path(__file__).parent / "resnet_child.py"
            words = [args.python, str(here), str(file), str(groups), str(cores)]
            child = Child([*words, json.dumps(asked)], OMP_NUM_THREADS="1")
            times["torch"] = []
            child.seconds("round")  # warm
        for _ in range(args.repeats):
            times["ours"].append(seconds(ours))
            if child is not None:
                times["torch"].append(child.seconds("round")[0])
        for place, shape in enumerate(shapes):
            theirs = None
            if child is not None:
                theirs = partial(
                    lambda name, to: to.seconds(name)[0], f"layer {place}", child
                )
            layers.append(layer(shape, theirs, args.repeats))
            print(layers[-1], flush=True)
        if child is not None:
            child.close()
    results: dict[str, Any] = machine() | {
        "norm": args.norm,
        "clients": args.clients,
        "images": args.images,
        "compile_seconds": ours.compile_seconds,
        "working_bytes": ours.working_bytes,
        "layers": layers,
    }
    results |= {name: summary(of) for name, of in times.items()}
    if child is not None:
        results["torch_over_ours"] = summary(ratios(times, "torch", "ours"))
    write(args.out, results)
    for name, value in results.items():
        if name != "layers":
            print(name, value, flush=True)


if __name__ == "__main__":
    main()
