"""Rounds of large settings: seconds, memory, and the estimate that a simulation makes before it runs.

    python benchmarks/large.py [--settings NAME ...] [--repeats 5] [--clients N] [--examples M] [--out FILE.json]

| setting | clients | round |
|---|---|---|
| blazefl-cnn | 100 with 500 images, all in every round | FedAvg, 5 epochs, batches of 50; 62,006 parameters |
| blazefl-resnet18 | the same | the same with ResNet-18 and BatchNorm |
| pfllib-500 | 500 with 90 images of 100 classes | FedAvg, 1 epoch, batches of 10; PFLlib's CNN |
| lenet5-fedrep, lenet5-hf_maml | 1,000 with 100 images | the method with its defaults |

Images of 32 x 32 x 3 are random numbers, on which a round takes as long. Chunks are the package's default. --clients
and --examples replace those of the settings. A peak is that of the process so far: run one setting at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from harness.command import parser, write
from harness.measure import Rounds, machine, peak_memory, seconds, summary, synthetic

import fedjax_srp as srp
from fedjax_srp.driver.memory import estimate
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings
from fedjax_srp.models import Convolution, Dense, Layer, Split
from fedjax_srp.models.lenet import pooled_relu

SHAPE = (32, 32, 3)
SMALL_CNN = (
    Layer("conv1", Convolution(6), pooled_relu, block=50),
    Layer("conv2", Convolution(16), pooled_relu, block=50),
    Layer("fc1", Dense(120), jax.nn.relu),
    Layer("fc2", Dense(84), jax.nn.relu),
    Layer("out", Dense(10)),
)
PFLLIB_CNN = (
    Layer("conv1", Convolution(32), pooled_relu, block=50),
    Layer("conv2", Convolution(64), pooled_relu, block=50),
    Layer("fc1", Dense(512), jax.nn.relu),
    Layer("out", Dense(100)),
)


class Setting(NamedTuple):
    """Clients and their training."""

    model: srp.models.SplitModel
    clients: int
    examples: int
    method: str = "fedavg"
    options: Mapping[str, Any] = MappingProxyType({})  # of `srp.methods.get`


BLAZEFL = {"epochs": 5, "batch_size": 50, "learning_rate": 0.1}
PFLLIB = {"epochs": 1, "batch_size": 10, "learning_rate": 0.005}
SETTINGS = {
    "blazefl-cnn": Setting(
        Split(SHAPE, 10, SMALL_CNN, name="small_cnn", cut=None), 100, 500, options=BLAZEFL
    ),
    "blazefl-resnet18": Setting(
        srp.models.ResNet18(SHAPE, 10), 100, 500, options=BLAZEFL
    ),
    "pfllib-500": Setting(
        Split(SHAPE, 100, PFLLIB_CNN, name="pfllib_cnn", cut=None),
        500,
        90,
        options=PFLLIB,
    ),
    "lenet5-fedrep": Setting(srp.models.LeNet5(SHAPE, 10), 1000, 100, "fedrep"),
    "lenet5-hf_maml": Setting(srp.models.LeNet5(SHAPE, 10), 1000, 100, "hf_maml"),
}


def measured(
    setting: Setting, clients: int | None, examples: int | None, repeats: int
) -> dict[str, Any]:
    """Seconds a round, and memory."""
    clients = clients or setting.clients
    examples = examples or setting.examples
    model = setting.model
    data = synthetic(clients, examples, -(-examples // 5), SHAPE, model.num_classes)
    method = srp.methods.get(
        setting.method,
        dataset=data,
        model=model,
        participation="full",
        **setting.options,
    )
    request = Request(method, data, settings=Settings(evaluations=()))
    run = Rounds(method.algorithm, data, method.participation)
    return {
        "clients": clients,
        "examples": examples,
        "parameters": sum(
            leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0)))
        ),
        "chunks": [part.chunk_size for part in run.layout.by_chunk_size],
        "seconds": summary([seconds(run) for _ in range(repeats)]),
        "compile_seconds": run.compile_seconds,
        "estimated_bytes": estimate(prepare(request))._asdict(),
        "working_bytes": run.working_bytes,
        "peak_bytes_so_far": peak_memory(),
    }


def main() -> None:
    command = parser(__doc__, 5)
    command.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    command.add_argument("--clients", type=int, help="default: those of the setting")
    command.add_argument("--examples", type=int, help="default: those of the setting")
    args = command.parse_args()
    srp.use_all_cores()
    facts: dict[str, Any] = {"machine": machine(), "settings": {}}
    for name in args.settings:
        found = measured(SETTINGS[name], args.clients, args.examples, args.repeats)
        facts["settings"][name] = found
        print(name, f"{found['seconds']['median']:.3g} s a round", found, flush=True)
        write(args.out, facts)


if __name__ == "__main__":
    main()
