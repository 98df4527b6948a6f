"""Methods compared with SRPFL's paper and code: layers, evaluations, cohorts, defaults; options and registration."""

import dataclasses
import doctest
import functools
import itertools
import sys
from types import SimpleNamespace
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp import parts
from fedjax_srp.base import ClientTimes, Examples, RoundContext
from fedjax_srp.commands import cli
from fedjax_srp.history import History
from fedjax_srp.methods import build, options, own, table
from fedjax_srp.options import values_of
from fedjax_srp.report import drawing
from fedjax_srp.runs import words as run_words

NUM_CLIENTS = 100
SHAPES = SimpleNamespace(name="shapes", example_shape=(5,), num_classes=3, num_clients=NUM_CLIENTS)
KEY = jax.random.key(0)
ALL = ("fc1", "fc2", "fc3", "out")  # the paper's MLP of three hidden layers


class Row(NamedTuple):
    shared: tuple[str, ...]  # layers that the server broadcasts
    personal: tuple[str, ...]  # layers that a client keeps
    head: tuple[str, ...]  # layers above the cut, which `fine_tune` trains in FedAvg
    evaluation: str  # the first one
    twin: str | None  # None: no doubling


FEDREP = Row(ALL[:3], ALL[3:], ALL[3:], "fine_tune", None)  # head: the last layer
LG = Row(ALL[2:], ALL[:2], ALL[2:], "fine_tune", None)  # the last two layers are global
FEDAVG = Row(ALL, (), ALL[3:], "global", None)
TABLE = {
    "fedrep": FEDREP,
    "srpfl": FEDREP._replace(twin="fedrep"),
    "lg_fedavg": LG,
    "lg_srpfl": LG._replace(twin="lg_fedavg"),
    "fedavg": FEDAVG,
    "flanp_fedavg": FEDAVG._replace(twin="fedavg"),
    "fedavg_ft": FEDAVG._replace(evaluation="fine_tune"),
    "flanp_fedavg_ft": FEDAVG._replace(evaluation="fine_tune", twin="fedavg_ft"),
    "hf_maml": FEDAVG._replace(evaluation="one_inner_step"),
    "fedbuff": FEDAVG._replace(shared=(), personal=ALL),  # handed out after the round, and kept however old
    "fedasync": FEDAVG._replace(shared=(), personal=ALL),
    "fedat": FEDAVG,
    "local_only": FEDAVG._replace(shared=(), personal=ALL, evaluation="own_model"),
    "fedsgd": FEDAVG,
    "fedavgm": FEDAVG,
    "fedadagrad": FEDAVG,
    "fedadam": FEDAVG,
    "fedyogi": FEDAVG,
    "moon": FEDAVG._replace(personal=ALL[:3]),  # the representation as it was left
    "fedbabu": FEDAVG._replace(evaluation="fine_tune_all"),
    "fedbn": FEDAVG._replace(evaluation="own_model"),  # the table's model has no BatchNorm
    "fedrod": FEDAVG._replace(personal=ALL[3:], evaluation="own_model"),
    "fedproto": FEDAVG._replace(shared=(), personal=ALL, evaluation="nearest_prototype"),
    "knn_per": FEDAVG._replace(evaluation="neighbours"),
    "feddyn": FEDAVG._replace(personal=ALL),  # h_i has every layer
    "pfedme": FEDAVG._replace(personal=ALL, evaluation="own_model"),
    "fedala": FEDAVG._replace(personal=ALL[3:], evaluation="aggregated"),
    "fedamp": FEDAVG._replace(personal=ALL, evaluation="own_model"),
    "fedpac": FEDREP._replace(evaluation="own_head"),
    "fedas": FEDREP._replace(personal=ALL, evaluation="own_model"),
    "fedprox": FEDAVG,
    "heterofl": FEDAVG,
    "fedrolex": FEDAVG,
    "fjord": FEDAVG,
    "scaffold": FEDAVG._replace(personal=ALL),  # a variate of every layer
    "fedprox_ft": FEDAVG._replace(evaluation="fine_tune"),
    "scaffold_ft": FEDAVG._replace(personal=ALL, evaluation="fine_tune"),
    "fed_mtl": FEDAVG._replace(personal=ALL, evaluation="own_model"),
    "fedper": FEDREP,
    "per_fedavg": FEDAVG._replace(evaluation="fine_tune_all"),
    "l2gd": FEDAVG._replace(shared=(), personal=ALL, evaluation="own_model"),  # the mean is handed out after the round
    "apfl": FEDAVG._replace(personal=ALL, evaluation="own_model"),
    "ditto": FEDAVG._replace(personal=ALL, evaluation="own_model"),
    "fedgate": FEDAVG._replace(personal=ALL),  # gradient tracking of every layer
    "flanp": FEDAVG._replace(personal=ALL, twin="fedgate"),
    "fednova": FEDAVG,
    "flanp_fednova": FEDAVG._replace(twin="fednova"),
    "flanp_fedavg_criterion": FEDAVG._replace(twin="fedavg"),
}
BY_CRITERION = {"flanp", "flanp_fednova", "flanp_fedavg_criterion"}  # stages end by what is learned
AT_FIRST = {"fedbuff": 10, "fedat": 10, "fedasync": 1, **dict.fromkeys(BY_CRITERION, 10)}  # size of their cohorts
COMMON = {"learning_rate": 0.01, "batch_size": 10, "epochs": 1, "weighting": "uniform", "fine_tune_epochs": 10}
FEDOPT = COMMON | {"server_step_size": 0.01, "beta1": 0.9, "beta2": 0.99, "adaptivity": 1e-3}
DEFAULTS = {  # of a method, or of its algorithm
    "fedavgm": FEDOPT | {"rule": "momentum", "server_step_size": 1.0},
    "fedadagrad": FEDOPT | {"rule": "adagrad", "beta1": 0.0},
    "fedadam": FEDOPT | {"rule": "adam"},
    "fedyogi": FEDOPT | {"rule": "yogi"},
    "moon": COMMON | {"mu": 1.0, "temperature": 0.5},
    "fedbabu": COMMON,
    "fedbn": COMMON | {"own": "normalisation"},
    "fedrod": COMMON,
    "fedproto": COMMON | {"penalty": 1.0},
    "knn_per": COMMON | {"num_neighbours": 10, "own_share": 0.5},
    "feddyn": COMMON | {"penalty": 0.01},
    "pfedme": COMMON | {"penalty": 15.0, "inner_steps": 5, "inner_step_size": 0.09, "server_step_size": 1.0},
    "fedala": COMMON | {"weight_step_size": 1.0, "weight_share": 0.8, "start_epochs": 11},
    "fedamp": COMMON | {"penalty": 1.0, "attention_step_size": 1.0, "attention_width": 1.0},
    "fedpac": COMMON | {"penalty": 1.0, "head_epochs": 1},
    "fedas": COMMON | {"alignment_step_size": 0.01},
    "fedrep": COMMON | {"head_epochs": 10, "representation_epochs": 1},
    "lg_fedavg": COMMON,
    "fedavg": COMMON,
    "fedbuff": COMMON | {"server_step_size": 1.0, "staleness_exponent": 0.5},
    "fedasync": COMMON
    | {"server_step_size": 0.6, "staleness_exponent": 0.5, "discount": "polynomial"}
    | {"hinge_slope": 10.0, "hinge_start": 4.0, "mu": 0.005},
    "hf_maml": COMMON | {"inner_step_size": 0.01, "difference": 1e-3, "inner_steps": 1},
    "local_only": COMMON,
    "fedsgd": COMMON | {"weighting": "num_examples"},
    "fedat": COMMON | {"mu": 0.4, "num_tiers": 5},
    "heterofl": COMMON | {"rates": (0.0625, 0.125, 0.25, 0.5, 1.0)},
    "fedrolex": COMMON | {"rates": (0.0625, 0.125, 0.25, 0.5, 1.0)},
    "fjord": COMMON | {"rates": (0.2, 0.4, 0.6, 0.8, 1.0)},
    "fedprox": COMMON | {"mu": 0.1},
    "scaffold": COMMON | {"server_step_size": 1.0, "counts_momentum": True},
    "fed_mtl": COMMON,
    "fedper": COMMON,
    "per_fedavg": COMMON | {"inner_step_size": 1e-4, "difference": 1e-3, "inner_steps": 1, "support_fraction": 0.8},
    "l2gd": COMMON | {"aggregation_step_size": 0.05, "aggregation_probability": 0.9},
    "apfl": COMMON | {"own_share": 0.75, "adaptive": False},
    "ditto": COMMON | {"penalty": 1.0},
    "fedgate": COMMON | {"server_step_size": 1.0},
    "fednova": COMMON,
}


