"""Options of the authors' code, one by one: why fine-tuned FLANP beats SRPFL here and not in the paper.

    python experiments/srpfl/causes.py --data-dir DIR --results experiments/srpfl/results

MNIST, 50 clients with 3 classes and 60 images each, 50 rounds, the rest as in figure 3. For these two methods the
text's setting and the code's differ in six options: the network ends in a softmax that the cross-entropy applies
again, PyTorch's initial weights, momentum, weight decay, SRPFL's optimizer lasts for all repetitions of a round, and
its newcomers start from the last cohort's mean head. `causes.csv` has a row for each setting, seed, method, evaluation
and evaluated round; what a call has run replaces its rows there. `cause_tables.py` makes the README's table from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import fedjax_srp as srp
from experiments import scripts
from experiments.srpfl.cause_tables import causes
from fedjax_srp.results.history import History

SOFTMAX, START, DECAY = (
    {"output": "softmax"},
    {"initialization": "torch"},
    {"weight_decay": 1e-4},
)
CODE_MLP = SOFTMAX | START | DECAY
ONE_OPTIMIZER = {"keeps_optimizer": True}
MEAN_HEADS = {"newcomers_take_mean_head": True}
METHODS = ("flanp_fedavg", "srpfl")


class Variant(NamedTuple):
    """Options of both methods, options of single methods, and the methods that run."""

    options: Mapping[str, Any] = MappingProxyType({})
    own: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    methods: tuple[str, ...] = METHODS


ONLY_SRPFL = ("srpfl",)
FLANP = {"flanp_fedavg": {"fine_tune_optimizer.momentum": 0.5}}
OF_CODE = FLANP | {"srpfl": {"momentum": 0.5} | ONE_OPTIMIZER | MEAN_HEADS}
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
OPTIONS = {"model": "mlp", "eval_first": 0}
CELL = {"classes_per_client": 3, "max_examples": 60}
SIZES = {
    "cpu": {
        "dataset": "mnist",
        "num_clients": 50,
        "epochs": 5,
        "num_rounds": 50,
        "eval_every": 10,
    },
    "smoke": {
        "dataset": "digits",
        "num_clients": 10,
        "hidden": (16, 8),
        "initial": 5,
        "epochs": 1,
        "num_rounds": 4,
        "eval_every": 2,
    },
}
EVALUATIONS = [
    {"method": "flanp_fedavg", "set": {"evaluations": ["global", "fine_tune"]}},
    {"method": "srpfl", "set": {"evaluations": ["fine_tune", "own_head"]}},
]


def tables() -> dict[str, Any]:
    """Return variants and rules of the grid."""
    where = list(EVALUATIONS)
    exclude = []
    for name, variant in VARIANTS.items():
        for method, options in variant.own.items():
            where.append({"variant": name, "method": method, "set": options})
        left_out = [method for method in METHODS if method not in variant.methods]
        if left_out:
            exclude.append({"variant": name, "method": left_out})
    variants = {name: dict(variant.options) for name, variant in VARIANTS.items()}
    return {"variants": variants, "where": where, "exclude": exclude}


def score_rows(history: History, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of a finished run, a row for each evaluation and evaluated round."""
    rows = []
    for evaluation in history.accuracies:
        means = history.mean_scores(evaluation)
        worst = history.worst_scores(evaluation)
        for place, number in enumerate(history.eval_round):
            scores = {
                "evaluation": evaluation,
                "round": int(number),
                "accuracy": round(100 * float(means[place]), 2),
                "worst_tenth": round(100 * float(worst[place]), 2),
            }
            rows.append({**facts, **scores})
    return rows


def first_gradient(
    setting: str, seed: int, scale: str, data_dir: str | None
) -> dict[str, float]:
    """Norms of the initial gradient of all examples' mean loss, in the last layer and in all layers below it."""
    size = SIZES[scale]
    data = srp.data.load(
        size["dataset"], num_clients=size["num_clients"], data_dir=data_dir, **CELL
    )
    shared = {"hidden": size["hidden"]} if "hidden" in size else {}
    method = srp.methods.get(
        "flanp_fedavg",
        dataset=data,
        model="mlp",
        shared=shared | VARIANTS[setting].options | {"initial": 1},
    )
    model = method.algorithm.model
    # all clients have equally many
    examples = jax.vmap(data.train_client)(jnp.arange(data.num_clients))
    x, y = (leaf.reshape(-1, *leaf.shape[2:]) for leaf in (examples.x, examples.y))
    loss = lambda params: jnp.mean(model.loss(model.logits(params, x), y))
    gradient = jax.grad(loss)(model.init(jax.random.key(seed)))
    parts = {"head": gradient.head, "below": gradient.representation}
    return {name: float(optax.tree.norm(part)) for name, part in parts.items()}


def table_of(grid: Any, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the scores of a grid's runs, with these columns of their options."""
    rows = []
    for name, history in grid.histories.items():
        values = grid.values[name]
        facts = {column: values[option] for column, option in columns.items()}
        rows += score_rows(history, facts)
    return rows


def main() -> None:
    parser = scripts.grid_parser(
        __doc__,
        SIZES,
        "runs/srpfl/causes",
        "data-dir",
        settings={
            "nargs": "+",
            "choices": VARIANTS,
            "default": list(VARIANTS),
            "metavar": "NAME",
        },
        seeds={"type": int, "default": 3},
    )
    parser.epilog = "--dry-run plans the runs alone; the gradients are measured after them, for each setting and seed"
    args = parser.parse_args()
    seeds = list(range(args.seeds))
    found = scripts.run_grid(
        args,
        options=OPTIONS | CELL,
        axes={"variant": args.settings, "seed": seeds, "method": list(METHODS)},
        scales={name: {"options": size} for name, size in SIZES.items()},
        **tables(),
    )
    axes = {"setting": args.settings, "seed": seeds}
    gradients = scripts.measure(args, first_gradient, axes=axes).table
    results = scripts.results_folder(args)
    columns = {"setting": "variant", "seed": "seed", "method": "method"}
    scripts.write_table(results / "causes.csv", table_of(found, columns), [*columns])
    norms = gradients[["setting", "seed", "head", "below"]]
    file = results / "causes_gradients.csv"
    scripts.write_table(file, norms, ["setting", "seed"], "%.3g")
    print(causes(results))


if __name__ == "__main__":
    main()
