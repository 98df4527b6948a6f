"""Shared code of figures 3 to 6 of the SRPFL paper: data sets, methods, training runs and command line.

A run is stored in a folder below --out: finished runs are loaded, and interrupted ones continue from their last
evaluation. Two kinds of runs serve more than one curve, with the same numbers:

* FedAvg-FT is FedAvg evaluated after fine-tuning, and FLANP-FT is FLANP (FedAvg): one training run, two curves;
* the cohorts of FedAvg, FedRep, LG-FedAvg and HF-MAML (all clients, or a pool drawn at random) do not depend on the
  clock, so one training run serves the fixed and the random clock, and only its times are drawn again (`retime`).
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import fedjax_srp as srp
from experiments import scripts
from experiments.srpfl.paper_tables import OWN_PARTS, report
from fedjax_srp import methods
from fedjax_srp.results.history import History
from fedjax_srp.results.json_files import jsonable


class Figure(NamedTuple):
    """A figure of the paper: its clock, and the share of the clients drawn in each round."""

    clock: str
    pool_fraction: float
    title: str


FIGURES = {
    3: Figure("fixed", 1.0, "full participation, fixed speeds"),
    4: Figure("random", 1.0, "full participation, random speeds"),
    5: Figure("fixed", 0.2, "a fifth of the clients drawn per round, fixed speeds"),
    6: Figure("random", 0.2, "a fifth of the clients drawn per round, random speeds"),
}


class Curve(NamedTuple):
    """A curve of the paper: a training run and the evaluation of its clients."""

    training: str  # name of the method in `srp.methods`
    evaluation: str


CURVES = {
    "fedrep": Curve("fedrep", "fine_tune"),
    "srpfl": Curve("srpfl", "fine_tune"),
    "lg_fedavg": Curve("lg_fedavg", "fine_tune"),
    "lg_srpfl": Curve("lg_srpfl", "fine_tune"),
    "fedavg": Curve("fedavg", "global"),
    "fedavg_ft": Curve("fedavg", "fine_tune"),
    "flanp_fedavg": Curve("flanp_fedavg", "global"),
    "flanp_fedavg_ft": Curve("flanp_fedavg", "fine_tune"),
    "hf_maml": Curve("hf_maml", "one_inner_step"),
}


def evaluations(training: str) -> list[str]:
    """Return the evaluations of a training run: those of its curves first, then that of the clients' own part."""
    wanted = [curve.evaluation for curve in CURVES.values() if curve.training == training]
    return [*wanted, OWN_PARTS[training]] if training in OWN_PARTS else wanted


class Setting(NamedTuple):
    """A column of a figure: data, model and work; defaults are the paper's."""

    title: str
    federation: dict[str, Any]  # arguments of `srp.data.load`
    method: dict[str, Any]  # arguments of `srp.methods.get`
    num_rounds: int = 150
    eval_every: int = 10
    eval_first: int = (
        40  # on images: the rounds of the four stages before all clients take part
    )
    seeds: int = 4
    own: Mapping[str, dict[str, Any]] = MappingProxyType(
        {}
    )  # training run -> options of this method only


def by_class(name: str, num_clients: int, per_client: int, **more: Any) -> dict[str, Any]:
    """Return arguments of `srp.data.load`."""
    return {
        "name": name,
        "num_clients": num_clients,
        "classes_per_client": per_client,
    } | more


