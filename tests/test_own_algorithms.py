"""Two published methods that the package does not have, each in a few lines of public names: FedDyn and pFedMe."""

import ast
import dataclasses
import inspect
import io
import tokenize
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own.feddyn import FedDyn
from own.pfedme import PFedMe
from reference.small import NUM_CLASSES, NUM_FEATURES, assert_close, clients_of, federation

import fedjax_srp as srp
from fedjax_srp.commands import cli
from fedjax_srp.history import History

KEY = jax.random.key(5)
BUDGETS = {FedDyn: 40, PFedMe: 50}  # code lines
COUNTS = (4, 9, 6, 12, 7)
CLIENTS = clients_of(COUNTS, (3,) * len(COUNTS))
DATA = federation(CLIENTS)
SOFTMAX = srp.models.MLP((NUM_FEATURES,), NUM_CLASSES, hidden=())  # one layer, called "out"
RATE, EPOCHS = 0.2, 3
FULL_BATCHES = srp.Training(srp.SGD(RATE), batch_size=max(COUNTS), epochs=EPOCHS)


def code_lines(text):
    """How many lines hold code: no blank ones, no comments, no docstrings."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_lines_are_counted_as_one_would():
    assert code_lines('"""A\nb."""\n\n# c\nx = [\n    1,  # d\n]\n\n\ndef f():\n    """E."""\n    return x\n') == 5


@pytest.mark.parametrize("cls", BUDGETS)
def test_they_are_short_and_of_public_names_alone(cls):
    text = Path(inspect.getfile(cls)).read_text()
    assert 10 < code_lines(text) <= BUDGETS[cls]
    tree = ast.parse(text)
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    own = [line for line in imported if "fedjax_srp" in line]
    assert own == ["import fedjax_srp as srp", "from fedjax_srp.algorithms import local"]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert {node.attr for node in attributes if ast.unparse(node.value) == "srp"} <= {*srp.__all__}
    assert {node.attr for node in attributes if node.attr.startswith("_")} <= {"_replace"}


# With every policy, and from the command line.

POLICIES = (
    srp.participation.Full(),
    srp.participation.Uniform(3),
    srp.participation.Fastest(3),
    srp.participation.Doubling(2, 1),
    srp.participation.PartialWork(3, 0.5),
    srp.participation.StatisticalAccuracy(2),
    srp.participation.Buffered(2),
    srp.participation.Deadline(0.8, policy=srp.participation.Uniform(5)),
    srp.participation.PowerOfChoice(2, candidates=4),
    srp.participation.Tiered(2, tiers=2, by="loss"),
    srp.participation.Oort(3),
)


def test_every_policy_is_here():
    assert {type(policy).__name__ for policy in POLICIES} == set(srp.participation.__all__)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("cls", BUDGETS)
def test_they_run_with_every_policy(cls, policy):
    options = {"num_rounds": 2, "eval_every": 1, "evaluations": "all", "key": KEY, "progress": False}
    algorithm = cls(SOFTMAX, srp.Training(srp.SGD(0.1), batch_size=4), fine_tune_epochs=1)
    history = srp.simulate(algorithm, DATA, participation=policy, record_loss=True, **options)
    assert history.finite.all()
    assert np.isfinite(history.metrics["training_loss"]).all()
    assert set(history.accuracies) == set(algorithm.evaluations)
    assert history.bytes_down == 4 * (NUM_FEATURES + 1) * NUM_CLASSES
    assert history.bytes_up == (1 + policy.needs_global_gradient) * history.bytes_down


WORDS = (
    "--learning-rate 0.05 --epochs 2 --initial 2 --hidden 4 --num-rounds 2 --no-progress "
    "--dataset digits --num-clients 6 --classes-per-client 3 --max-examples 10"
)


@pytest.fixture
def _registry_as_before():
    before = dict(srp.methods.RECIPES)
    yield
    srp.methods.RECIPES.clear()
    srp.methods.RECIPES.update(before)


@pytest.mark.usefixtures("_registry_as_before")
@pytest.mark.parametrize(
    ("cls", "words", "recorded"),
    [
        (FedDyn, ["--method.alpha", "0.1"], {"alpha": 0.1}),
        (PFedMe, ["--penalty", "2", "--inner-steps", "3"], {"penalty": 2.0, "inner_steps": 3}),
    ],
    ids=["feddyn", "pfedme"],
)
def test_they_run_from_the_command_line(cls, words, recorded, tmp_path):
    name, file, folder = cls.name, tmp_path / "mine.py", tmp_path / "run"
    text = Path(inspect.getfile(cls)).read_text()
    file.write_text(
        f'{text}\n\nsrp.methods.register("{name}", {cls.__name__}, label="Mine", participation="doubling")\n'
    )
    arguments = ["run", "--load", str(file), "--method", name, *words, *WORDS.split(), "--out", str(folder)]
    assert cli.main(arguments, set_up_cores=False) == 0
    history = History.load(folder)
    assert history.name == name
    assert history.cohort_size.tolist() == [2, 2]
    expected = {"learning_rate": 0.05, "epochs": 2, **recorded}
    assert {option: history.config["options"][option] for option in expected} == expected


def test_a_float_of_theirs_compiles_nothing_and_can_differ_between_seeds():
    keys, options = jnp.stack([KEY, KEY]), {"num_rounds": 2, "eval_every": 2, "devices": 1, "progress": False}
    both = srp.simulate_seeds(FedDyn(SOFTMAX), DATA, keys=keys, values={"alpha": [0.01, 0.5]}, **options)
    for history, alpha in zip(both, (0.01, 0.5), strict=True):
        alone = srp.simulate(FedDyn(SOFTMAX, alpha=alpha), DATA, key=KEY, **options)
        assert_close(alone.server_state, history.server_state, 1e-5)
    assert alone.compile_seconds == 0  # 0.01 has compiled it
    with pytest.raises(ValueError, match=r"alpha=0\.0 must be positive; give a small number"):
        FedDyn(SOFTMAX, alpha=0.0)


# Against NumPy: a softmax regression on full batches, so that no order matters.


class Regression:
    """Weights and biases in one matrix."""

    def __init__(self, client):
        self.x = np.concatenate([client.x, np.ones((len(client.y), 1))], axis=1).astype(np.float64)
        self.labels = np.eye(NUM_CLASSES)[client.y]

    def gradient(self, w):
        odds = np.exp(self.x @ w)
        return self.x.T @ (odds / odds.sum(axis=1, keepdims=True) - self.labels) / len(self.x)


LOSSES = [Regression(client) for client in CLIENTS]


def as_matrix(params):
    layer = params.head["out"]
    return np.concatenate([layer["kernel"], np.asarray(layer["bias"])[None]], axis=0).astype(np.float64)


def run(algorithm, num_rounds, policy=None):
    options = {"num_rounds": num_rounds, "eval_every": num_rounds, "devices": 1, "key": KEY, "progress": False}
    return srp.simulate(algorithm, DATA, participation=policy, keep_clients=True, **options)


START = as_matrix(run(srp.algorithms.FedAvg(SOFTMAX, srp.Training(epochs=0)), 1).server_state.params)


def close(actual, desired, rtol=1e-5):
    np.testing.assert_allclose(actual, desired, rtol=0, atol=rtol * np.abs(desired).max())


def feddyn_in_numpy(cohorts, alpha):
    """After every round: w, h, and h_i of all clients."""
    w, h, of_clients = START, np.zeros_like(START), [np.zeros_like(START) for _ in CLIENTS]
    for cohort in cohorts:
        ends = []
        for i in cohort:
            end = w
            for _ in range(EPOCHS):
                end = end - RATE * (LOSSES[i].gradient(end) - of_clients[i] + alpha * (end - w))
            of_clients[i] = of_clients[i] - alpha * (end - w)
            ends.append(end)
        h = h - alpha / len(CLIENTS) * sum(end - w for end in ends)
        w = np.mean(ends, axis=0) - h / alpha
        yield w, h, list(of_clients)


@pytest.mark.parametrize("policy", [srp.participation.Full(), srp.participation.Fastest(2)], ids=["full", "some"])
def test_feddyn_in_numpy(policy):
    alpha = 0.3
    found = run(FedDyn(SOFTMAX, FULL_BATCHES, alpha=alpha), 3, policy)
    cohort = np.argsort(found.client_time, kind="stable")[: found.cohort_size[0]]  # the clock is fixed
    *_, (w, h, of_clients) = feddyn_in_numpy([cohort] * 3, alpha)
    close(as_matrix(found.server_state.params), w)
    close(as_matrix(found.server_state.h), h)
    for i in range(len(CLIENTS)):
        own = as_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], found.client_states))
        close(own, of_clients[i]) if i in cohort else np.testing.assert_array_equal(own, 0)


def test_feddyn_finds_the_minimum_of_the_mean_loss_where_fedavg_stalls():
    """What is left of the mean gradient says how far the minimum is; decay of the weights makes it one."""
    decay = 0.1
    training = dataclasses.replace(FULL_BATCHES, optimizer=srp.SGD(RATE, weight_decay=decay), epochs=10)

    def slope(algorithm):
        w = as_matrix(run(algorithm, 300).server_state.params)
        of_penalty = np.concatenate([decay * w[:-1], np.zeros((1, NUM_CLASSES))])
        return np.linalg.norm(np.mean([loss.gradient(w) for loss in LOSSES], axis=0) + of_penalty)

    assert slope(srp.algorithms.FedAvg(SOFTMAX, training)) > 0.01
    assert slope(FedDyn(SOFTMAX, training, alpha=0.3)) < 1e-4


def test_clients_of_feddyn_are_those_of_fedavg_where_alpha_vanishes():
    """In the first round, in which nobody has an h_i yet. The server moves on from their mean whatever alpha is."""
    examples, one = DATA.train_client(jnp.int32(3)), jnp.int32(1)
    context = srp.RoundContext(one, one, one, len(CLIENTS), one)

    def sent(algorithm):
        server = algorithm.init(KEY, DATA)
        state = algorithm.init_client(KEY, server, examples)
        return jax.jit(lambda examples: algorithm.client(KEY, server.params, state, examples, context))(
            examples
        ).message

    expected = sent(srp.algorithms.FedAvg(SOFTMAX, FULL_BATCHES))
    assert_close(sent(FedDyn(SOFTMAX, FULL_BATCHES, alpha=1e-7)), expected, 1e-6)
    with pytest.raises(AssertionError):
        assert_close(sent(FedDyn(SOFTMAX, FULL_BATCHES, alpha=1.0)), expected, 1e-3)


PULL, STEPS, INNER, MIXING = 1.5, 4, 0.1, 0.7
PERSONAL = {"penalty": PULL, "inner_steps": STEPS, "inner_step_size": INNER, "mixing": MIXING}


def pfedme_in_numpy(num_rounds):
    """The global model and the personal ones."""
    w = START
    for _ in range(num_rounds):
        ends, thetas = [], []
        for loss in LOSSES:
            own = w
            for _ in range(EPOCHS):
                theta = own
                for _ in range(STEPS):
                    theta = theta - INNER * (loss.gradient(theta) + PULL * (theta - own))
                own = own - RATE * PULL * (own - theta)
            ends.append(own)
            thetas.append(theta)
        w = (1 - MIXING) * w + MIXING * np.mean(ends, axis=0)
    return w, thetas


def test_pfedme_in_numpy():
    """The personal model is the last inner iterate, not the client's copy of the global one."""
    found = run(PFedMe(SOFTMAX, FULL_BATCHES, **PERSONAL), 3)
    w, thetas = pfedme_in_numpy(3)
    close(as_matrix(found.server_state.params), w)
    for i, theta in enumerate(thetas):
        close(as_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], found.client_states)), theta)


def test_without_its_penalty_the_global_model_of_pfedme_stays():
    """And a personal model is what the inner steps make of it."""
    found = run(PFedMe(SOFTMAX, FULL_BATCHES, **PERSONAL | {"penalty": 0.0, "mixing": 1.0}), 2)
    close(as_matrix(found.server_state.params), START, 1e-6)
    for i, loss in enumerate(LOSSES):
        theta = START
        for _ in range(STEPS):
            theta = theta - INNER * loss.gradient(theta)
        close(as_matrix(jax.tree.map(lambda leaf, i=i: leaf[i], found.client_states)), theta)


def test_pfedme_needs_a_step_size_that_the_optimizer_tells():
    algorithm = PFedMe(SOFTMAX, srp.Training(lambda round: srp.SGD(lambda count: 0.1)), fine_tune_optimizer=srp.SGD())
    with pytest.raises(ValueError, match="step size"):
        run(algorithm, 1)
