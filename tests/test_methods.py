"""The methods as SRPFL's paper and code have them, written down again: layers, evaluations, cohorts, defaults."""

import doctest
import functools
import inspect
import itertools
import sys
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.base import ClientTimes, Examples, RoundContext
from fedjax_srp.commands import cli, run_options
from fedjax_srp.history import History
from fedjax_srp.methods import build, options, own, table
from fedjax_srp.parts import values_of
from fedjax_srp.report import drawing

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
    "local_only": FEDAVG._replace(shared=(), personal=ALL, evaluation="own_model"),
    "fedsgd": FEDAVG,
    "fedprox": FEDAVG,
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
COMMON = {"batch_size": 10, "local_epochs": 1, "fine_tune_epochs": 10, "client_weighting": "uniform"}
ALONE = {option: value for option, value in COMMON.items() if option != "client_weighting"}
DEFAULTS = {
    "fedrep": COMMON | {"head_epochs": 10, "representation_epochs": 1},
    "lg_fedavg": COMMON,
    "fedavg": COMMON,
    "fedbuff": COMMON | {"server_step_size": 1.0, "staleness_exponent": 0.5},
    "hf_maml": COMMON | {"inner_step_size": 0.01, "difference": 1e-3, "inner_steps": 1},
    "local_only": ALONE,
    "fedsgd": {"batch_size": 10, "fine_tune_epochs": 10, "client_weighting": "num_examples"},
    "fedprox": COMMON | {"mu": 0.1},
    "scaffold": ALONE | {"server_step_size": 1.0, "counts_momentum": True},
    "fed_mtl": ALONE,
    "fedper": COMMON,
    "per_fedavg": COMMON | {"inner_step_size": 1e-4, "difference": 1e-3, "support_fraction": 0.8},
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
    """Names of layers in parameters of any structure."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params)]
    return tuple(layer for layer in ALL if any(f"['{layer}']" in path for path in paths))


def test_layers_and_evaluation(name):
    row, algorithm = TABLE[name], srp.methods.get(name, dataset=SHAPES, hidden=(4, 4, 4)).algorithm
    one = jnp.int32(1)
    examples = Examples(jnp.zeros((2, 5)), jnp.zeros(2, jnp.int32), one)

    def parts(key):
        server = algorithm.init(key, SHAPES)
        context = RoundContext(one, one, one, NUM_CLIENTS, one)
        return server, algorithm.round.broadcast(server, context), algorithm.init_client(key, server, examples)

    server, broadcast, client = jax.eval_shape(parts, KEY)
    assert layers_of(broadcast) == row.shared
    assert layers_of(client) == row.personal
    assert layers_of(getattr(server, "params", server).head) == row.head
    assert next(iter(algorithm.evaluations)) == row.evaluation
    assert srp.methods.recipe(name).twin == row.twin


def cohort_sizes(policy, rounds):
    """How many of 100 clients take part."""
    state, times, sizes = policy.init(KEY, NUM_CLIENTS), jnp.arange(1.0, 1.0 + NUM_CLIENTS), []
    for t in rounds:
        state = state._replace(round=jnp.int32(t)) if hasattr(state, "round") else state
        sizes.append(int(policy.select(KEY, state, ClientTimes(times, times))[0].size))
    return sizes


def test_who_takes_part(name):
    """From 10 on, doubled every 10 rounds; in a pool of 20: 10 for 10 rounds, then 20."""
    get = functools.partial(srp.methods.get, name, dataset=SHAPES, hidden=(4, 4))
    if name == "fedbuff":
        assert cohort_sizes(get().participation, (0, 9)) == [10, 10]
        return
    if name in BY_CRITERION:
        assert cohort_sizes(get().participation, (0, 9)) == [10, 10]
        assert cohort_sizes(get(initial=25).participation, (0, 9)) == [25, 25]
        return
    rounds = (0, 9, 10, 19, 20, 29, 30, 39, 40, 149)
    doubles = TABLE[name].twin is not None
    of_all = [10, 10, 20, 20, 40, 40, 80, 80, 100, 100] if doubles else [100] * 10
    if name == "fednova":  # everybody, with as much work as fits
        assert cohort_sizes(get().participation, rounds) == of_all
        return
    of_a_fifth = [10, 10] + [20] * 8 if doubles else [20] * 10
    assert cohort_sizes(get().participation, rounds) == of_all
    assert cohort_sizes(get(pool=20).participation, rounds) == of_a_fifth


def given_to_factory(monkeypatch, name, **options):
    """The algorithm's name and the arguments that its factory gets."""
    row, seen = srp.methods.recipe(name), {}

    @functools.wraps(row.factory)
    def spy(*args, **arguments):
        seen.update(arguments)
        return row.factory(*args, **arguments)

    monkeypatch.setitem(srp.methods.RECIPES, name, row._replace(factory=spy))
    algorithm = srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), **options).algorithm
    return algorithm.name, seen