_MLP = {"model": "mlp", "epochs": 5}
_LENET = {"model": "lenet5", "epochs": 1}
_LENET_100 = {"model": "lenet5_cifar100"}
_AUGMENTED = {"augment": "crop_flip"}
_EMNIST = by_class("emnist/balanced", 100, 5, classes=range(10))
_FEMNIST = by_class(  # lower-case a to j; normalised like EMNIST, where the paper divides by 255 only
    "emnist/byclass",
    100,
    3,
    classes=range(36, 46),
    partition="consecutive",
    examples_per_class=50,
)
_SHORT = {"num_rounds": 60, "seeds": 1}
SETTINGS: dict[str, dict[str, Setting]] = {
    "full": {
        # Evaluated every tenth round only, as in the paper: 100 clients fine-tune their heads in each evaluation.
        "cifar10": Setting(
            "CIFAR-10 full",
            by_class("cifar10", 100, 5),
            _LENET | _AUGMENTED,
            eval_first=0,
        ),
        "cifar100": Setting(
            "CIFAR-100",
            by_class("cifar100", 100, 20),
            _LENET_100 | {"epochs": 5} | _AUGMENTED,
        ),
        "emnist": Setting("EMNIST", _EMNIST, _MLP),
        "femnist": Setting("FEMNIST", _FEMNIST, _MLP),
    },
    "cpu": {
        "digits": Setting(  # not in the paper; needs no files and takes seconds a run
            "digits",
            by_class("digits", 50, 3),
            _MLP | {"hidden": (64, 32), "initial": 5, "learning_rate": 0.05},
            eval_every=1,
            eval_first=0,
        ),
        "mnist": Setting(
            "MNIST", by_class("mnist", 100, 5, max_examples=150), _MLP, seeds=3
        ),
        "cifar10": Setting(
            "CIFAR-10", by_class("cifar10", 100, 5, max_examples=50), _LENET, **_SHORT
        ),
        "cifar100": Setting(
            "CIFAR-100",
            by_class("cifar100", 100, 20, max_examples=100),
            _LENET_100 | {"epochs": 1},
            **_SHORT,
        ),
        "emnist": Setting("EMNIST", _EMNIST | {"max_examples": 150}, _MLP, seeds=3),
        "femnist": Setting("FEMNIST", _FEMNIST | {"max_examples": 90}, _MLP, seeds=3),
    },
    "gpu": {
        "mnist": Setting("MNIST-480", by_class("mnist", 100, 5, max_examples=480), _MLP),
        "mnist150": Setting(
            "MNIST-150", _FEMNIST | {"name": "mnist", "classes": range(10)}, _MLP
        ),  # as FEMNIST
    },
    "code": {},  # filled below
    "smoke": {
        "digits": Setting(
            "digits",
            by_class("digits", 20, 4),
            {
                "model": "mlp",
                "hidden": (16, 8),
                "initial": 2,
                "rounds_per_stage": 1,
                "learning_rate": 0.1,
            },
            num_rounds=4,
            eval_every=2,
            eval_first=2,
            seeds=2,
        ),
    },
}

# Options of the authors' code that the text lacks or contradicts, see docs/methods.md. HF-MAML keeps the text's step,
# because it diverges with the code's.
CODE = {"initialization": "torch", "weight_decay": 1e-4}
CODE_MLP = CODE | {"output": "softmax"}
ONE_OPTIMIZER = {"keeps_optimizer": True}
MEAN_HEADS = {"newcomers_take_mean_head": True}
CODE_OWN = (
    {name: {"momentum": 0.5} | ONE_OPTIMIZER | MEAN_HEADS for name in ("fedrep", "srpfl")}
    | {
        n: {"fine_tune_optimizer.momentum": 0.5}
        for n in ("lg_fedavg", "lg_srpfl", "fedavg", "flanp_fedavg")
    }
    | {"hf_maml": {"weight_decay": 0.0}}
)


def with_code_options(setting: Setting) -> Setting:
    """Return the same column with the options of the authors' code, and files of its own."""
    options = CODE_MLP if setting.method["model"] == "mlp" else CODE
    return setting._replace(
        title=f"{setting.title} code", method=setting.method | options, own=CODE_OWN
    )


SETTINGS["code"] |= {
    name: with_code_options(SETTINGS["full"][name]) for name in SETTINGS["full"]
}
SETTINGS["code"]["digits"] = with_code_options(SETTINGS["cpu"]["digits"])
SETTINGS["code"]["mnist"] = with_code_options(SETTINGS["cpu"]["mnist"])
SETTINGS["code"]["mnist480"] = with_code_options(SETTINGS["gpu"]["mnist"])
SETTINGS["code"]["mnist150"] = with_code_options(SETTINGS["gpu"]["mnist150"])