@pytest.fixture(params=TABLE)
def name(request):
    return request.param


def test_the_table_is_complete():
    assert sorted(srp.methods.names()) == sorted(TABLE)
    for module in (build, options, own, table):
        assert doctest.testmod(module).failed == 0


def layers_of(params):
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
    return tuple(layer for layer in ALL if any(f"['{layer}']" in path for path in paths))


def test_layers_and_evaluation(name):
    row, algorithm = TABLE[name], srp.methods.get(name, dataset=SHAPES, hidden=(4, 4, 4)).algorithm
    one = jnp.int32(1)
    examples = Examples(jnp.zeros((2, 5)), jnp.zeros(2, jnp.int32), one)

    def parts(key):
        server = algorithm.init(key, SHAPES)
        context = RoundContext(one, one, one, NUM_CLIENTS, one)
        client = algorithm.init_client(key, server, examples)
        return server, algorithm.round.download(server, client, context), client

    server, broadcast, client = jax.eval_shape(parts, KEY)
    assert layers_of(broadcast) == row.shared
    assert layers_of(client) == row.personal
    assert layers_of(getattr(server, "params", server).head) == row.head
    assert next(iter(algorithm.evaluations)) == row.evaluation
    assert srp.methods.recipe(name).twin == row.twin


def cohort_sizes(policy, rounds):
    """Return the number of participants among 100 clients, by round."""
    state, times, sizes = policy.init(KEY, NUM_CLIENTS), jnp.arange(1.0, 1.0 + NUM_CLIENTS), []
    for t in rounds:
        state = state._replace(round=jnp.int32(t)) if hasattr(state, "round") else state
        sizes.append(int(policy.select(KEY, state, ClientTimes(times, times))[0].size))
    return sizes