def steps_of(optimizer):
    """What two gradients of ones make of weights and biases of ones, one after the other."""
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    state, steps = optimizer.init(params), []
    for _ in range(2):
        updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
        steps += [float(updates["kernel"][0, 0]), float(updates["bias"][0])]
    return steps


def test_defaults_are_the_papers(name, monkeypatch):
    """Step size 0.01 in all experiments, neither momentum nor decay; fine-tuning by the optimizer of training."""
    algorithm, given = given_to_factory(monkeypatch, name)
    optimizer = given.pop("optimizer")
    np.testing.assert_allclose(steps_of(optimizer), [-0.01] * 4, rtol=1e-6)
    assert given.get("fine_tune_optimizer") is None
    given.pop("evaluation", None)
    assert {option: value for option, value in given.items() if value is not None} == DEFAULTS[algorithm]


def test_the_optimizers_of_the_code(name, monkeypatch):
    """Momentum 0.5 in fine-tuning alone, decay 1e-4 on weights and not on biases."""
    _, given = given_to_factory(monkeypatch, name, fine_tune_momentum=0.5, weight_decay=1e-4)
    plain, heavy = -0.01 * (1 + 1e-4), -0.01
    np.testing.assert_allclose(steps_of(given["optimizer"]), [plain, -0.01, plain, -0.01], rtol=1e-6)
    tuning = steps_of(given["fine_tune_optimizer"])
    np.testing.assert_allclose(tuning, [plain, heavy, 1.5 * plain, 1.5 * heavy], rtol=1e-6)


def test_what_only_other_methods_read_is_refused_unless_it_is_shared(name):
    options = {"inner_step_size": 0.1, "head_epochs": 2, "initial": 5, "redraw": "stage", "rounds_per_stage": 2}
    method = srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), shared=options)
    assert method.name == name
    unread = {"inner_step_size"} if name not in ("hf_maml", "per_fedavg") else set()
    unread |= {"head_epochs"} if name not in ("fedrep", "srpfl") else set()
    unread |= {"initial"} if TABLE[name].twin is None else set()
    unread |= {"rounds_per_stage", "redraw"} if TABLE[name].twin is None or name in BY_CRITERION else set()
    assert {option for option in options if option not in method.options} == unread
    assert {option: method.options[option] for option in options.keys() - unread} == {
        option: value for option, value in options.items() if option not in unread
    }
    for option in options:
        if option in unread:
            with pytest.raises(
                ValueError, match=f"{option}: has no effect on method '{name}', only on .*; leave it out"
            ):
                srp.methods.get(name, dataset=SHAPES, hidden=(4, 4), **{option: options[option]})
    with pytest.raises(ValueError, match=r"shared: 'inital' is an option of no method \(did you mean initial or "):
        srp.methods.get(name, dataset=SHAPES, shared={"inital": 5})