# As the text reads with the papers that it cites, see readings.py: FedRep's rounds are 10 epochs of the head, then 5 of
# the representation.
FEDREPS_ROUNDS = {"epochs": 1, "head_epochs": 10, "representation_epochs": 5}
SETTINGS["reading"] = {
    "digits": SETTINGS["cpu"]["digits"]._replace(
        title="digits, 1 x (10 + 5)",
        own=dict.fromkeys(("fedrep", "srpfl"), FEDREPS_ROUNDS),
    )
}


@srp.part
class Idle(srp.FederatedAlgorithm):
    """Algorithm whose clients do nothing; its rounds take the time of the clock."""

    def init(self, key, data):
        return ()

    def client(self, key, broadcast, state, client, context):
        return srp.ClientOutput(())

    def server(self, key, server, mean, context):
        return server


def retime(
    history: History, method: srp.Method, data: Any, clock: srp.Clock, seed: int
) -> History:
    """Return the same run with the times of another clock, drawn by simulating clients that do nothing.

    For methods whose cohorts do not depend on speeds (`full` and `uniform`): their training is the same, bit for bit
    except for the order of sums, and only the times differ.

    Raises:
        ValueError: the participation of the method depends on speeds.
    """
    if method.participation.name not in ("full", "uniform"):
        raise ValueError(
            f"{method.name}: participation {method.participation.name!r} depends on speeds; train it anew"
        )
    times = srp.simulate(
        Idle(),
        data,
        participation=method.participation,
        clock=clock,
        num_rounds=history.num_rounds,
        eval_every=history.num_rounds,
        key=jax.random.key(seed),
        progress=False,
    )
    return dataclasses.replace(
        history, compute_time=times.compute_time, client_time=times.client_time
    )


class Study:
    """Runs of one data set of one figure, stored in folders."""

    def __init__(
        self,
        figure: Figure,
        setting: Setting,
        out: Path,
        data_dir: Path | None,
        log: Callable[[str], None],
    ):
        self.figure, self.setting, self.log = figure, setting, log
        federation = (
            setting.federation
            if data_dir is None
            else setting.federation | {"data_dir": data_dir}
        )
        self.data = srp.data.load(**federation)
        num_clients = self.data.num_clients
        pool = (
            None
            if figure.pool_fraction == 1
            else max(2, round(figure.pool_fraction * num_clients))
        )
        self.pool = {} if pool is None else {"pool": pool}
        self.folder = out / ("everybody" if pool is None else f"pool_{pool}")
        exponential, uniform = srp.clocks.Exponential, srp.clocks.Uniform
        self.clocks = {
            "fixed": srp.clocks.Fixed(exponential(1.0)),
            "random": srp.clocks.Dynamic(exponential(uniform(1 / num_clients, 1.0))),
        }

    def options(self, name: str) -> dict[str, Any]:
        """Return the arguments of `srp.methods.get`."""
        return self.setting.method | self.pool | self.setting.own.get(name, {})

    def method(self, name: str) -> srp.Method:
        """Return the method of a training run."""
        shared = self.options(name)
        return methods.get(
            name, dataset=self.data, model=shared.pop("model"), shared=shared
        )

    def run_folder(self, name: str, seed: int) -> Path:
        """Return the folder of a run; runs whose cohorts do not depend on speeds serve every clock."""
        return (
            self.folder
            / (
                f"{self.figure.clock}_clock"
                if methods.recipe(name).doubling
                else "any_clock"
            )
            / (f"{name}/seed_{seed}")
        )

    def describe_run(self, name: str, seed: int) -> Any:
        """Return everything that determines a run, to compare it with a finished one."""
        clock = self.figure.clock if methods.recipe(name).doubling else "any"
        setting = self.setting._replace(title="", seeds=0, own={})._asdict()
        return jsonable(
            {
                "training": name,
                "seed": seed,
                "clock": clock,
                "options": self.options(name),
                **setting,
            }
        )

    def train(self, name: str, seeds: Sequence[int], together: bool) -> None:
        """Run the unfinished seeds with checkpoints: as one program, or one after the other."""
        finished = lambda seed: scripts.is_finished(
            self.run_folder(name, seed), self.describe_run(name, seed)
        )
        missing = [seed for seed in seeds if not finished(seed)]
        if not missing:
            return
        options = {
            # Runs that serve every clock are trained under the same one, so that any figure can continue them.
            "clock": self.clocks[
                self.figure.clock if methods.recipe(name).doubling else "fixed"
            ],
            "num_rounds": self.setting.num_rounds,
            "eval_every": self.setting.eval_every,
            "eval_first": self.setting.eval_first,
            "evaluations": evaluations(name),
            "progress": sys.stderr.isatty(),
        }
        method = self.method(name)  # made once, so that the seeds share compiled programs
        if together:
            keys = jnp.stack([jax.random.key(seed) for seed in missing])
            checkpoints = (
                self.run_folder(name, 0).parent
                / f"checkpoint_of_seeds_{'_'.join(map(str, missing))}"
            )
            histories = srp.simulate_seeds(
                method, self.data, keys=keys, checkpoint_dir=checkpoints, **options
            )
            for seed, history in zip(missing, histories, strict=True):
                self._save(history, name, seed)
            shutil.rmtree(checkpoints, ignore_errors=True)
            return
        for seed in missing:
            checkpoints = self.run_folder(name, seed) / "checkpoint"
            history = srp.simulate(
                method,
                self.data,
                key=jax.random.key(seed),
                checkpoint_dir=checkpoints,
                **options,
            )
            self._save(history, name, seed)

    def _save(self, history: History, name: str, seed: int) -> None:
        scripts.keep(history, self.run_folder(name, seed), self.describe_run(name, seed))
        accuracy = f"{100 * history.final_accuracy:.1f} % ({history.evaluation})"
        self.log(
            f"{self.setting.title}: {name}, seed {seed}: {accuracy} after {history.host_seconds:.0f} s"
        )

    def histories(self, names: list[str], seeds: int) -> dict[str, list[History]]:
        """Return the histories of these curves, with the evaluation of each as default and this figure's times."""
        curves: dict[str, list[History]] = {}
        for name in names:
            training, evaluation = CURVES[name]
            for seed in range(seeds):
                history = History.load(self.run_folder(training, seed))
                if not methods.recipe(training).doubling:
                    clock = self.clocks[self.figure.clock]
                    history = retime(
                        history, self.method(training), self.data, clock, seed
                    )
                scores = {
                    evaluation: history.accuracies[evaluation],
                    **history.accuracies,
                }
                curves.setdefault(name, []).append(
                    dataclasses.replace(history, name=name, accuracies=scores)
                )
        return curves


