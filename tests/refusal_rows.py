"""Wrong arguments of the right type, by subject: the valid call and what each row changes in it.

The error names the first argument that a row changes. Bounds and types that annotations declare need no row.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from example_parts import Inner, Outer
from flax import linen as nn
from method_helpers import SHAPES
from public_calls import CALLS, DATA, EXP, MLP, fields_of
from reference.histories import made_history
from reference.small import KEY, model

import fedjax_srp as srp
from fedjax_srp import clocks, messages, models, participation, plots, theory
from fedjax_srp.lab.commands.report import report

FEDAVG = srp.algorithms.FedAvg(MLP)
LOCAL = srp.algorithms.LocalOnly(MLP)
METHOD = srp.methods.get("fedavg", dataset=DATA, hidden=(3,))
FIXED = clocks.Fixed
NAN, INF = float("nan"), float("inf")
KEYS = jax.random.split(KEY)
RUN = {"algorithm": FEDAVG, "data": DATA, "num_rounds": 1, "key": KEY, "progress": False}
TASK = srp.data.linear_task(KEY, num_clients=6, dim=5, rank=2)
SIGNS = srp.data.linear_task(KEY, num_clients=6, dim=5, rank=2, design="rademacher")
HISTORY = made_history(
    [0.5],
    [1.0, 2.0],
    "global",
    clients=3,
    name="h",
    eval_round=[2],
    metrics={"loss": np.ones(2)},
)
PARAMS = MLP.init(KEY)
TRAINED = dataclasses.replace(
    HISTORY, server_state={"params": PARAMS}, config={"key": [0, 0]}
)
NUMBERS = ("much", "0.5", True, 1j, np.array([True]), KEY)
COSTS = ("10", None, -5, NAN, INF, [1.0], KEY)
NAMES = ("globl", 3, ["global"], np.ones(2), KEY)


class Subject(NamedTuple):
    """A function, its valid arguments, and changes that it refuses."""

    function: Any
    right: dict[str, Any]
    wrong: list[dict[str, Any]]
    named: str = ""  # what errors say instead of the argument


def each(argument, values):
    return [{argument: value} for value in values]


def part(cls, *wrong, **right):
    return Subject(cls, fields_of(cls) | right, list(wrong))


def policy(cls, *wrong, **right):
    def make(**fields):
        cls(**fields).init(KEY, 10)

    return Subject(
        make, {"k": 2, **right} if "k" in fields_of(cls) else right, list(wrong)
    )


def of_theory(name, *wrong):
    function = getattr(theory, name)
    return Subject(function, CALLS[function], list(wrong))


def distribution(cls, *wrong):
    def draw(**fields):
        cls(**fields).parameters(KEY, 3)

    return Subject(draw, fields_of(cls), list(wrong))


def clock(cls, *wrong, **right):
    def start(**fields):
        cls(**fields).init(KEY, 3)

    return Subject(start, fields_of(cls) | right, list(wrong))


def registration(register, factory, argument, *wrong):
    return Subject(
        lambda **given: register(*given.values()),
        {"name": "mine", argument: factory},
        list(wrong),
    )


def convolve(shape, **fields):
    models.Convolution(4, **fields).init(KEY, jnp.zeros((2, *shape)))


def of_layer(**functions):
    models.Split((4,), 3, [models.Layer("out", nn.Dense(3))._replace(**functions)])


def planned(axes=None, variants=None, exclude=(), **options):
    options = {"dataset": "digits", "num_clients": 10, "classes_per_client": 3} | options
    options = {name: value for name, value in options.items() if value is not None}
    srp.grid(
        axes=axes,
        variants=variants,
        exclude=exclude,
        options=options,
        out="grid",
        progress=False,
    )


def planned_objects(**options):
    planned(dataset=None, num_clients=None, classes_per_client=None, **options)


def of_grid(named, *wrong):
    return Subject(
        planned, {"axes": {"seed": [0]}, "method": "fedavg"}, list(wrong), named
    )


def two_speeds(slow: float = 5.0):
    return FIXED(clocks.Constant(slow))


def counted(model, pace: float = 0.5):
    return srp.algorithms.FedAvg(model)


def get_method(**given):
    return srp.methods.get(given.pop("method"), dataset=SHAPES, **given)


SIMULATION = {
    "simulate": Subject(
        srp.simulate,
        RUN,
        [
            *each("algorithm", ("fedavg", srp.algorithms.FedAvg, MLP, DATA)),
            *each("data", ((np.ones(3), np.ones(3)), "digits", None, FEDAVG)),
            *each("participation", (participation.Full, "ful", METHOD, FIXED(EXP))),
            *each("clock", (EXP, FIXED, np.ones(3), participation.Full())),
            *each("evaluations", (3, [["global"]])),
            *each("name", (3, "", "a\0", "\ud800")),
            *each("key", (0, jax.random.PRNGKey(0), KEYS)),
            *each("time_limit", ("3", -1)),
            *each("target", (NAN, 90)),
            {"target": 0.5, "evaluations": []},
            *each("progress", ("no",)),
            *each("chunk_size", (0,)),
            *each("eval_every", (0,)),
            *each("devices", (99,)),
            *each("callback", ("log.jsonl",)),
        ],
    ),
    "simulate_seeds": Subject(
        srp.simulate_seeds,
        {name: value for name, value in RUN.items() if name != "key"} | {"keys": KEYS},
        [*each("keys", (KEY, [0, 1], KEYS[:0])), {"record_loss": "no"}],
    ),
    "evaluate": Subject(
        srp.evaluate,
        {
            "algorithm": FEDAVG,
            "data": DATA,
            "server_state": PARAMS,
            "key": KEY,
            "evaluations": "global",
        },
        [*each("evaluations", ("globl",)), {"key": KEYS}, {"server_state": HISTORY}],
    ),
    "personalize": Subject(
        srp.personalize,
        {"method": FEDAVG, "data": DATA, "history": TRAINED, "client": 2},
        [
            *each("client", (3, -1)),
            *each("evaluation", ("globl",)),
            *each("history", (HISTORY,)),
        ],
    ),
    "Simulation": Subject(
        srp.Simulation, {"algorithm": FEDAVG, "data": DATA}, [{"algorithm": DATA}]
    ),
    "adapt": Subject(
        srp.adapt,
        {
            "model": MLP,
            "data": DATA,
            "server_state": PARAMS,
            "key": KEY,
            "num_samples": None,
        },
        [
            *each("epochs", (0,)),
            *each("part", ("body",)),
            *each("num_samples", ([0], [])),
            *each(
                "server_state",
                (None, (1, 2), {"params": {"representation": {}, "head": {}}}, MLP),
            ),
            *each(
                "model",
                (
                    "mlp",
                    srp.algorithms.LinearFedRep(
                        TASK, 0.1, 4, sampling="full", start="random"
                    ),
                ),
            ),
            *each("optimizer", (lambda round: srp.SGD(0.1),)),
            *each("key", (KEYS,)),
        ],
    ),
    "a charged start": Subject(
        srp.simulate,
        RUN
        | {
            "algorithm": srp.algorithms.LinearFedRep(TASK, 0.1, 4, charge_start=True),
            "data": TASK,
            "clock": FIXED(EXP),
        },
        each(
            "clock",
            (
                clocks.Devices(1.0, 1.0, 1.0),
                clocks.Available(FIXED(EXP), clocks.Markov(2.0, 1.0)),
            ),
        ),
    ),
    "a task of another design": Subject(
        srp.algorithms.LinearFedRep,
        {"task": SIGNS, "step_size": 0.1, "samples_per_round": 4, "sampling": "full"},
        each("sampling", ("subspace",)),
    ),
    "adapt to a linear task": Subject(
        srp.adapt,
        {
            "model": TASK,
            "data": TASK,
            "server_state": {"representation": TASK.representation},
            "key": KEY,
        }
        | {"num_samples": [2]},
        [
            *each("num_samples", (None,)),
            *each("server_state", ({"w": TASK.representation},)),
            {"part": "all"},
            {"epochs": 3},
            {"optimizer": srp.SGD(0.1)},
            {"batch_size": 2},
        ],
    ),
    "grid": Subject(
        srp.grid,
        {
            "axes": {"method": ["fedavg"], "learning_rate": [0.1], "seed": [0]},
            "options": {
                "dataset": "digits",
                "num_clients": 6,
                "classes_per_client": 3,
                "num_rounds": 1,
            },
            "out": "grid",
            "progress": False,
        },
        [
            {"workers": -1},
            {"batch": 0},
            {"retries": 1.5},
            {"launcher": "cloud"},
            {"axes": 3},
            {"file": "x.toml"},
        ],
    ),
}

SEEDS = {"seed": [0, 1]}
GRIDS = {
    "no method": of_grid("method", {"method": None}),
    "unknown methods": of_grid(
        "method", *each("method", ("fedreb", "a\nb")), {"axes": {"method": ["fedavg"]}}
    ),
    "an option that nothing reads": of_grid(
        "", {"mu": 0.1}, {"redraw": "round", "method": "fedsgd"}
    ),
    "too many": of_grid(
        "combinations",
        {"axes": {"seed": range(1000), "partition_seed": range(1000)}},
        {"axes": {"seed": range(10**30)}},
        {"axes": {"seed": itertools.count()}},
    ),
    "rules": of_grid(
        "exclude",
        {"exclude": [{"seed": 0}]},
        {"exclude": [{"variant": {}}]},
        {"exclude": [{"variant": 1}], "variants": {"1": {}}},
        *(
            {"exclude": [{"seed": 1}, rule], "axes": SEEDS}
            for rule in (
                {"method": "fedrap", "seed": [0, 1]},
                {"clock": "fixed"},
                {"participation": "full"},
            )
        ),
    ),
    "files to load": of_grid(
        "load",
        {"load": 3},
        {"axes": {"load": [["a.py"]]}},
        {"variants": {"a": {"load": ["a.py"]}}},
    ),
    "parts": of_grid(
        "",
        {"model": models.MLP},
        {"participation": {}},
    ),
    "objects": Subject(
        planned_objects,
        {"method": FEDAVG, "data": DATA},
        [
            *each("method", (3, srp.algorithms.FedAvg)),
            *each("clock", (MLP,)),
            *each("data", ("digits",)),
            {"learning_rate": 0.1},
            {"max_examples": 5},
            {"partition_seed": 5},
            {"k": None, "participation": "uniform"},
            {
                "participation": "uniform",
                "method": srp.Method("m", FEDAVG, participation.Full()),
            },
        ],
    ),
}

RESULTS = {
    **{
        f"History.{ask}": Subject(
            getattr(HISTORY, ask), {"communication": 0.0}, each("communication", COSTS)
        )
        for ask in ("elapsed", "eval_elapsed", "to_frame", "plot", "summary")
    },
    **{
        f"History.{ask}": Subject(
            getattr(HISTORY, ask), {"evaluation": "global"}, each("evaluation", NAMES)
        )
        for ask in ("scores", "mean_scores", "worst_scores", "speed_quartiles")
    },
    "History.time_to": Subject(
        HISTORY.time_to,
        {"target": 0.5, "communication": 0.0},
        [*each("target", ("0.5", True, 90, 1.001, NAN)), {"metric": "error"}],
    ),
    "History.score_at": Subject(
        HISTORY.score_at, {"time": 1.0}, each("time", (-1.0, INF))
    ),
    "History": Subject(
        made_history,
        {"scores": [0.5], "compute_time": [1.0, 2.0], "eval_round": [2]},
        [
            {"stage": [0]},
            {"metrics": {"loss": [1.0]}},
            {"metrics": {"stage": [1.0] * 2}},
            {"accuracies": {"global": np.zeros((2, 4))}},
            {"round": [0, 1]},
            {"eval_round": [5]},
            {"eval_round": [2, 1], "scores": [0.5, 0.6]},
        ],
    ),
    "accuracy_over_time": Subject(
        plots.accuracy_over_time,
        {"histories": HISTORY},
        [
            *each(
                "histories", ([], {}, {"a": []}, ["runs/srpfl"], {"a": [HISTORY, None]})
            ),
            {"histories": {0.1: HISTORY, "0.1": HISTORY}},
            *each("spread", ("sem",)),
            *each("x", ("round",)),
            *each("evaluation", ("fine_tune",)),
        ],
    ),
    "figure3": Subject(
        plots.figure3,
        {"histories_by_dataset": {"digits": HISTORY}},
        [
            *each("communications", (5, ["a"], [-1], [])),
            *each("histories_by_dataset", ({}, [])),
        ],
    ),
    "contraction_over_run": Subject(
        plots.contraction_over_run, {"histories": [], "a": 0.05}, [{"histories": []}]
    ),
}

# too long, too long within, and with a character that no system takes
NO_PATHS = ("x" * 300, f"./{'x' * 300}/b", "a\0b")


def of_path(function, argument, named="", **right):
    return Subject(function, right, each(argument, NO_PATHS), named)


GRID = {"options": {"method": "fedavg", "dataset": "digits", "num_clients": 10}}
PATHS = {
    "History.load": of_path(srp.History.load, "directory"),
    "History.save": of_path(HISTORY.save, "directory"),
    "checkpoint_dir": of_path(srp.simulate, "checkpoint_dir", **RUN),
    "states_dir": of_path(srp.simulate, "states_dir", **RUN | {"algorithm": LOCAL}),
    "json_lines": of_path(srp.watch.json_lines, "path", "log"),
    "data.load of data_dir": of_path(srp.data.load, "data_dir", name="mnist"),
    "data.load": of_path(srp.data.load, "name"),
    "data.prepare": of_path(srp.data.prepare, "data_dir", names="mnist"),
    "data.names": of_path(srp.data.names, "data_dir"),
    "data.save": of_path(srp.data.save, "path", data=DATA),
    "read_times": of_path(clocks.read_times, "path"),
    "read_devices": of_path(clocks.read_devices, "path"),
    "grid": of_path(srp.grid, "file"),
    "grid's folder": of_path(srp.grid, "out", axes={"seed": [0]}, **GRID),
    "report": of_path(report, "folder"),
}

METHODS = {
    "methods.get": Subject(
        get_method,
        {"method": "srpfl", "hidden": (4, 4)},
        [
            {"method": "srpfll"},
            {"method": "mine"},
            {"participation": "doublin", "method": "fedavg"},
            {"participation": "mine", "method": "fedavg"},
            {"participation": participation.Full},
            {"k": None, "participation": "uniform", "method": "fedavg"},
            {"initial": 3, "participation": participation.Fastest(3)},
            {"initial": 0},
            {"pool": 0, "method": "fedrep"},
            {"learning_rate": 0.0},
            {"momentum": 1.0},
            {"fine_tune_optimizer.momentum": 1.5},
            {"weight_decay": -1e-4},
            {"inner_step_size": -1.0, "method": "hf_maml"},
            {"inner_step_size": 0.1, "method": "fedavg"},
            {"head_epochs": 2, "method": "fedavg"},
            {"head_layers": 2, "hidden": (), "method": "lg_fedavg"},
            {"vocabulary": 9, "method": "fedavg"},
            {"hiden": (9,)},
            {"hidden": (9,), "model": models.MLP((5,), 3)},
            {"batch_size": 5, "training": srp.Training(), "method": "fedavg"},
            {
                "fine_tune_optimizer.momentum": 0.5,
                "fine_tune_optimizer": srp.SGD(0.3),
                "method": "fedavg",
            },
            {"shared": {"inital": 5}},
        ],
    ),
    "models of methods.get": Subject(
        get_method, {"method": "fedavg"}, each("model", ("lenet5", "mine", nn.Dense(3)))
    ),
    "methods.register": Subject(
        srp.methods.register,
        {"name": "mine", "factory": counted},
        [
            {"name": "fedavg"},
            {"participation": "ful"},
            {"colour": "red"},
            {"options": {"pase": 1.0}},
            {"options": {"k": 5}},
            *each("factory", (srp.algorithms.LinearFedAvg, 3)),
        ],
    ),
    "models.register": registration(
        models.register,
        lambda shape, classes: None,
        "model",
        *each("name", ("mlp", 3)),
        *each("model", (MLP, lambda shape: None, lambda shape, classes, width: None)),
    ),
    "messages.register": registration(
        messages.register,
        lambda: messages.Sign(),
        "codec",
        *each("name", ("sign", "TopK")),
        {"codec": 3},
    ),
    "clocks.register": registration(
        clocks.register,
        two_speeds,
        "clock",
        *each("name", ("random", "failing", "two speeds")),
        {"clock": FIXED(EXP)},
    ),
    "methods.register_participation": registration(
        srp.methods.register_participation,
        lambda: None,
        "participation",
        {"name": "full"},
        {"participation": 3},
    ),
}

PARTS = {
    "example": part(
        Outer,
        *each("mu", (NAN, np.array([0.1, 2.0]), None, *NUMBERS)),
        *each("decay", (1e300,)),
        *each("epochs", (1.0, True, NAN, np.ones(2))),
        *each("steps", (2**31,)),
        *each("flag", (1,)),
        *each("label", (3,)),
        *each("widths", (3, "34", (3, 0), (3, 4.5))),
        *each("inner", (0.1, Inner)),
        *each("function", (3,)),
        *each("rates", ([1.0, "x"],)),
        *each("anything", ([1], {"a": 1}, {1, 2}, np.ones(2), jnp.ones(2))),
    ),
    "exponential": distribution(
        clocks.Exponential,
        *each(
            "rate",
            (
                1e-50,
                [1.0, 2.0, 0.0],
                np.ones((2, 2)),
                np.array([True]),
                [[1.0], [1.0, 2.0]],
                [1.0, 2.0],
            ),
        ),
    ),
    "uniform": distribution(
        clocks.Uniform,
        {"low": 3, "high": 2},
        {"low": [0.0, 3.0], "high": 2.0},
        {"high": [2.0] * 4},
    ),
    "constant": distribution(clocks.Constant, {"value": np.ones(1)}),
    "fixed": clock(FIXED, *each("distribution", (1.0, [1.0]))),
    "trace": clock(
        clocks.Trace,
        *each(
            "times",
            (
                [[1.0, INF]],
                [[1.0], [-2.0]],
                np.ones((1, 2, 3)),
                1.0,
                np.ones((0, 4)),
                [1.0, 2.0],
            ),
        ),
        times=[[1.0] * 3],
    ),
    "devices": clock(
        clocks.Devices, {"costs": 3.0}, {"jitter": 1.0}, *each("latency", (-1.0, "x"))
    ),
    "coded": part(
        messages.Coded,
        *each("up", ("TopQ(0.1)", "TopK", 3, messages.Sign)),
        *each("down", (messages.ErrorFeedback(messages.Sign()), "half(x=3)")),
        {"algorithm": messages.Coded(FEDAVG)},
        {"algorithm": messages.Private(FEDAVG, 0.5, 1.0, 4)},
    ),
    "private": part(
        messages.Private,
        *each("clip", (0.0, -1.0, "x", None)),
        *each("noise_multiplier", (-1.0, "x")),
        *each("denominator", (0, 2.5)),
        *each("unsent", ("zero", True)),
        {"quantile": 1.5},
        {"count_noise": 0.5, "noise_multiplier": 1.0, "quantile": 0.5},
        {"count_noise": None, "quantile": 0.5, "denominator": None},
        {"count_noise": 0.0, "quantile": 0.5},
        {"clip_step_size": 0.0},
        {"algorithm": messages.Private(FEDAVG, 0.5, 1.0, 4)},
        {"algorithm": messages.Coded(FEDAVG, down="half")},
        {"algorithm": srp.algorithms.FedBuff(MLP)},
    ),
    "error_feedback": part(
        messages.ErrorFeedback, *each("codec", (messages.RandomK(0.1), "Sign()", None))
    ),
    "intervals": clock(
        clocks.Intervals,
        {"starts": [[2.0]], "ends": [[1.0]]},
        {"starts": [2.0], "ends": [3.0]},
        {"period": 2.5, "starts": [[2.0]], "ends": [[3.0]]},
        {"starts": [[2.0]], "ends": [[3.0]]},
        starts=[[0.0]] * 3,
        ends=[[1.0]] * 3,
    ),
    "available": clock(
        clocks.Available,
        {"clock": clocks.Available(FIXED(EXP), clocks.DayNight(24.0))},
    ),
    "fine-tuning in a round": part(
        srp.algorithms.FedAvg,
        {
            "fine_tune_optimizer": None,
            "training": srp.Training(lambda round: srp.SGD(0.1)),
        },
    ),
    "uniform of clients": policy(participation.Uniform, {"k": 11}),
    "fastest": policy(
        participation.Fastest, {"k": 11}, {"k": 9, "pool": 8}, {"pool": 11, "k": 9}
    ),
    "doubling": policy(
        participation.Doubling,
        *each("rounds_per_stage", (2.5, [1, -1], [0.5])),
        {"rounds_per_stage": [1, 1], "initial": 10},
        {"initial": 30, "pool": 20},
        {"pool": 11, "initial": 1},
        {"initial": 11},
        initial=4,
    ),
    "growing": policy(
        participation.Growing,
        {"initial": 1},
        {"initial": 11},
        {"pool": 11, "initial": 2},
        {"pool": 3, "initial": 4},
        *each("criterion", ("normtest", "Doubling()", participation.Full())),
        initial=4,
    ),
    "statistical accuracy": policy(
        participation.StatisticalAccuracy,
        {"accuracy_constant": None, "strong_convexity": 1.0},
        {"initial": 11},
        *each("work_by_stage", ((), (2, 3), (0, 1))),
        {"work_by_stage": (1, 2), "max_work": 2, "on_time": 0.5},
    ),
    "FedGATE by stage": part(
        srp.algorithms.FedGATE,
        *each("step_size_by_stage", ((), (0.1, 0.0))),
        {
            "step_size_by_stage": (0.1, 0.2),
            "training": srp.Training(lambda round: srp.SGD(0.1)),
            "fine_tune_optimizer": srp.SGD(0.1),
        },
    ),
    "buffered": policy(participation.Buffered, {"concurrency": 9, "k": 3}, {"k": 11}),
    "asynchronous tiers": policy(
        participation.AsynchronousTiers, {"k": 4, "tiers": 3}, {"tiers": 11, "k": 1}
    ),
    "compass": policy(
        participation.Compass,
        {"min_work": 4, "max_work": 3},
        *each("latest_factor", (0.5,)),
        *each("pace_momentum", (-0.1, 1.5)),
    ),
    "queued": policy(
        participation.Queued,
        *each("concurrency", (0, 10**9)),
        {"weights": [1.0, -1.0]},
        {"weights": np.ones(3)},
        {"weights": -2.0},
    ),
    "tiered": policy(participation.Tiered, {"k": 4, "tiers": 3}),
    "deadline": policy(
        participation.Deadline,
        {"policy": participation.Buffered(2)},
        {"limit": None, "quorum": None},
        limit=1.0,
    ),
    "lenet5": part(
        models.LeNet5,
        *each("input_shape", ((15, 16, 3),)),
        *each("channels", ((3,),)),
        *each("hidden", ((3, 0),)),
        *each("cut", ("fc3",)),
    ),
    "cnn": part(
        models.CNN,
        *each("input_shape", ((7, 8, 1), (64,))),
        *each("channels", ((1, 2),)),
        *each("hidden", ((3,),)),
        input_shape=(8, 8),
        channels=(2, 8, 9, 3, 8, 2),
        hidden=(6, 5),
    ),
    "resnet18": part(
        models.ResNet18,
        {"input_shape": (7, 8, 3)},
        {"groups": 3, "norm": "group"},
        {"channels": (4, 4)},
    ),
    "lstm": part(
        models.LSTM,
        {"input_shape": (28, 28)},
        {"initialization": "torch"},
        input_shape=(7,),
        num_classes=2,
    ),
    "gpt": part(models.GPT, {"input_shape": (3, 3)}, {"heads": 3}),
    "mlp": part(models.MLP, {"initialization": "tork"}),
    "split": part(
        models.Split,
        *each(
            "layers",
            (
                [models.Layer(name, nn.Dense(4)) for name in ("fc", "out", "fc")],
                (),
                [jnp.tanh],
            ),
        ),
    ),
    "convolution": Subject(
        convolve,
        {"shape": (9, 9, 3)},
        [
            {"kernel_size": (5,)},
            {"kernel_size": (3, 3), "shape": (9,)},
            {"kernel_size": (2, 2, 2), "shape": (9, 9, 9)},
            {"kernel_size": (5, 3), "shape": (4, 9, 3), "padding": "VALID"},
            {"kernel_size": (5,), "shape": (2, 3), "padding": "VALID"},
            *each("stride", (0, -1, (2, 2))),
        ],
    ),
    "functions of a layer": Subject(
        of_layer,
        {"noise": None},
        [*each("noise", (0.5, nn.Dropout(0.5))), *each("activation", ("relu", None))],
    ),
    "lora": Subject(
        models.lora,
        {"model": models.GPT((5,), 9, embedding=8)},
        [
            *each("layers", (("block7",), ("norm",))),
            *each(
                "pretrained",
                (jax.eval_shape(models.GPT((5,), 9, embedding=16).init, KEY),),
            ),
        ],
    ),
    "rolex": part(srp.algorithms.FedRolex, *each("rates", ((1.0, 0.0), (1.0, 1.5)))),
    "fedavg": Subject(
        lambda **given: srp.algorithms.FedAvg(model(), srp.Training(**given)),
        {"optimizer": srp.SGD(0.1)},
        each("optimizer", (srp.SGD, "sgd")),
    ),
    "fedphp of numbers": part(
        srp.algorithms.FedPHP, {"model": models.LinearRegression((5,))}
    ),
    "q_fedavg": Subject(
        lambda **given: srp.algorithms.QFedAvg(model(), srp.Training(**given)),
        {"optimizer": srp.SGD(0.1)},
        each("optimizer", (optax.sgd(0.1),)),
    ),
    "scaffold": Subject(
        lambda **given: srp.algorithms.SCAFFOLD(model(), srp.Training(**given)),
        {"optimizer": srp.SGD(0.1)},
        each("optimizer", (optax.sgd(0.1),)),
    ),
}

OF_A = {"a": 0.5}
THEORY = {
    subject.function.__name__: subject
    for subject in (
        of_theory(
            "initial_clients", {"num_clients": 1}, {"sigma_max": 0.0}, {"num_clients": 3}
        ),
        of_theory("order_statistic_mean", {"i": 0}, {"i": 4, "n": 3}, {"rate": -1.0}),
        of_theory("contraction_rate", {"sigma_min": 0.0}),
        of_theory("rounds_between", {"end": 0.1, "start": 0.9}),
        of_theory("contraction", {"ratio": 0.0}, {"a": 0.3}),
        of_theory("distances", {"ratios": np.ones((2, 2))}, {"a": 0.3}),
        of_theory("schedule", {"chat": 1.5}, {"initial": 8, "num_clients": 4}),
        of_theory(
            "flanp_time",
            {"times": np.array([1.0, NAN])},
            {"initial": 8, "times": np.ones(4)},
        ),
        of_theory("srpfl_time_bound", {"chat": 10.0}, OF_A),
        of_theory("fedrep_rounds_bound", OF_A),
        of_theory("fedrep_time_bound", {"chat": 1.5}),
        of_theory("target_distance", {"initial": 8, "num_clients": 4}),
        of_theory("fedrep_rounds", {"initial": 8, "num_clients": 4}),
        of_theory("fedrep_time", {"initial": 8, "num_clients": 4}),
        of_theory("speedup_bound", {"chat": 1.0}),
        of_theory("stage_rounds", {"num_clients": 100, "initial": 10}),
        of_theory("fedgate_time", {"initial_gap": 1e-9}),
        of_theory("flanp_ratio", {"initial_gap": 0.0}),
        of_theory("flanp_ratio_bound", {"initial_gap": 1e-9}),
        of_theory("flanp_warm_gap", {"before": 5, "n": 5}),
    )
}

SUBJECTS = SIMULATION | GRIDS | RESULTS | PATHS | METHODS | PARTS | THEORY