def test_every_option_of_every_function_reaches_its_function(name, monkeypatch):
    """Options are read off signatures: what a factory or a policy takes is an option, and arrives."""
    route = srp.methods.routes(name)
    assert set(route.algorithm) | set(srp.methods.OBJECTS) >= set(inspect.signature(route.factory).parameters) - {
        "model",
        *getattr(route.factory, "keywords", {}),
    }
    other = {"local_steps": 3, "fine_tune_epochs": 4, "inner_steps": 2, "local_epochs": 2, "head_epochs": 3}
    for option in other.keys() & set(route.algorithm):
        _, given = given_to_factory(monkeypatch, name, **{option: other[option]})
        monkeypatch.undo()
        assert given[option] == other[option]
        assert option != "local_steps" or given["local_epochs"] is None


@pytest.mark.usefixtures("registry")
def test_a_row_may_set_what_any_part_reads():
    row = {"initial": 5, "hidden": (4,), "learning_rate": 0.2, "fine_tune_optimizer": srp.algorithms.sgd(0.3)}
    srp.methods.register("mine", srp.algorithms.fedavg, participation="doubling", options=row)
    found = srp.methods.get("mine", dataset=SHAPES).options
    assert {name: found[name] for name in ("initial", "hidden", "learning_rate")} == {
        "initial": 5,
        "hidden": [4],
        "learning_rate": 0.2,
    }
    assert found["fine_tune_optimizer"]["learning_rate"] == 0.3


def test_rows_may_have_options_of_their_own():
    """FLANP with FedNova: as many steps as fit, which is one for all where nobody says otherwise."""
    get = functools.partial(srp.methods.get, dataset=SHAPES, hidden=(4,))
    asked = {"flanp": (1, 1.0), "flanp_fednova": (10, 0.5), "fednova": (10, 0.5)}
    for name, expected in asked.items():
        method = get(name)
        assert (method.options["max_work"], method.options["on_time"]) == expected
        assert (method.participation.options["max_work"], method.participation.options["on_time"]) == expected
    assert get("flanp_fednova", max_work=4, shared={"on_time": 0.25}).options["max_work"] == 4
    assert get("flanp_fednova", max_work=4, shared={"on_time": 0.25}).options["on_time"] == 0.25
    elsewhere = get("flanp_fednova", participation="uniform", k=10)  # a policy that has no such options
    assert "max_work" not in elsewhere.options


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
    assert method.options["initial"] == 7
    assert srp.methods.label(method.name) == "FedRep + doubling"
    assert cohort_sizes(method.participation, (0, 10)) == [7, 14]
    own = srp.methods.get("srpfl", dataset=SHAPES, hidden=(4,), participation=srp.participation.fastest(3))
    assert (own.name, own.participation.name) == ("srpfl + fastest", "fastest")
    with pytest.raises(ValueError, match="initial: has no effect"):
        srp.methods.get("srpfl", dataset=SHAPES, participation=srp.participation.fastest(3), initial=3)
    with pytest.raises(ValueError, match="k is missing: 'uniform' needs it"):
        srp.methods.get("fedavg", dataset=SHAPES, participation="uniform")
    with pytest.raises(ValueError, match=r"unknown participation 'doublin' \(did you mean doubling\?\)"):
        srp.methods.get("fedavg", dataset=SHAPES, participation="doublin")
    with pytest.raises(ValueError, match="is neither a name nor a policy; call it"):
        srp.methods.get("fedavg", dataset=SHAPES, participation=srp.participation.full)


def test_an_optimizer_of_ones_own_stands_in_for_the_options_of_sgd():
    mine = srp.algorithms.sgd(0.3)
    method = srp.methods.get("fedavg", dataset=SHAPES, hidden=(4,), optimizer=mine)
    assert "learning_rate" not in method.options
    with pytest.raises(ValueError, match="learning_rate: the optimizer that is given has its own"):
        srp.methods.get("fedavg", dataset=SHAPES, optimizer=mine, learning_rate=0.1)