def main(figure: int, arguments: list[str] | None = None) -> None:
    doc = (
        f"Figure {figure} of the SRPFL paper: {FIGURES[figure].title}; accuracy over simulated time.\n\n"
        "Scale full is the paper's size, code has also the options of its code."
    )
    parser = scripts.parser(doc, SETTINGS, "runs/srpfl", "seeds", "data-dir", "results")
    parser.add_argument(
        "--datasets",
        nargs="+",
        metavar="NAME",
        help="default: every data set of the scale",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", choices=CURVES, default=list(CURVES)
    )
    parser.add_argument(
        "--together",
        action=argparse.BooleanOptionalAction,
        help="all seeds in one program (default: on accelerators)",
    )
    args = parser.parse_args(arguments)
    settings = SETTINGS[args.scale]
    for name in args.datasets or ():
        if name not in settings:
            parser.error(
                f"--datasets {name}: --scale {args.scale} has {', '.join(settings)}"
            )
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: must be at least 1")
    srp.use_all_cores()
    together = jax.default_backend() != "cpu" if args.together is None else args.together
    begin, columns = time.perf_counter(), {}
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    with scripts.reported_by(parser):
        studies = [  # made before the first run, so that a missing file is reported at once
            Study(FIGURES[figure], settings[name], args.out / name, args.data_dir, say)
            for name in args.datasets or settings
        ]
        for study in studies:
            seeds = study.setting.seeds if args.seeds is None else args.seeds
            for training in dict.fromkeys(
                CURVES[curve].training for curve in args.methods
            ):
                study.train(training, range(seeds), together)
            columns[study.setting.title] = study.histories(args.methods, seeds)
    results = scripts.results_folder(args)
    print(report(columns, figure, FIGURES[figure].title, results))
    print(f"\nin {results} ({time.perf_counter() - begin:.0f} s)")