def test_who_takes_part(name):
    """10 clients at first, doubled every 10 rounds; in a pool of 20: 10 for 10 rounds, then 20."""
    get = functools.partial(srp.methods.get, name, dataset=SHAPES, hidden=(4, 4))
    if name in AT_FIRST:
        assert cohort_sizes(get().participation, (0, 9)) == [AT_FIRST[name]] * 2
        assert name not in BY_CRITERION or cohort_sizes(get(initial=25).participation, (0, 9)) == [25, 25]
        return
    rounds = (0, 9, 10, 19, 20, 29, 30, 39, 40, 149)
    doubles = TABLE[name].twin is not None
    of_all = [10, 10, 20, 20, 40, 40, 80, 80, 100, 100] if doubles else [100] * 10
    if name in ("fednova", "heterofl", "fedrolex", "fjord"):  # everybody, with as much work as fits
        assert cohort_sizes(get().participation, rounds) == of_all
        return
    of_a_fifth = [10, 10] + [20] * 8 if doubles else [20] * 10
    assert cohort_sizes(get().participation, rounds) == of_all
    assert cohort_sizes(get(pool=20).participation, rounds) == of_a_fifth


def algorithm_of(name, **options):
    """Return the algorithm of a method, on the paper's MLP with fewer units."""
    return srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), **options).algorithm


def record(name, **options):
    """Return option -> value as runs record them."""
    return srp.methods.choose(name, **options).record()