def test_an_optimizer_of_fine_tuning_stands_in_for_its_momentum(monkeypatch):
    """It reaches the factory, whatever other methods fine-tune with; both at once are refused."""
    mine = srp.algorithms.sgd(0.3)
    with pytest.raises(ValueError, match="fine_tune_momentum: the fine_tune_optimizer that is given has its own"):
        srp.methods.get("fedavg", dataset=SHAPES, fine_tune_optimizer=mine, fine_tune_momentum=0.5)
    srp.methods.get("fedavg", dataset=SHAPES, fine_tune_optimizer=mine, fine_tune_momentum=None)  # asks for nothing
    shared = {"fine_tune_momentum": 0.5, "learning_rate": 0.2}
    assert "fine_tune_momentum" not in srp.methods.get("fedavg", dataset=SHAPES, fine_tune_optimizer=mine).options
    _, given = given_to_factory(monkeypatch, "fedavg", fine_tune_optimizer=mine, shared=shared)
    np.testing.assert_allclose(steps_of(given["fine_tune_optimizer"]), [-0.3] * 4, rtol=1e-6)
    np.testing.assert_allclose(steps_of(given["optimizer"]), [-0.2] * 4, rtol=1e-6)


def counted(model, pace: float | jax.Array = 0.5, local_epochs: int = 1):
    """A method of somebody else's: FedAvg at a step size of `pace`."""
    return srp.algorithms.fedavg(model, srp.algorithms.sgd(pace), local_epochs=local_epochs)._replace(name="counted")


@pytest.fixture
def registry():
    """As it was, afterwards."""
    before, policies = dict(srp.methods.RECIPES), dict(srp.methods.POLICIES)
    yield
    srp.methods.RECIPES.clear()
    srp.methods.RECIPES.update(before)
    srp.methods.POLICIES.clear()
    srp.methods.POLICIES.update(policies)


@pytest.mark.usefixtures("registry")
def test_a_factory_without_an_optimizer_may_have_options_of_sgd_as_its_own():
    seen = []

    def mine(model, learning_rate: float = 0.5, momentum: float | jax.Array = 0.25, weight_decay: int = 3):
        seen.append((learning_rate, momentum, weight_decay))
        return srp.algorithms.fedavg(model)

    srp.methods.register("mine", mine)
    method = srp.methods.get("mine", dataset=SHAPES, learning_rate=0.1, weight_decay=4)
    assert seen == [(0.1, 0.25, 4)]
    assert {o: method.options[o] for o in ("learning_rate", "momentum", "weight_decay")} == {
        "learning_rate": 0.1,
        "momentum": 0.25,
        "weight_decay": 4,
    }
    assert values_of(method.algorithm) == {"momentum": 0.25}  # the only one that says it may be traced

    def both(model, optimizer=None, learning_rate: float = 0.5):
        return srp.algorithms.fedavg(model, optimizer)

    with pytest.raises(ValueError, match=r"learning_rate: an argument of 'both' beside its optimizer, .*; rename it"):
        srp.methods.get(both, dataset=SHAPES)


@pytest.mark.usefixtures("registry")
def test_one_function_and_one_row_add_a_method(tmp_path, capsys):
    row = {"participation": "doubling", "label": "Counted", "color": "#123456", "twin": "fedavg", "source": "nobody"}
    srp.methods.register("counted", counted, **row)
    data = srp.data.load("digits", num_clients=10, classes_per_client=3, max_examples=10)
    method = srp.methods.get("counted", dataset=data, hidden=(4,), pace=0.25, initial=5, rounds_per_stage=1)
    history = srp.simulate(method, data, num_rounds=2, eval_every=1, key=jax.random.key(3), progress=False)
    assert history.cohort_size.tolist() == [5, 10]
    words = "--dataset digits --num-clients 10 --classes-per-client 3 --max-examples 10 --hidden 4 --num-rounds 2"
    words += " --eval-every 1 --seed 3 --method counted --pace 0.25 --initial 5 --rounds-per-stage 1 --no-progress"
    assert cli.main(["run", *words.split(), "--out", str(tmp_path / "run")], set_up_cores=False) == 0
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


