"""Rounds of FedAvg and FedRep compared with FedJAX's compiled loop over clients, in turn.

    python benchmarks/fedjax_rival.py --fedjax CHECKOUT [--haiku FOLDER] [--clients 100] [--repeats 9] [--out FILE.json]

CHECKOUT is a git checkout of google/fedjax at its head: no release of it runs with today's JAX. It needs dm-haiku and
jmp, of this environment or of FOLDER (`pip install --no-deps --target FOLDER dm-haiku jmp`).

MLP 784-512-256-64-10, clients of 150 random images, batches of 10, plain SGD. FedAvg is FedJAX's own
`fed_avg.federated_averaging`; FedRep (ten epochs of the head, one of the representation) is two `for_each_client` with
its jit backend, since it has no FedRep. FedJAX runs in a separate process with XLA's default threads, this package with
a device for each core; rounds of both alternate, and ratios are medians over pairs.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from harness.command import Child, parser, serve, write
from harness.measure import Rounds, arrays, machine, paired, seconds, synthetic

import fedjax_srp as srp

EXAMPLES = 150
BATCH = 10
RATE = 0.01
HEAD_EPOCHS = 10


def fedjax_rounds(clients: int) -> dict[str, Callable[[], None]]:
    """A function for each method that runs a round in FedJAX and waits."""
    fedjax = importlib.import_module("fedjax")
    fedjax.set_for_each_client_backend("jit")
    data = synthetic(clients, EXAMPLES, tests=1)
    x, y, *_ = arrays(data)
    examples = [
        (str(i).encode(), fedjax.ClientDataset({"x": x[i], "y": y[i]}))
        for i in range(clients)
    ]
    model = srp.models.MLP(data.example_shape, data.num_classes)
    start = model.init(jax.random.key(0))
    sgd = fedjax.optimizers.sgd(RATE)
    one_epoch = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, seed=0)
    head_epochs = fedjax.ShuffleRepeatBatchHParams(
        batch_size=BATCH, num_epochs=HEAD_EPOCHS, seed=0
    )

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean(model.loss(model.logits(params, batch["x"]), batch["y"]))

    # FedAvg
    fed_avg = importlib.import_module("fedjax.algorithms.fed_avg")
    averaging = fed_avg.federated_averaging(
        lambda params, batch, key: jax.grad(loss)(params, batch),
        sgd,
        fedjax.optimizers.sgd(1.0),
        one_epoch,
    )
    keys = list(jax.random.split(jax.random.PRNGKey(0), clients))
    cohort = [
        (name, dataset, key) for (name, dataset), key in zip(examples, keys, strict=True)
    ]
    held = {"server": averaging.init(start)}

    def round_of_fedavg() -> None:
        held["server"], _ = averaging.apply(held["server"], cohort)
        jax.block_until_ready(held["server"].params)

    # FedRep
    def trainer(loss_of: Callable[[Any, Any, Any], Any]) -> Any:
        """`for_each_client` that trains one part and freezes the other."""

        def init(shared: Any, own: Any) -> Any:
            trained, frozen = own if shared is None else (shared, own)
            return {"trained": trained, "frozen": frozen, "optimizer": sgd.init(trained)}

        def step(state: Any, batch: Any) -> Any:
            gradient = jax.grad(loss_of)(state["trained"], state["frozen"], batch)
            optimizer, trained = sgd.apply(gradient, state["optimizer"], state["trained"])
            return {"trained": trained, "frozen": state["frozen"], "optimizer": optimizer}

        return fedjax.for_each_client(init, step, lambda shared, state: state["trained"])

    parts = type(start)
    fit_heads = trainer(lambda head, body, batch: loss(parts(body, head), batch))
    fit_bodies = trainer(lambda body, head, batch: loss(parts(body, head), batch))
    state = {
        "body": start.representation,
        "heads": {name: start.head for name, _ in examples},
    }

    def round_of_fedrep() -> None:
        given = [
            (n, d.shuffle_repeat_batch(head_epochs), (state["heads"][n], state["body"]))
            for n, d in examples
        ]
        state["heads"] = dict(fit_heads(None, given))
        given = [
            (n, d.shuffle_repeat_batch(one_epoch), state["heads"][n]) for n, d in examples
        ]
        bodies = ((body, 1.0) for _, body in fit_bodies(state["body"], given))
        state["body"] = fedjax.tree_util.tree_mean(bodies)
        jax.block_until_ready(state["body"])

    rounds = {"fedavg": round_of_fedavg, "fedrep": round_of_fedrep}
    for function in rounds.values():
        function()
    return rounds


def main() -> None:
    command = parser(__doc__, 9)
    command.add_argument(
        "--fedjax", type=Path, required=True, help="a git checkout of google/fedjax"
    )
    command.add_argument(
        "--haiku",
        type=Path,
        help="folder with dm-haiku and jmp, if this environment has none",
    )
    command.add_argument("--clients", type=int, default=100)
    command.add_argument(
        "--serve", action="store_true", help="run FedJAX's rounds on request"
    )
    args = command.parse_args()
    if args.serve:
        serve(fedjax_rounds(args.clients))
        return
    folders = [args.fedjax, *filter(None, [args.haiku])]
    path = os.pathsep.join(
        [*(str(folder.resolve()) for folder in folders), *filter(None, sys.path)]
    )
    words = ["--fedjax", str(args.fedjax), "--clients", str(args.clients), "--serve"]
    rival = Child([sys.executable, __file__, *words], PYTHONPATH=path)
    srp.use_all_cores()
    data = synthetic(args.clients, EXAMPLES, tests=1)
    model = srp.models.MLP(data.example_shape, data.num_classes)
    training = srp.Training(srp.SGD(RATE))
    ours = {
        "fedavg": Rounds(srp.algorithms.FedAvg(model, training), data),
        "fedrep": Rounds(
            srp.algorithms.FedRep(model, training, head_epochs=HEAD_EPOCHS), data
        ),
    }
    results: dict[str, Any] = {}
    for name, run in ours.items():
        results[name] = paired(
            partial(seconds, run), lambda name=name: rival.seconds(name)[0], args.repeats
        )
        print(
            f"{name}: "
            + "  ".join(f"{key} {value:.4g}" for key, value in results[name].items()),
            flush=True,
        )
    rival.close()
    write(
        args.out,
        machine()
        | {"clients": args.clients, "repeats": args.repeats, "results": results},
    )


if __name__ == "__main__":
    main()