def steps_of(optimizer):
    """Return weights and biases, ones at first, after each of two steps with gradients of ones."""
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    state, steps = optimizer.init(params), []
    for _ in range(2):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        steps += [float(updates["kernel"][0, 0]), float(updates["bias"][0])]
    return steps


def test_defaults_are_the_papers(name):
    """Step size 0.01 in all experiments, no momentum, no decay; fine-tuning uses the optimizer of training."""
    algorithm = algorithm_of(name)
    np.testing.assert_allclose(steps_of(algorithm.training.optimizer), [-0.01] * 4, rtol=1e-6)
    assert algorithm.fine_tune_optimizer is None
    assert algorithm.tuning.optimizer == algorithm.training.optimizer
    found = values_of(algorithm, leave_out=("model", "evaluation"))
    given = {option: value for option, value in found.items() if value is not None}
    assert given == DEFAULTS.get(name, DEFAULTS.get(algorithm.name))


def test_the_optimizers_of_the_code(name):
    """Momentum 0.5 in fine-tuning only, decay 1e-4 on weights but not on biases."""
    algorithm = algorithm_of(name, **{"fine_tune_optimizer.momentum": 0.5}, weight_decay=1e-4)
    plain, heavy = -0.01 * (1 + 1e-4), -0.01
    np.testing.assert_allclose(steps_of(algorithm.training.optimizer), [plain, -0.01, plain, -0.01], rtol=1e-6)
    tuning = steps_of(algorithm.fine_tune_optimizer)
    np.testing.assert_allclose(tuning, [plain, heavy, 1.5 * plain, 1.5 * heavy], rtol=1e-6)


def test_what_only_other_methods_read_is_refused_unless_it_is_shared(name):
    options = {"inner_step_size": 0.1, "head_epochs": 2, "initial": 5, "redraw": "stage", "rounds_per_stage": 2}
    method = srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), shared=options)
    assert method.name == name
    unread = {"inner_step_size"} if name not in ("hf_maml", "per_fedavg", "pfedme") else set()
    unread |= {"head_epochs"} if name not in ("fedrep", "srpfl", "fedpac") else set()
    unread |= {"initial"} if TABLE[name].twin is None else set()
    unread |= {"rounds_per_stage", "redraw"} if TABLE[name].twin is None or name in BY_CRITERION else set()
    recorded = record(name, shared=options)
    assert {option for option in options if option not in recorded} == unread
    assert all(recorded[option] == options[option] for option in options.keys() - unread)
    for option in options:
        if option in unread:
            with pytest.raises(ValueError, match=f"{option}: has no effect on method '{name}', only on .*; leave"):
                srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), **{option: options[option]})
    with pytest.raises(ValueError, match=r"shared: 'inital' is an option of no method \(did you mean initial or "):
        srp.methods.get(name, dataset=SHAPES, shared={"inital": 5})


def test_every_field_of_every_algorithm_is_an_option(name):
    """Fields of an algorithm and of its inner parts are options and reach the algorithm."""
    route = srp.methods.routes(name)
    fixed = getattr(route.factory, "keywords", {})
    names = {field.name for field in dataclasses.fields(algorithm_of(name))} - {"model", *fixed}
    assert {option.path for option in route.algorithm.values() if "." not in option.path} == names
    other = {"steps": 3, "fine_tune_epochs": 4, "inner_steps": 2, "epochs": 2, "head_epochs": 3, "learning_rate": 0.2}
    for option in other.keys() & set(route.algorithm):
        if (option, route.factory) == ("steps", srp.algorithms.FedRep):
            with pytest.raises(ValueError, match=r"training\.epochs=None: how many times a round of FedRep alternates"):
                algorithm_of(name, steps=3)
            continue
        given = values_of(algorithm_of(name, **{option: other[option]}))
        assert given[option] == other[option]
        assert option != "steps" or given["epochs"] is None