@pytest.mark.usefixtures("registry")
def test_files_of_methods_are_run_before_options_are_read(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "def mine(model, pace: float = 0.5):\n"
        '    """Mine.\n\n    Args:\n        model: of it.\n        pace: of its steps.\n    """\n'
        "    return srp.algorithms.fedavg(model, srp.algorithms.sgd(pace))\n"
        "srp.methods.register('mine', mine)\n"
    )
    words = ["--dataset", "digits", "--num-clients", "5", "--hidden", "4", "--num-rounds", "1", "--no-progress"]
    words += ["--method", "mine", "--pace", "0.1"]
    load = ["--load", str(tmp_path / "mine.py")]
    assert cli.main(["run", *load, *words, "--out", str(tmp_path / "run")], set_up_cores=False) == 0
    assert History.load(tmp_path / "run").config["options"]["pace"] == 0.1
    capsys.readouterr()
    assert cli.main(["run", "--load", "no.py", *words], set_up_cores=False) == 2
    error = capsys.readouterr().err
    assert error == "fedjax-srp: error: load='no.py': no such file; give a Python file that registers methods\n"


@pytest.mark.usefixtures("registry")
def test_a_loaded_file_finds_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_loaded.py").write_text("NAME = 'lies_beside'\n")
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "from beside_the_loaded import NAME\n"
        "srp.methods.register(NAME, lambda model: srp.algorithms.fedavg(model), label='mine')\n"
    )
    run_options.load([str(tmp_path / "mine.py")])
    assert "lies_beside" in srp.methods.names()
    assert sys.path[-1] == str(tmp_path)  # behind all others


@pytest.mark.usefixtures("registry")
def test_a_factory_that_returns_nothing_is_named():
    def forgetful(model):
        """Mine."""
        srp.algorithms.fedavg(model)

    srp.methods.register("forgetful", forgetful)
    data = srp.data.load("digits", num_clients=5, classes_per_client=3)
    with pytest.raises(ValueError, match="forgetful: returned None, not a FederatedAlgorithm"):
        srp.methods.get("forgetful", dataset=data)


def slowest(m: int = 2, k: float = 0.5):
    """Those who take longest.

    Args:
        m: how many take part.
        k: a name that policies of the package give to a number of clients.
    """
    policy = srp.participation.fastest(m)

    def select(key, state, times):
        return policy.select(key, state, times._replace(realised=-times.realised))

    return policy._replace(name="slowest", select=select, options=None)


@pytest.mark.usefixtures("registry")
def test_policies_of_ones_own_have_names_and_options():
    srp.methods.register_participation("slowest", slowest)
    method = srp.methods.get("fedrep", dataset=SHAPES, participation="slowest", m=3, k=0.25)
    assert (method.name, method.participation.name) == ("fedrep + slowest", "slowest")
    assert method.participation.options == {"m": 3, "k": 0.25}
    assert {o: method.options[o] for o in ("participation", "m", "k")} == {
        "participation": "slowest",
        "m": 3,
        "k": 0.25,
    }
    again = srp.methods.get("fedavg", dataset=SHAPES, participation="slowest", k=0.25, m=3)
    assert again.participation is method.participation  # one program
    srp.methods.register("mine", counted, participation="slowest", options={"m": 4})
    assert srp.methods.get("mine", dataset=SHAPES).participation.options == {"m": 4, "k": 0.5}
    with pytest.raises(ValueError, match=r"m: has no effect on method 'fedavg', only on .*participation 'slowest'"):
        srp.methods.get("fedavg", dataset=SHAPES, m=3)


@pytest.mark.usefixtures("registry")
def test_an_argument_of_a_policy_is_not_one_of_sgd():
    srp.methods.register_participation("turns", lambda momentum=0.9: srp.participation.full())
    with pytest.raises(ValueError, match=r"momentum: read by its algorithm and by participation 'turns'; rename it"):
        srp.methods.get("fedrep", dataset=SHAPES, participation="turns", momentum=0.5)


