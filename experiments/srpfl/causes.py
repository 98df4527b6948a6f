"""Options of the authors' code, one by one: why fine-tuned FLANP beats SRPFL here and not in the paper.

    python experiments/srpfl/causes.py --data-dir DIR --results experiments/srpfl/results

MNIST, 50 clients with 3 classes and 60 images each, 50 rounds, the rest as in figure 3. For these two methods the
text's setting and the code's differ in six options: the network ends in a softmax that the cross-entropy applies
again, PyTorch's initial weights, momentum, weight decay, SRPFL's optimizer lasts for all repetitions of a round, and
its newcomers start from the last cohort's mean head. All settings run with one seed before the next, and
`causes.csv` is written after each setting: a row for each setting, seed, method, evaluation and evaluated round. What
is already in the file does not run again. `cause_tables.py` makes the README's table from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd

import fedjax_srp as srp
from experiments.srpfl.cause_tables import causes
from experiments.srpfl.paper import (
    CODE_MLP,
    CODE_OWN,
    FIGURES,
    MEAN_HEADS,
    ONE_OPTIMIZER,
    Setting,
    Study,
    scripts,
)
from fedjax_srp.results import atomic
from fedjax_srp.results.history import History

SOFTMAX, START, DECAY = (
    {key: CODE_MLP[key]} for key in ("output", "initialization", "weight_decay")
)
METHODS = ("flanp_fedavg", "srpfl")


class Variant(NamedTuple):
    """Options of both methods, options of single methods, and the methods that run."""

    options: Mapping[str, Any] = MappingProxyType({})
    own: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    methods: tuple[str, ...] = METHODS


ONLY_SRPFL = ("srpfl",)
FLANP = {"flanp_fedavg": CODE_OWN["flanp_fedavg"]}
OF_CODE = FLANP | {"srpfl": CODE_OWN["srpfl"]}
MOMENTUM = FLANP | {"srpfl": {"momentum": 0.5}}
MOMENTUM_MEAN_HEADS = FLANP | {"srpfl": {"momentum": 0.5} | MEAN_HEADS}
MOMENTUM_ONE_OPTIMIZER = FLANP | {"srpfl": {"momentum": 0.5} | ONE_OPTIMIZER}
ONE_HEAD_EPOCH = {
    "srpfl": {"head_epochs": 1}
}  # instead of 10, before each epoch of the representation
# FLANP (FedAvg) has no own head and one optimizer a round anyway: the last two of the six options change SRPFL alone,
# and `causes.csv` has the same runs of FLANP with and without them ("both").
VARIANTS = {
    "text": Variant(),
    "code": Variant(CODE_MLP, OF_CODE),
    "double softmax": Variant(SOFTMAX),
    "PyTorch's start": Variant(START),
    "momentum": Variant(own=MOMENTUM),
    "double softmax and start": Variant(SOFTMAX | START),
    "double softmax, heads of 1 epoch": Variant(SOFTMAX, ONE_HEAD_EPOCH, ONLY_SRPFL),
    "double softmax and start, heads of 1 epoch": Variant(
        SOFTMAX | START, ONE_HEAD_EPOCH, ONLY_SRPFL
    ),
    "code without double softmax": Variant(START | DECAY, OF_CODE),
    "code without PyTorch's start": Variant(SOFTMAX | DECAY, OF_CODE),
    "weight decay": Variant(DECAY),
    "newcomers with mean heads": Variant(own={"srpfl": MEAN_HEADS}, methods=ONLY_SRPFL),
    "momentum, one optimizer": Variant(own=MOMENTUM_ONE_OPTIMIZER, methods=ONLY_SRPFL),
    "code without mean heads": Variant(CODE_MLP, MOMENTUM_ONE_OPTIMIZER, ONLY_SRPFL),
    "code without one optimizer": Variant(CODE_MLP, MOMENTUM_MEAN_HEADS, ONLY_SRPFL),
    "code without both": Variant(CODE_MLP, MOMENTUM),
    "code without both and double softmax": Variant(START | DECAY, MOMENTUM),
    "code without both and PyTorch's start": Variant(SOFTMAX | DECAY, MOMENTUM),
}
FEDERATION = {
    "name": "mnist",
    "num_clients": 50,
    "classes_per_client": 3,
    "max_examples": 60,
}
SMOKE = {"name": "digits", "num_clients": 10, "classes_per_client": 3}


def setting(variant: str, smoke: bool = False) -> Setting:
    """Return a variant as a column of figure 3."""
    small = {"hidden": (16, 8), "initial": 5, "epochs": 1} if smoke else {"epochs": 5}
    return Setting(
        variant,
        SMOKE if smoke else FEDERATION,
        {"model": "mlp"} | small | VARIANTS[variant].options,
        num_rounds=4 if smoke else 50,
        eval_every=2 if smoke else 10,
        eval_first=0,
        own=VARIANTS[variant].own,
    )


def score_rows(study: Study, training: str, seed: int) -> list[dict]:
    """Return the scores of a finished run, a row for each evaluation and evaluated round."""
    history = History.load(study.run_folder(training, seed))
    return [
        {
            "setting": study.setting.title, "seed": seed, "method": training, "evaluation": evaluation,
            "round": int(number), "accuracy": round(100 * float(mean), 2), "worst_tenth": round(100 * float(worst), 2),
        }
        for evaluation in history.accuracies
        for number, mean, worst in zip(
            history.eval_round, history.mean_scores(evaluation), history.worst_scores(evaluation), strict=True
        )
    ]  # fmt: skip


def first_gradients(study: Study, seed: int) -> dict[str, float]:
    """Norms of the initial gradient of all examples' mean loss, in the last layer and in all layers below it."""
    model, data = study.method("flanp_fedavg").algorithm.model, study.data
    examples = jax.vmap(data.train_client)(
        jnp.arange(data.num_clients)
    )  # all clients have equally many
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (examples.x, examples.y)
    )
    loss = lambda params: jnp.mean(model.loss(model.logits(params, flat[0]), flat[1]))
    gradient = jax.grad(loss)(model.init(jax.random.key(seed)))
    return {"head": tree_norm(gradient.head), "below": tree_norm(gradient.representation)}