def test_a_row_may_set_what_any_part_reads():
    row = {"initial": 5, "hidden": (4,), "learning_rate": 0.2, "fine_tune_optimizer": srp.SGD(0.3)}
    srp.methods.register("mine", srp.algorithms.FedAvg, participation="doubling", options=row)
    method, found = srp.methods.get("mine", dataset=SHAPES), record("mine")
    assert [found[name] for name in ("initial", "hidden", "learning_rate")] == [5, [4], 0.2]
    assert found["fine_tune_optimizer"]["learning_rate"] == 0.3
    assert (method.participation.initial, method.algorithm.model.hidden) == (5, (4,))
    assert method.algorithm.training.optimizer == srp.SGD(0.2)
    assert method.algorithm.fine_tune_optimizer == srp.SGD(0.3)


def test_rows_may_have_options_of_their_own():
    """FLANP with FedNova: as many steps as fit; by default one for all."""
    get = functools.partial(srp.methods.get, dataset=SHAPES, hidden=(4,))
    asked = {"flanp": (1, 1.0), "flanp_fednova": (10, 0.5), "fednova": (10, 0.5)}
    for name, expected in asked.items():
        policy, found = get(name).participation, record(name)
        assert (found["max_work"], found["on_time"]) == expected
        assert (policy.max_work, policy.on_time) == expected
    chosen = get("flanp_fednova", max_work=4, shared={"on_time": 0.25}).participation
    assert (chosen.max_work, chosen.on_time) == (4, 0.25)
    elsewhere = record("flanp_fednova", participation="uniform", k=10)  # a policy that has no such options
    assert "max_work" not in elsewhere


@pytest.mark.parametrize(("policy", "fast"), [("uniform", None), ("fastest", list(range(10)))])
def test_fedgate_with_k_random_and_k_fastest_is_a_policy_by_name(policy, fast):
    method = srp.methods.get("fedgate", dataset=SHAPES, hidden=(4,), participation=policy, k=10)
    times = ClientTimes(*[jnp.arange(1.0, 1.0 + NUM_CLIENTS)] * 2)
    state = method.participation.init(KEY, NUM_CLIENTS)
    cohort, _ = method.participation.select(KEY, state, times)
    assert (method.algorithm.name, method.name) == ("fedgate", f"fedgate + {policy}")
    assert int(cohort.size) == 10
    assert fast is None or cohort.client_ids.tolist() == fast


def test_any_algorithm_goes_with_any_participation():
    method = srp.methods.get("fedrep", dataset=SHAPES, hidden=(4,), participation="doubling", initial=7)
    assert (method.name, method.participation.name) == ("fedrep + doubling", "doubling")
    assert record("fedrep", participation="doubling", initial=7)["initial"] == 7
    assert srp.methods.label(method.name) == "FedRep + doubling"
    assert cohort_sizes(method.participation, (0, 10)) == [7, 14]
    own = srp.methods.get("srpfl", dataset=SHAPES, hidden=(4,), participation=srp.participation.Fastest(3))
    assert (own.name, own.participation.name) == ("srpfl + fastest", "fastest")
    with pytest.raises(ValueError, match="initial: has no effect"):
        srp.methods.get("srpfl", dataset=SHAPES, participation=srp.participation.Fastest(3), initial=3)
    with pytest.raises(ValueError, match="k is missing: 'uniform' needs it"):
        srp.methods.get("fedavg", dataset=SHAPES, participation="uniform")
    with pytest.raises(ValueError, match=r"unknown participation 'doublin' \(did you mean doubling\?\)"):
        srp.methods.get("fedavg", dataset=SHAPES, participation="doublin")
    with pytest.raises(ValueError, match="must be a string or a ParticipationPolicy; call it"):
        srp.methods.get("fedavg", dataset=SHAPES, participation=srp.participation.Full)


def test_a_training_object_replaces_its_options():
    """Shared options, and those of a row, are ignored if a given part replaces them."""
    mine = srp.Training(srp.SGD(0.3), batch_size=5)
    shared = {"learning_rate": 0.2, "steps": 3, "batch_size": 2}
    assert algorithm_of("fedavg", training=mine, shared=shared).training == mine
    assert not {"learning_rate", "steps", "epochs"} & record("fedavg", training=mine, shared=shared).keys()
    assert algorithm_of("fedavg", training=mine, momentum=None).training == mine  # asks for nothing
    with pytest.raises(ValueError, match="batch_size: the training that is given has its own; leave one of the two"):
        srp.methods.get("fedavg", dataset=SHAPES, training=mine, batch_size=5)


