"""Every algorithm against its NumPy version, written from the paper: three rounds in float64, on the same batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import RecordedOrders
from reference import fedavg, fedrep, hf_maml, lg_fedavg
from reference.local import Sgd, batches
from reference.small import KEY, Run, assert_close, clients_of, federation, model, scripted

import fedjax_srp as srp
from fedjax_srp.algorithms.examples import GlobalModel, OwnModel

pytestmark = pytest.mark.usefixtures("float64")

COUNTS, TEST_COUNTS = (1, 3, 7, 5, 12, 2, 9), (4, 9, 1, 6, 5, 8, 3)
BATCH = 4
PLAIN, HEAVY = Sgd(0.3), Sgd(0.2, momentum=0.6, decay=0.05)
IDS = np.array([[1, 4, 0, 2, 3, 5, 6], [6, 1, 3, 5, 0, 2, 4], [3, 2, 6, 0, 1, 4, 5]])
SIZES = (3, 2, 7)
WORK = 1 + (IDS == 4) + 2 * (IDS == 0)  # clients 4 and 0 do two and three units
INHERITED = GlobalModel.fine_tune, GlobalModel.fine_tune_all, OwnModel.fine_tune
COHORTS = [row[:size].tolist() for row, size in zip(IDS, SIZES, strict=True)]


def by_layer(split_model, *parts):
    """Parameters of the package as {layer: {part: array}} in the order of the layers."""
    together = {name: layer for part in parts for name, layer in part.items()}
    return {name: jax.tree.map(np.asarray, together[name]) for name in split_model.layer_names if name in together}


def of_client(states, i):
    return jax.tree.map(lambda leaf: leaf[i], states)


class Setting:
    """A run of the package with its state after every round, and what a reference needs to run beside it.

    With `tuned=False` it is not judged by the fine-tuning that methods inherit from `GlobalModel` and `OwnModel`.
    """

    def __init__(self, algorithm, split_model, policy, clients, num_rounds, key=KEY, tuned=True, **run_options):
        data = federation(clients)
        assert data.x_train.dtype == jnp.float64
        judged = {e: f for e, f in algorithm.evaluations.items() if tuned or f.__func__ not in INHERITED}
        run = Run(algorithm, data, policy, evaluations=tuple(judged), key=key, **run_options)
        self.clients, self.start, self.times = clients, run.host_state().server, run.client_time
        self.rounds, self.states, self.accuracies = [], [], []
        for _ in range(num_rounds):
            segment = run.rounds()
            self.rounds.append(jax.tree.map(lambda a: a[0], segment.rounds))
            self.states.append(run.host_state())
            kept = range(len(clients))
            self.accuracies.append({e: total[kept] / count[kept] for e, (total, count) in segment.scores.items()})
        self.orders = RecordedOrders(key, [len(c.y) for c in clients], BATCH)
        start = self.start.params if hasattr(self.start, "params") else self.start
        self.params = by_layer(split_model, start.representation, start.head)

    def fastest(self, *sizes):
        """The cohorts of `doubling`: by expected time, which a fixed clock realises."""
        return [np.argsort(self.times, kind="stable")[:n] for n in sizes]

    def tuning(self, num_rounds, i, purpose, epochs):
        return batches(self.orders.tuning(num_rounds, i, purpose, epochs), BATCH)


def optimizer(sgd):
    return srp.SGD(sgd.step, sgd.momentum or None, sgd.decay or None)


def check_accuracies(setting, t, expected):
    assert expected.keys() == setting.accuracies[t].keys()
    for name, per_client in expected.items():
        np.testing.assert_array_equal(setting.accuracies[t][name], per_client, err_msg=f"{name}, round {t + 1}")


def check_global(setting, t, params, sgd, tuning, rtol=1e-9, **others):
    """The server's model after round t, and all accuracies; `others` are those of the method's own evaluations."""
    assert_close(by_layer(float64_model(), *setting.states[t].server.params), params, rtol)
    accuracies = {"global": [fedavg.global_accuracy(params, client) for client in setting.clients]} | others
    for name, layers, purpose in (("fine_tune", ["out"], "head"), ("fine_tune_all", list(params), "local")):
        if name in setting.accuracies[t]:
            rows = [setting.tuning(t + 1, i, purpose, tuning) for i in range(len(setting.clients))]
            given = zip(setting.clients, rows, strict=True)
            accuracies[name] = [fedavg.fine_tuned_accuracy(params, layers, client, r, sgd) for client, r in given]
    check_accuracies(setting, t, accuracies)


float64_model = functools.partial(model, dtype=jnp.float64)
SMALL = functools.partial(clients_of, COUNTS, TEST_COUNTS, dtype=np.float64)
doubling = functools.partial(srp.participation.Doubling, 2, 1)  # 2, 4, 7 participants
unequal_work = functools.partial(scripted, IDS, SIZES, WORK)  # 3, 2 and all 7 clients


def work_of(t, i):
    """How many units client i of the cohort does in round t of `unequal_work`."""
    return int(WORK[t][IDS[t] == i][0])


@pytest.mark.short("heavy")
@pytest.mark.parametrize(
    ("sgd", "weighting", "run_options"),
    [(HEAVY, "num_examples", {"chunk_size": 3}), (PLAIN, "uniform", {"devices": 2, "chunk_size": 2})],
    ids=["heavy", "plain"],
)
def test_fedavg(sgd, weighting, run_options):
    split_model = float64_model()
    algorithm = srp.algorithms.FedAvg(
        split_model, srp.Training(optimizer(sgd), batch_size=BATCH, epochs=2, weighting=weighting), fine_tune_epochs=3
    )
    setting = Setting(algorithm, split_model, doubling(), SMALL(), 3, **run_options)

    def steps(t, i):
        return batches(setting.orders.epochs(t, i, "local", 2), BATCH)

    cohorts = setting.fastest(2, 4, 7)
    rounds = fedavg.run(setting.params, setting.clients, cohorts, steps, sgd=sgd, client_weighting=weighting)
    for t, params in enumerate(rounds):
        check_global(setting, t, params, sgd, tuning=3)


@pytest.mark.short("heavy")
@pytest.mark.parametrize(
    ("sgd", "head_sgd", "weighting", "counts", "alternations", "run_options"),
    [
        (HEAVY, Sgd(0.1, momentum=0.3), "num_examples", COUNTS, 2, {"chunk_size": 3}),
        (PLAIN, None, "uniform", (1, 200, 3, 1, 1, 2, 3), 1, {"devices": 4, "chunk_size": 1}),
    ],
    ids=["heavy", "plain_on_very_unequal_clients"],
)
def test_fedrep(sgd, head_sgd, weighting, counts, alternations, run_options):
    """Heads are trained and tuned by an optimizer of their own, or by that of the representation."""
    split_model, clients = float64_model(), clients_of(counts, TEST_COUNTS, dtype=np.float64)
    algorithm = srp.algorithms.FedRep(
        split_model,
        srp.Training(optimizer(sgd), batch_size=BATCH, epochs=alternations, weighting=weighting),
        head_epochs=3,
        representation_epochs=2,
        head_optimizer=head_sgd and optimizer(head_sgd),
        fine_tune_epochs=4,
    )
    setting = Setting(algorithm, split_model, unequal_work(), clients, 3, **run_options)
    head_sgd = head_sgd or sgd

    def epochs(t, i, a, purpose, number):
        number *= work_of(t, i)
        return batches(setting.orders.epochs(t, i, purpose, number, first=a * number), BATCH)

    head_steps = functools.partial(epochs, purpose="head", number=3)
    steps = functools.partial(epochs, purpose="local", number=2)
    options = {"sgd": sgd, "head_sgd": head_sgd, "alternations": alternations, "client_weighting": weighting}
    rounds = fedrep.run(setting.params, ["out"], setting.clients, COHORTS, head_steps, steps, **options)
    for t, state in enumerate(rounds):
        server, states = setting.states[t].server, setting.states[t].clients
        assert_close(by_layer(split_model, server.representation), state.representation, 1e-6)
        assert_close(by_layer(split_model, server.head), state.mean_head, 1e-6)
        accuracies = {"fine_tune": [], "own_head": [], "own_or_mean_head": []}
        for i, client in enumerate(setting.clients):
            assert_close(by_layer(split_model, of_client(states.head, i)), state.heads[i], 1e-6)
            rows = setting.tuning(t + 1, i, "head", 4)
            accuracies["fine_tune"].append(fedrep.fine_tuned_accuracy(state, client, rows, head_sgd))
            accuracies["own_head"].append(fedrep.own_head_accuracy(state, i, client))
            accuracies["own_or_mean_head"].append(fedrep.own_or_mean_accuracy(state, i, client))
        check_accuracies(setting, t, accuracies)


@pytest.mark.short("epochs")
@pytest.mark.parametrize(
    ("sgd", "weighting", "local_steps", "run_options"),
    [(HEAVY, "uniform", None, {"devices": 2, "chunk_size": 3}), (PLAIN, "num_examples", 5, {"chunk_size": 3})],
    ids=["epochs", "steps"],
)
def test_lg_fedavg(sgd, weighting, local_steps, run_options):
    split_model = float64_model(cut="fc2")
    algorithm = srp.algorithms.LGFedAvg(
        split_model,
        srp.Training(
            optimizer(sgd), batch_size=BATCH, epochs=None if local_steps else 2, steps=local_steps, weighting=weighting
        ),
        fine_tune_epochs=3,
    )
    setting = Setting(algorithm, split_model, unequal_work(), SMALL(), 3, **run_options)

    def steps(t, i):
        if local_steps:
            return setting.orders.steps(t, i, local_steps * work_of(t, i))
        return batches(setting.orders.epochs(t, i, "local", 2 * work_of(t, i)), BATCH)

    options = {"sgd": sgd, "client_weighting": weighting}
    rounds = lg_fedavg.run(setting.params, ["fc2", "out"], setting.clients, COHORTS, steps, **options)
    for t, state in enumerate(rounds):
        server, states = setting.states[t].server, setting.states[t].clients
        assert_close(by_layer(split_model, server.head), state.shared, 1e-6)
        assert_close(by_layer(split_model, server.representation), state.mean_local, 1e-6)
        accuracies = {"fine_tune": [], "own_representation": [], "own_or_mean_representation": []}
        for i, client in enumerate(setting.clients):
            assert_close(by_layer(split_model, of_client(states.representation, i)), state.local[i], 1e-6)
            rows = setting.tuning(t + 1, i, "local", 3)
            accuracies["fine_tune"].append(lg_fedavg.fine_tuned_accuracy(state, client, rows, sgd))
            accuracies["own_representation"].append(lg_fedavg.own_accuracy(state, i, client))
            accuracies["own_or_mean_representation"].append(lg_fedavg.own_or_mean_accuracy(state, i, client))
        check_accuracies(setting, t, accuracies)


@pytest.mark.short("support_and_target")
@pytest.mark.parametrize(
    ("sgd", "weighting", "meta", "inner_steps", "run_options"),
    [
        (HEAVY, "num_examples", {"alpha": 0.3, "delta": 1e-3}, 1, {"chunk_size": 3}),
        (PLAIN, "uniform", {"alpha": 0.1, "delta": 1e-2, "support_fraction": 0.4}, 2, {"devices": 2, "chunk_size": 2}),
    ],
    ids=["whole_batches", "support_and_target"],
)
def test_hf_maml(sgd, weighting, meta, inner_steps, run_options):
    split_model = float64_model()
    algorithm = srp.algorithms.HFMAML(
        split_model,
        srp.Training(optimizer(sgd), batch_size=BATCH, epochs=2, weighting=weighting),
        inner_step_size=meta["alpha"],
        difference=meta["delta"],
        support_fraction=meta.get("support_fraction"),
        inner_steps=inner_steps,
        fine_tune_epochs=3,
    )
    setting = Setting(algorithm, split_model, unequal_work(), SMALL(), 3, **run_options)

    def steps(t, i):
        return batches(setting.orders.epochs(t, i, "local", 2 * work_of(t, i)), BATCH)

    rounds = hf_maml.run(setting.params, setting.clients, COHORTS, steps, sgd=sgd, client_weighting=weighting, **meta)
    for t, params in enumerate(rounds):
        assert_close(by_layer(split_model, *setting.states[t].server.params), params, 1e-6)
        accuracies = {"one_inner_step": [], "global": [], "fine_tune": []}
        for i, client in enumerate(setting.clients):
            accuracies["one_inner_step"].append(hf_maml.adapted_accuracy(params, client, meta["alpha"], inner_steps))
            accuracies["global"].append(fedavg.global_accuracy(params, client))
            rows = setting.tuning(t + 1, i, "head", 3)
            accuracies["fine_tune"].append(fedavg.fine_tuned_accuracy(params, ["out"], client, rows, sgd))
        check_accuracies(setting, t, accuracies)


@pytest.mark.long
def test_the_hessian_free_step_is_the_gradient_of_the_model_after_its_inner_step():
    # F(w) = f(w - alpha grad f(w)) by automatic differentiation; on a mean loss of a smooth model, one step, one client
    split_model = float64_model()
    (client,) = clients_of((4,), (2,), dtype=np.float64)
    alpha, beta = 0.2, 0.5
    algorithm = srp.algorithms.HFMAML(
        split_model, srp.Training(srp.SGD(beta), batch_size=4), inner_step_size=alpha, difference=1e-4
    )
    setting = Setting(algorithm, split_model, srp.participation.Full(), [client], 1)

    def f(params):
        logits = split_model.logits(params, jnp.asarray(client.x))
        return jnp.mean(srp.models.cross_entropy(logits, jnp.asarray(client.y, jnp.int32)))

    def after_inner_step(params):
        return f(jax.tree.map(lambda p, g: p - alpha * g, params, jax.grad(f)(params)))

    start = setting.start.params
    expected = jax.tree.map(lambda p, g: p - beta * g, start, jax.grad(after_inner_step)(start))
    without_hessian = jax.tree.map(
        lambda p, g: p - beta * g,
        start,
        jax.grad(f)(jax.tree.map(lambda p, g: p - alpha * g, start, jax.grad(f)(start))),
    )
    moved = setting.states[0].server.params
    assert_close(moved, expected, 1e-7)
    with pytest.raises(AssertionError):
        assert_close(moved, without_hessian, 1e-4)