@pytest.mark.usefixtures("registry")
def test_files_may_bring_policies_to_runs_and_grids(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fedjax_srp as srp\n"
        "def first(m: int = 2):\n"
        '    """Mine.\n\n    Args:\n        m: of them.\n    """\n'
        "    return srp.participation.fastest(m)._replace(name='first')\n"
        "srp.methods.register_participation('first', first)\n"
    )
    words = ["--dataset", "digits", "--num-clients", "5", "--hidden", "4", "--num-rounds", "2", "--no-progress"]
    words += ["--method", "fedavg", "--participation", "first", "--m", "3", "--load", str(tmp_path / "mine.py")]
    assert cli.main(["run", *words, "--out", str(tmp_path / "run")], set_up_cores=False) == 0
    run = History.load(tmp_path / "run")
    assert (run.config["options"]["participation"], run.config["options"]["m"]) == ("first", 3)
    assert run.cohort_size.tolist() == [3, 3]
    options = {"method": "fedavg", "dataset": "digits", "num_clients": 5, "hidden": [4], "num_rounds": 1}
    options |= {"load": [str(tmp_path / "mine.py")], "participation": "first"}
    grid = srp.grid(options=options, axes={"m": [1, 4]}, out=tmp_path / "grid", progress=False)
    assert sorted(int(run.cohort_size[0]) for run in grid.histories.values()) == [1, 4]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("name", "factory", "message"),
    [
        ("full", slowest, "name='full' is a participation of the package; choose another name"),
        ("", slowest, "name='' is no name; give a string"),
        ("mine", srp.participation.full(), "is no factory: give the function that makes the participation"),
        ("mine", 3, "3 is no factory: give the function"),
        ("mine", lambda *sizes: None, r"<lambda>: \*sizes cannot be given by name"),
    ],
)
def test_registered_policies_are_checked(name, factory, message):
    with pytest.raises(ValueError, match=message):
        srp.methods.register_participation(name, factory)
    assert "mine" not in srp.methods.POLICIES


@pytest.mark.usefixtures("registry")
def test_a_policy_factory_that_returns_nothing_is_named():
    srp.methods.register_participation("forgetful", lambda: None)
    with pytest.raises(ValueError, match="<lambda>: returned None, not a ParticipationPolicy"):
        srp.methods.get("fedavg", dataset=SHAPES, participation="forgetful")


@pytest.mark.usefixtures("registry")
def test_options_of_one_name_are_refused(capsys):
    def mine(model, alpha: float = 0.5):
        """Mine.

        Args:
            model: of it.
            alpha: which is an option of the data as well.
        """
        return srp.algorithms.fedavg(model, srp.algorithms.sgd(alpha))

    srp.methods.register("mine", mine)
    assert cli.main(["run", "--method", "mine", "--dataset", "digits"], set_up_cores=False) == 2
    assert "error: alpha: an option of data and of method; rename" in capsys.readouterr().err


def test_one_name_is_never_read_by_two_parts():
    """By no method of the package; one's own is refused, unless the other part is given as made."""

    def clustered(model, k: int = 3):
        return srp.algorithms.fedavg(model)

    def hyper(model, hidden: int = 8):
        return srp.algorithms.fedavg(model)

    for name in [*srp.methods.names(), *srp.methods.algorithm_names()]:
        for policy in table.POLICIES:
            route = options.routes(name, policy)
            parts = (route.algorithm, route.optimizers, route.policy, options.MODEL_OPTIONS)
            of_models = {option for model in srp.models.names() for option in srp.models.options(model)}
            assert len({*itertools.chain(*parts), *of_models}) == sum(map(len, (*parts, of_models)))
    message = r"k: read by its algorithm and by participation .fastest.; rename .* participation as a policy, made"
    with pytest.raises(ValueError, match=message):
        srp.methods.get(clustered, dataset=SHAPES, participation="fastest", k=10)
    with pytest.raises(ValueError, match=r"hidden: read by its algorithm and by its model; rename"):
        srp.methods.get(hyper, dataset=SHAPES, hidden=4)
    method = srp.methods.get(clustered, dataset=SHAPES, participation=srp.participation.fastest(5), k=2)
    assert (method.options["k"], method.participation.options["k"]) == (2, 5)