def test_a_fine_tuning_optimizer_replaces_its_momentum():
    """It reaches the algorithm despite shared options; both given for one method are refused."""
    mine, momentum = srp.SGD(0.3), "fine_tune_optimizer.momentum"
    with pytest.raises(ValueError, match="momentum: the fine_tune_optimizer that is given has its own"):
        srp.methods.get("fedavg", dataset=SHAPES, fine_tune_optimizer=mine, **{momentum: 0.5})
    assert algorithm_of("fedavg", fine_tune_optimizer=mine, **{momentum: None}).fine_tune_optimizer == mine
    shared = {momentum: 0.5, "learning_rate": 0.2}
    assert momentum not in record("fedavg", fine_tune_optimizer=mine)
    algorithm = algorithm_of("fedavg", fine_tune_optimizer=mine, shared=shared)
    np.testing.assert_allclose(steps_of(algorithm.fine_tune_optimizer), [-0.3] * 4, rtol=1e-6)
    np.testing.assert_allclose(steps_of(algorithm.training.optimizer), [-0.2] * 4, rtol=1e-6)


@srp.part
class Counted(srp.algorithms.FedAvg):
    """FedAvg of a user."""


def counted(model, pace: float = 0.5, local_epochs: int = 1):
    """Method of a user: FedAvg with step size `pace`."""
    return Counted(model, srp.Training(srp.SGD(pace), epochs=local_epochs))


def test_a_function_may_have_options_with_names_of_sgd():
    seen = []

    def mine(model, learning_rate: float = 0.5, momentum: float = 0.25, weight_decay: int = 3):
        seen.append((learning_rate, momentum, weight_decay))
        return srp.algorithms.FedAvg(model)

    srp.methods.register("mine", mine)
    options = {"learning_rate": 0.1, "weight_decay": 4}
    method, recorded = srp.methods.get("mine", dataset=SHAPES, **options), record("mine", **options)
    assert seen == [(0.1, 0.25, 4)]
    assert [recorded[o] for o in ("learning_rate", "momentum", "weight_decay")] == [0.1, 0.25, 4]
    assert parts.values_of(method.algorithm) == {"training.optimizer.learning_rate": 0.01}  # what the function made


def test_a_field_may_have_the_name_of_one_of_sgd():

    @srp.part
    class Mine(srp.algorithms.FedAvg):
        learning_rate: Annotated[float, srp.AtLeast(0)] = 1.0

    given = {"learning_rate": 0.5, "training.optimizer.learning_rate": 0.1}
    made = srp.methods.get(Mine, dataset=SHAPES, hidden=(4,), **given).algorithm
    assert (made.learning_rate, made.training.optimizer) == (0.5, srp.SGD(0.1))


def test_one_function_and_one_row_add_a_method(tmp_path, capsys):
    row = {"participation": "doubling", "label": "Counted", "color": "#123456", "twin": "fedavg", "source": "nobody"}
    srp.methods.register("counted", counted, **row)
    data = srp.data.load("digits", num_clients=10, classes_per_client=3, max_examples=10)
    method = srp.methods.get("counted", dataset=data, hidden=(4,), pace=0.25, initial=5, rounds_per_stage=1)
    history = srp.simulate(method, data, num_rounds=2, eval_every=1, key=jax.random.key(3), progress=False, devices=1)
    assert history.cohort_size.tolist() == [5, 10]
    words = "--dataset digits --num-clients 10 --classes-per-client 3 --max-examples 10 --hidden 4 --num-rounds 2"
    words += " --eval-every 1 --seed 3 --method counted --pace 0.25 --initial 5 --rounds-per-stage 1 --devices 1"
    assert cli.main(["run", *words.split(), "--no-progress", "--out", str(tmp_path / "run")], set_up_cores=False) == 0
    found = History.load(tmp_path / "run")
    np.testing.assert_array_equal(found.accuracy, history.accuracy)
    assert found.config["arguments"]["pace"] == 0.25
    assert cli.main(["list"], set_up_cores=False) == 0
    text = capsys.readouterr().out
    assert "Counted" in text
    assert "nobody" in text
    assert drawing.styles(["counted"])["counted"] == drawing.Style("Counted", "#123456", "-")
    with pytest.raises(ValueError, match=r"option of method 'counted' or its model 'paze' \(did you mean pace"):
        srp.methods.get("counted", dataset=data, paze=1.0)