def tree_norm(tree: Any) -> float:
    """Norm of all leaves together."""
    return float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))))


def read_rows(path: Path) -> list[dict]:
    """Read the rows that earlier calls wrote."""
    return pd.read_csv(path).to_dict("records") if path.exists() else []


def write_rows(results: Path, rows: list[dict], gradients: list[dict]) -> None:
    """Write both tables together, so that a kill leaves no rows without their gradients."""
    atomic.replace({
        results / "causes.csv": lambda path: pd.DataFrame(rows).to_csv(path, index=False),
        results / "causes_gradients.csv": lambda path: pd.DataFrame(gradients).to_csv(
            path, index=False, float_format="%.3g"
        ),
    })  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, (), "runs/srpfl/causes", "data-dir", "results")
    parser.add_argument(
        "--smoke", action="store_true", help="digits, 10 clients, 4 rounds"
    )
    parser.add_argument(
        "--settings", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME"
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(arguments)
    srp.use_all_cores()
    results = scripts.results_folder(args)
    studies = {
        name: Study(
            FIGURES[3],
            setting(name, args.smoke),
            args.out / name.replace(" ", "_"),
            args.data_dir,
            print,
        )
        for name in args.settings
    }
    rows, gradients = (
        read_rows(results / name) for name in ("causes.csv", "causes_gradients.csv")
    )
    done = {(row["setting"], row["seed"], row["method"]) for row in rows}
    with_gradient = {(row["setting"], row["seed"]) for row in gradients}
    for seed in range(args.seeds):
        for name, study in studies.items():
            missing = [
                training
                for training in VARIANTS[name].methods
                if (name, seed, training) not in done
            ]
            if not missing:
                continue
            if (name, seed) not in with_gradient:
                gradients.append(
                    {"setting": name, "seed": seed} | first_gradients(study, seed)
                )
            for training in missing:
                study.train(training, [seed], together=False)
                rows += score_rows(study, training, seed)
            write_rows(results, rows, gradients)
    print(causes(results))


if __name__ == "__main__":
    main()