@pytest.mark.parametrize(
    ("name", "factory", "row", "message"),
    [
        ("fedavg", counted, {}, "name='fedavg' is a method of the package; choose another name"),
        ("mine", counted, {"participation": "ful"}, r"unknown participation 'ful' \(did you mean full"),
        ("mine", counted, {"colour": "red"}, r"unknown field of a recipe 'colour' \(did you mean color"),
        (
            "mine",
            counted,
            {"options": {"pase": 1.0}},
            r"unknown option in the row of 'mine' 'pase' \(did you mean pace",
        ),
        ("mine", counted, {"options": {"k": 5}}, "unknown option in the row of 'mine' 'k'; choose from pace"),
        ("mine", srp.algorithms.linear_fedavg, {}, "linear_fedavg is no factory of an algorithm on examples"),
        ("mine", 3, {}, "3 is no factory"),
    ],
)
def test_registrations_are_checked(name, factory, row, message):
    """Also the options of a row, against the factory and the row's own policy."""
    with pytest.raises(ValueError, match=message):
        srp.methods.register(name, factory, **row)
    assert "mine" not in srp.methods.RECIPES


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("srpfll", {}, r"unknown method 'srpfll' \(did you mean srpfl"),
        ("fedrep", {"pool": 101}, "pool=101 is larger than num_clients=100; give at most 100"),
        ("srpfl", {"pool": 101}, "pool=101 is larger than num_clients=100; give at most 100"),
        ("fedrep", {"pool": 0}, "pool=0 must be at least 1"),
        ("srpfl", {"initial": 101}, "initial=101 is larger than num_clients=100; give at most 100"),
        ("srpfl", {"initial": 0}, "initial=0 must be at least 1"),
        ("srpfl", {"learning_rate": 0.0}, "learning_rate must be finite and positive, got 0.0; give a step size"),
        ("srpfl", {"momentum": 1.0}, "momentum=1.0 must be below 1; give 0 for none"),
        ("srpfl", {"fine_tune_momentum": 1.5}, "fine_tune_momentum=1.5 must be below 1"),
        ("srpfl", {"weight_decay": -1e-4}, "weight_decay must be finite and >= 0, got -0.0001; give 0"),
        ("hf_maml", {"inner_step_size": -1.0}, "inner_step_size must be finite and >= 0, got -1.0; give a step size"),
        ("lg_fedavg", {"hidden": ()}, r"method 'lg_fedavg' takes the last 2 layers .* model 'mlp' has 1 \(out\); give"),
        ("fedavg", {"model": "lenet5"}, "model='lenet5' for data set 'shapes': .*lenet5 takes images .* mlp takes any"),
        (
            "fedavg",
            {"vocabulary": 9},
            "vocabulary: has no effect on method 'fedavg', only on model 'lstm'; leave",
        ),
        (
            "fedavg",
            {"hiden": (9,)},
            r"unknown option of method 'fedavg' or its model 'hiden' \(did you mean hidden\?\)",
        ),
        ("fedavg", {"model": srp.models.mlp((5,), 3), "hidden": (9,)}, "hidden: options of a model given by name"),
    ],
)
def test_refusals_name_what_the_user_gave(method, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        srp.methods.get(method, dataset=SHAPES, **options)
    assert "\n" not in str(caught.value)


def test_a_misspelt_option_is_told_from_those_of_the_method_and_its_model():
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    with pytest.raises(
        ValueError, match=r"option of method 'srpfl' or its model 'learningrate' .*did you mean learning_rate"
    ):
        srp.methods.get("srpfl", dataset=data, learningrate=0.1)