def test_a_loaded_file_imports_modules_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_loaded.py").write_text("NAME = 'lies_beside'\n")
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "from beside_the_loaded import NAME\n"
        "srp.methods.register(NAME, lambda model: srp.algorithms.FedAvg(model), label='mine')\n"
    )
    run_words.load([str(tmp_path / "mine.py")])
    assert "lies_beside" in srp.methods.names()
    assert sys.path[-1] == str(tmp_path)  # behind all others


def test_a_factory_that_returns_nothing_is_named():
    def forgetful(model):
        """Mine."""
        srp.algorithms.FedAvg(model)

    srp.methods.register("forgetful", forgetful)
    data = srp.data.load("digits", num_clients=5, classes_per_client=3)
    with pytest.raises(ValueError, match="algorithm=None must be a FederatedAlgorithm"):
        srp.methods.get("forgetful", dataset=data)


@srp.part
class Slowest(srp.participation.Fastest):
    """Policy that selects the slowest clients."""

    k: float = 0.5  # policies of the package give this name to a number of clients
    m: parts.Count = 2

    def select(self, key, state, times):
        return srp.participation.Fastest(self.m).select(key, state, times._replace(realised=-times.realised))


def slowest(m: int = 2, k: float = 0.5):
    return Slowest(k=k, m=m)


@pytest.mark.parametrize("maker", [slowest, Slowest])
def test_users_policies_have_names_and_options(maker):
    srp.methods.register_participation("slowest", maker)
    method = srp.methods.get("fedrep", dataset=SHAPES, participation="slowest", m=3, k=0.25)
    assert (method.name, method.participation.name) == ("fedrep + slowest", "slowest")
    assert (method.participation.m, method.participation.k) == (3, 0.25)
    recorded = record("fedrep", participation="slowest", m=3, k=0.25)
    assert {o: recorded[o] for o in ("participation", "m", "k")} == {"participation": "slowest", "m": 3, "k": 0.25}
    again = srp.methods.get("fedavg", dataset=SHAPES, participation="slowest", k=0.25, m=3)
    assert again.participation == method.participation  # one program
    assert jax.tree.structure(again.participation) == jax.tree.structure(method.participation)
    srp.methods.register("mine", counted, participation="slowest", options={"m": 4})
    assert srp.methods.get("mine", dataset=SHAPES).participation == Slowest(m=4)
    with pytest.raises(ValueError, match=r"m: has no effect on method 'fedavg', only on .*participation 'slowest'"):
        srp.methods.get("fedavg", dataset=SHAPES, m=3)


def test_an_argument_of_a_policy_is_not_one_of_sgd():
    srp.methods.register_participation("turns", lambda momentum=0.9: srp.participation.Full())
    with pytest.raises(ValueError, match=r"momentum: read by its algorithm and by participation 'turns'; rename your"):
        srp.methods.get("fedrep", dataset=SHAPES, participation="turns", momentum=0.5)


def test_a_module_in_place_of_a_model_is_told_how_to_become_one():
    with pytest.raises(ValueError, match=r"model=Dense.* must be a string or a SplitModel; give .* or from_module\("):
        srp.methods.get("fedrep", dataset=SHAPES, model=nn.Dense(3))


def test_one_name_is_never_read_by_two_parts():
    """A user's method that would do so is refused, unless the other part is given as an object."""

    def clustered(model, k: int = 3):
        return srp.algorithms.FedAvg(model)

    def hyper(model, hidden: int = 8):
        return srp.algorithms.FedAvg(model)

    for name in [*srp.methods.names(), *srp.methods.algorithm_names()]:
        for policy in table.POLICIES:
            route = options.routes(name, policy)
            read = (route.algorithm, route.policy, options.MODEL_OPTIONS)
            of_models = {option for model in srp.models.names() for option in srp.models.options(model)}
            assert len({*itertools.chain(*read), *of_models}) == sum(map(len, (*read, of_models)))
    message = r"k: read by its algorithm and by participation .fastest.; rename .* give an object for"
    with pytest.raises(ValueError, match=message):
        srp.methods.get(clustered, dataset=SHAPES, participation="fastest", k=10)
    with pytest.raises(ValueError, match=r"hidden: read by its algorithm and by its model; rename"):
        srp.methods.get(hyper, dataset=SHAPES, hidden=4)
    method = srp.methods.get(clustered, dataset=SHAPES, participation=srp.participation.Fastest(5), k=2)
    assert record(clustered, participation=srp.participation.Fastest(5), k=2)["k"] == 2
    assert method.participation == srp.participation.Fastest(5)


@pytest.mark.parametrize(
    ("name", "factory", "row", "message"),
    [
        ("fedavg", counted, {}, "name='fedavg' is a method of the package; choose another name"),
        ("mine", counted, {"participation": "ful"}, r"unknown participation 'ful' \(did you mean full"),
        ("mine", counted, {"colour": "red"}, r"unknown field of a recipe 'colour' \(did you mean color"),
        ("mine", counted, {"options": {"pase": 1.0}}, r"option in the row of 'mine' 'pase' \(did you mean pace"),
        ("mine", counted, {"options": {"k": 5}}, "unknown option in the row of 'mine' 'k'; choose from pace"),
        ("mine", srp.algorithms.LinearFedAvg, {}, "LinearFedAvg makes no algorithm on examples: its first field, or"),
        ("mine", 3, {}, "3 makes no algorithm on examples"),
    ],
)
def test_registrations_are_checked(name, factory, row, message):
    """Also the options of a row, which the factory or the row's policy must read."""
    with pytest.raises(ValueError, match=message):
        srp.methods.register(name, factory, **row)
    assert "mine" not in srp.methods.RECIPES


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("srpfll", {}, r"unknown method 'srpfll' \(did you mean srpfl"),
        ("fedrep", {"pool": 0}, "pool=0 must be at least 1"),
        ("srpfl", {"initial": 0}, "initial=0 must be at least 1"),
        ("srpfl", {"learning_rate": 0.0}, "learning_rate=0.0 must be positive; give a step size"),
        ("srpfl", {"momentum": 1.0}, "momentum=1.0 must be below 1; give None for none"),
        ("srpfl", {"fine_tune_optimizer.momentum": 1.5}, r"optimizer\.momentum=1\.5 must be below 1"),
        ("srpfl", {"weight_decay": -1e-4}, "weight_decay=-0.0001 must be at least 0; give None for none"),
        ("hf_maml", {"inner_step_size": -1.0}, "inner_step_size=-1.0 must be "),
        ("lg_fedavg", {"hidden": ()}, "head_layers=2 must be at most 1"),
        ("fedavg", {"model": "lenet5"}, "model='lenet5' for data set 'shapes': .*lenet5 takes images .* mlp takes any"),
        ("fedavg", {"vocabulary": 9}, "vocabulary: has no effect on method 'fedavg', only on model 'lstm'; leave"),
        ("fedavg", {"hiden": (9,)}, r"unknown option of method 'fedavg' or its model 'hiden' \(did you mean hidden"),
        ("fedavg", {"model": srp.models.MLP((5,), 3), "hidden": (9,)}, "hidden: has no effect on method"),
    ],
)
def test_refusals_name_what_the_user_gave(method, options, message):
    with refused(message):
        srp.methods.get(method, dataset=SHAPES, **options)
