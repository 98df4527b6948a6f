"""Eight methods against PFLlib's own code: 20 rounds on the same batches.

Skipped without PyTorch and a copy of PFLlib: PFLLIB=path/to/PFLlib/system python -m pytest -m long -s <this file>.
"""

import copy
import importlib.util
import os
import random
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded_orders import stream
from reference.local import batches
from reference.small import KEY, NUM_CLASSES, clients_of, model
from setting import BATCH, Setting, by_layer

import fedjax_srp as srp
from fedjax_srp import named_key
from fedjax_srp.algorithms.local import random_order

PFLLIB = Path(os.environ.get("PFLLIB", "no_folder_of_pfllib"))
pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None or not PFLLIB.is_dir(),
        reason="needs PFLLIB and torch",
    ),
]
COUNTS, TESTS, ROUNDS, EPOCHS, RATE = (
    (20, 35, 10, 50, 15, 30),
    (40,) * 6,
    20,
    2,
    0.1,
)  # 0.8 of each is whole
STRATEGY = srp.participation.Full()


def of_pfllib(file):
    """Import one file of PFLlib as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, PFLLIB / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def setting_of(cls, **options):
    split_model = model(hidden=(16,), dtype=jnp.float64)
    algorithm = cls(split_model, srp.Training(srp.SGD(RATE), BATCH, EPOCHS), **options)
    return Setting(
        algorithm, STRATEGY, clients_of(COUNTS, TESTS, seed=3, dtype=np.float64), ROUNDS
    )


class Rival:
    """Models of PyTorch that start where a run of the package starts, and take its batches."""

    def __init__(self, setting):
        import torch

        self.torch, self.setting, self.loss = torch, setting, torch.nn.CrossEntropyLoss()
        widths = [
            setting.params["fc1"]["kernel"].shape,
            setting.params["out"]["kernel"].shape,
        ]
        layers = [torch.nn.Linear(*shape, dtype=torch.float64) for shape in widths]
        for layer, params in zip(layers, setting.params.values(), strict=True):
            layer.weight.data, layer.bias.data = (
                self.tensor(params["kernel"].T),
                self.tensor(params["bias"]),
            )
        self.model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
        self.data = [(self.tensor(c.x), self.tensor(c.y).long()) for c in setting.clients]
        self.tests = [(self.tensor(c.x_test), c.y_test) for c in setting.clients]

    def tensor(self, array):
        return self.torch.tensor(np.array(array, order="C"))

    def rows(self, t, i):
        return batches(self.setting.orders.epochs(t, i, "local", EPOCHS), BATCH)

    def accuracy(self, model, i):
        x, y = self.tests[i]
        return np.mean(model(x).argmax(1).numpy() == y)

    def descend(self, model, t, i):
        optimizer = self.torch.optim.SGD(model.parameters(), lr=RATE)
        for rows in self.rows(t, i):
            x, y = self.data[i]
            optimizer.zero_grad()
            self.loss(model(x[rows]), y[rows]).backward()
            optimizer.step()

    def average(self, models):
        for place, p in enumerate(self.model.parameters()):
            p.data = sum(list(m.parameters())[place].data for m in models) / len(models)


def compare(name, setting, rival, found, evaluation, shared=lambda server: server.params):
    """Print and check the mean accuracies of all rounds, and the last shared model."""
    ours = np.array([np.mean(setting.accuracies[t][evaluation]) for t in range(ROUNDS)])
    apart = 100 * np.abs(ours - np.array(found))
    print(f"{name} {evaluation}: {100 * ours[-1]:.2f} % and {100 * found[-1]:.2f} % after {ROUNDS} rounds, "
          f"apart {apart.mean():.3f} points in the mean, {apart.max():.3f} at most")  # fmt: skip
    assert apart.mean() < 0.5
    if shared is None:
        return
    last = by_layer(
        model(hidden=(16,), dtype=jnp.float64), *shared(setting.states[-1].server)
    )
    theirs = [p.detach().numpy() for p in rival.model.parameters()]
    for w, p in zip(
        theirs,
        (a for layer in last.values() for a in (layer["kernel"].T, layer["bias"])),
        strict=True,
    ):
        np.testing.assert_allclose(p, w, rtol=0, atol=1e-6)


def test_fedala_of_pfllib(monkeypatch):
    """Its ALA class with the segments and orders of our run, stopped after 11 epochs.

    With its threshold, 0.1 for the deviation of the last batches' losses, it takes more than 32 epochs here.
    """
    setting = setting_of(srp.algorithms.FedALA, weight_share=0.8, start_epochs=11)
    rival, module = Rival(setting), of_pfllib("utils/ALA.py")
    clients = [copy.deepcopy(rival.model) for _ in COUNTS]
    turn = {}

    class Loader:
        def __init__(self, data, batch_size, drop_last):
            self.data, self.epoch = data, 0

        def __iter__(self):
            order = setting.orders.epochs(
                turn["t"], turn["i"], "weights", 1, first=self.epoch
            )[0]
            self.epoch += 1
            for rows in batches([order[order < len(self.data)]], BATCH):
                x, y = zip(*(self.data[row] for row in rows), strict=True)
                yield rival.torch.stack(x), rival.torch.stack(y)

    def first(low, high):
        key = jax.random.fold_in(
            named_key(stream(KEY, "training", jnp.int32(turn["t"])), "round"), turn["i"]
        )
        return int(
            jax.random.randint(
                named_key(key, "segment"), (), 0, jnp.int32(high + 1), jnp.int32
            )
        )

    monkeypatch.setattr(module, "DataLoader", Loader)
    monkeypatch.setattr(random, "randint", first)
    aggregations = [
        module.ALA(
            i,
            rival.loss,
            list(zip(*rival.data[i], strict=True)),
            BATCH,
            80,
            layer_idx=2,
            threshold=np.inf,
        )
        for i in range(len(COUNTS))
    ]
    found = []
    for t in range(ROUNDS):
        for i, own in enumerate(clients):
            turn.update(t=t, i=i)
            aggregations[i].adaptive_local_aggregation(rival.model, own)
            for p in own.parameters():
                p.requires_grad = True
            rival.descend(own, t, i)
        rival.average(clients)
        found.append(
            np.mean([rival.accuracy(rival.model, i) for i in range(len(COUNTS))])
        )
    assert min(w.min() for a in aggregations for w in a.weights) < 1
    compare("FedALA", setting, rival, found, "global")


class Loader:
    """Batches of a client in one round, in a new order at each pass."""

    def __init__(self, rival, t, i, passes):
        self.examples, self.rows = rival.data[i], rival.setting.orders.epochs
        self.passes = iter(
            [(purpose, epoch) for purpose, number in passes for epoch in range(number)]
        )
        self.t, self.i = t, i

    def __iter__(self):
        purpose, epoch = next(self.passes)
        x, y = self.examples
        for rows in batches(self.rows(self.t, self.i, purpose, 1, first=epoch), BATCH):
            yield x[rows], y[rows]


def clients_of_pfllib(rival, monkeypatch, file, name, **fields):
    """Return PFLlib's clients, whose `train` runs on our models; their base class reads files and is left out."""
    base = ModuleType("flcore.clients.clientbase")
    base.Client = object
    for room in ("flcore", "flcore.clients"):
        monkeypatch.setitem(sys.modules, room, ModuleType(room))
    monkeypatch.setitem(sys.modules, "flcore.clients.clientbase", base)
    module = of_pfllib(f"flcore/clients/{file}.py")
    made = []
    for _ in COUNTS:
        client, whole = object.__new__(getattr(module, name)), copy.deepcopy(rival.model)
        model = rival.torch.nn.Sequential(OrderedDict(base=whole[:2], head=whole[2]))
        given = {
            "model": model,
            "loss": rival.loss,
            "device": "cpu",
            "local_epochs": EPOCHS,
            "train_slow": False,
        }
        given |= {
            "learning_rate_decay": False,
            "train_time_cost": defaultdict(float),
            **fields,
        }
        vars(client).update(given)
        made.append(client)
    return made


def sgd_of(rival, params):
    return rival.torch.optim.SGD(params.parameters(), lr=RATE)


def test_fedproto_of_pfllib(monkeypatch):
    """Its client and its mean of prototypes, with `collect_protos` called after training, as in the paper.

    PFLlib does not call it: its prototypes are means of the features of all steps, while the model still moves.
    """
    setting = setting_of(srp.algorithms.FedProto, penalty=1.0)
    rival = Rival(setting)
    fields = {
        "global_protos": None,
        "lamda": 1.0,
        "loss_mse": rival.torch.nn.MSELoss(),
        "num_classes": NUM_CLASSES,
    }
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientproto", "clientProto", **fields
    )
    for name in (
        "flcore.clients.clientproto",
        "flcore.servers",
        "flcore.servers.serverbase",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["flcore.clients.clientproto"].clientProto = sys.modules[
        "flcore.servers.serverbase"
    ].Server = object
    server, found = of_pfllib("flcore/servers/serverproto.py"), []
    for t in range(ROUNDS):
        for i, client in enumerate(clients):
            client.optimizer = sgd_of(rival, client.model)
            client.load_train_data = lambda t=t, i=i: Loader(
                rival, t, i, [("local", EPOCHS + 1)]
            )
            client.load_test_data = lambda i=i: [
                (rival.tests[i][0], rival.torch.tensor(rival.tests[i][1]))
            ]
            client.train()
            client.collect_protos()
        prototypes = server.proto_aggregation([client.protos for client in clients])
        for client in clients:
            client.set_protos(prototypes)
        found.append(
            np.mean(
                [
                    right / number
                    for right, number, _ in (client.test_metrics() for client in clients)
                ]
            )
        )
    ours = setting.states[-1].server.prototypes.features
    for label, features in prototypes.items():
        np.testing.assert_allclose(ours[label], features.numpy(), rtol=0, atol=1e-6)
    compare("FedProto", setting, rival, found, "nearest_prototype", None)


def modules_of_pfllib(monkeypatch, **names):
    """Let PFLlib's servers import these names from `flcore`, in place of its base classes, which read files."""
    for name in ("flcore", "flcore.clients", "flcore.servers", "utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, value in names.items():
        room, _, held = name.partition("__")
        module = ModuleType(room.replace("_", "."))
        setattr(module, held, value)
        monkeypatch.setitem(sys.modules, module.__name__, module)


def average_of(modules):
    """The mean of modules of PyTorch."""
    mean = copy.deepcopy(modules[0])
    parameters = [list(module.parameters()) for module in modules]
    for place, p in enumerate(mean.parameters()):
        p.data = sum(of_one[place].data for of_one in parameters) / len(modules)
    return mean


def batches_of(rival, t, i):
    return lambda: Loader(rival, t, i, [("local", EPOCHS)])


def mean_accuracy(rival, outputs):
    """The mean accuracy of `outputs(i, x)` over the clients."""
    rights = []
    for i, (x, y) in enumerate(rival.tests):
        rights.append(np.mean(outputs(i, x).argmax(1).numpy() == y))
    return np.mean(rights)


def layer_of(rival, layer, params):
    """Fill a linear layer of PyTorch."""
    layer.weight.data = rival.tensor(params["kernel"].T)
    layer.bias.data = rival.tensor(params["bias"])


def normal_of(rival, layer, params):
    layer.weight.data = rival.tensor(params["scale"])
    layer.bias.data = rival.tensor(params["offset"])


@pytest.fixture
def doubles():
    """PyTorch's own arrays are of float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_feddbe_of_pfllib(monkeypatch, doubles):
    """Its client, with our mean features of the federation: PFLlib's are those of last batches."""
    setting = setting_of(srp.algorithms.FedDBE, mean_penalty=5.0)
    rival = Rival(setting)
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientdbe", "clientDBE", klw=5.0, momentum=1.0
    )
    mean = rival.tensor(setting.states[0].server.mean)
    for client in clients:
        client.global_mean = mean
        client.running_mean = rival.torch.zeros_like(mean)
        client.num_batches_tracked = rival.torch.tensor(0)
        client.client_mean = rival.torch.nn.Parameter(rival.torch.zeros_like(mean))
        client.opt_client_mean = rival.torch.optim.SGD([client.client_mean], lr=RATE)
    found = []
    for t in range(ROUNDS):
        for i, client in enumerate(clients):
            for p, shared in zip(
                client.model.parameters(), rival.model.parameters(), strict=True
            ):
                p.data = shared.data.clone()
            client.optimizer = sgd_of(rival, client.model)
            client.load_train_data = batches_of(rival, t, i)
            client.train()
        rival.average([client.model for client in clients])

        def outputs(i, x):
            return rival.model[2](rival.model[:2](x) + clients[i].client_mean)

        with rival.torch.no_grad():
            found.append(mean_accuracy(rival, outputs))
    compare("FedDBE", setting, rival, found, "own_model")
    own = [client.client_mean.detach().numpy() for client in clients]
    np.testing.assert_allclose(setting.states[-1].clients.bias, own, rtol=0, atol=1e-6)


def test_fedcac_of_pfllib(monkeypatch):
    """Its client and its server's mean models, from the first round on.

    PFLlib makes none after the first round, so that critical parameters begin anew.
    """
    setting = setting_of(
        srp.algorithms.FedCAC, critical_share=0.3, collaboration_rounds=15.0
    )
    rival = Rival(setting)
    args = SimpleNamespace(tau=0.3, beta=15, device="cpu")
    clients = clients_of_pfllib(rival, monkeypatch, "clientcac", "clientCAC", args=args)
    modules_of_pfllib(
        monkeypatch, flcore_clients_clientcac__clientCAC=object, flcore_servers_serverbase__Server=object
    )  # fmt: skip
    server = object.__new__(of_pfllib("flcore/servers/servercac.py").FedCAC)
    vars(server).update(args=args, device="cpu", selected_clients=clients)
    for client in clients:
        client.customized_model = copy.deepcopy(client.model)
    found = []
    for t in range(ROUNDS):
        for i, client in enumerate(clients):
            client.optimizer = sgd_of(rival, client.model)
            client.load_train_data = batches_of(rival, t, i)
            client.train()
        # as many critical parameters of each, where PFLlib and the package divide alike
        assert len({int(client.critical_parameter.sum()) for client in clients}) == 1
        server.epoch = t
        server.get_customized_global_models()
        rival.average([client.model for client in clients])
        for client in clients:
            client.set_parameters(rival.model)
        with rival.torch.no_grad():
            found.append(mean_accuracy(rival, lambda i, x: clients[i].model(x)))
    compare("FedCAC", setting, rival, found, "own_model")


def test_gpfl_of_pfllib(monkeypatch, doubles):
    """Its client, valve and embeddings, with conditions from the downloaded embeddings.

    PFLlib makes them from those of the client, before it takes the downloaded ones: so it takes them twice here.
    """
    setting = setting_of(srp.algorithms.GPFL, guidance_penalty=0.05, guidance_decay=0.02)
    rival = Rival(setting)
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientgpfl", "clientGPFL", lamda=0.05, mu=0.02
    )
    modules_of_pfllib(
        monkeypatch, flcore_servers_serverbase__Server=object, flcore_clients_clientgpfl__torch=rival.torch
    )  # fmt: skip
    sys.modules["flcore.clients.clientgpfl"].F = rival.torch.nn.functional
    module = of_pfllib("flcore/servers/servergpfl.py")
    start = setting.start
    embedding, valve = module.GCE(16, NUM_CLASSES), module.CoV(16)
    embedding.embedding.weight.data = rival.tensor(start.embeddings)
    for name in ("gamma", "beta"):
        layers = getattr(valve, f"Conditional_{name}")
        layer_of(rival, layers[0], start.valve[name])
        normal_of(rival, layers[2], start.valve[name])
    for i, client in enumerate(clients):
        shares = np.bincount(setting.clients[i].y, minlength=NUM_CLASSES)
        client.sample_per_class = rival.tensor(shares / shares.sum())
        client.feature_dim, client.num_classes = 16, NUM_CLASSES
        client.GCE, client.CoV = copy.deepcopy(embedding), copy.deepcopy(valve)
        sgd = rival.torch.optim.SGD
        client.GCE_opt = sgd(client.GCE.parameters(), lr=RATE, weight_decay=client.mu)
        client.CoV_opt = sgd(client.CoV.parameters(), lr=RATE, weight_decay=client.mu)
    found = []
    base = clients[0].model.base
    for t in range(ROUNDS + 1):
        for client in clients:
            client.set_parameters(base)
            client.set_GCE(embedding)
            client.set_GCE(embedding)
            client.set_CoV(valve)
            client.generic_conditional_input.detach_()
            client.personalized_conditional_input.detach_()

        def outputs(i, x):
            one = clients[i]
            features = one.model.base(x)
            return one.model.head(one.CoV(features, one.personalized_conditional_input))

        with rival.torch.no_grad():
            found.append(mean_accuracy(rival, outputs))
        if t == ROUNDS:
            break
        for i, client in enumerate(clients):
            client.optimizer = sgd_of(rival, client.model)
            client.load_train_data = batches_of(rival, t, i)
            client.train()
        base = average_of([client.model.base for client in clients])
        embedding = average_of([client.GCE for client in clients])
        valve = average_of([client.CoV for client in clients])
        rival.average([client.model for client in clients])
    compare("GPFL", setting, rival, found[1:], "own_model")
    last = embedding.embedding.weight.detach().numpy()
    np.testing.assert_allclose(
        setting.states[-1].server.embeddings, last, rtol=0, atol=1e-6
    )


def test_fedcp_of_pfllib(monkeypatch, doubles):
    """Its client and its policy without noise, and with the direction of the first head in the first round."""
    setting = setting_of(srp.algorithms.FedCP, alignment_penalty=2.0)
    rival = Rival(setting)
    functional = rival.torch.nn.functional
    monkeypatch.setattr(
        functional, "gumbel_softmax", lambda x, dim, tau, hard: functional.softmax(x, dim)
    )
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientcp", "clientCP", lamda=2.0, pm_train=[]
    )
    ensemble = of_pfllib("flcore/clients/clientcp.py").Ensemble
    modules_of_pfllib(
        monkeypatch, flcore_servers_serverbase__Server=object, flcore_clients_clientcp__torch=rival.torch
    )  # fmt: skip
    of_clients = sys.modules["flcore.clients.clientcp"]
    of_clients.F, of_clients.nn = functional, rival.torch.nn
    data_utils = ModuleType("utils.data_utils")
    data_utils.read_client_data = None
    monkeypatch.setitem(sys.modules, "utils.data_utils", data_utils)
    policy = of_pfllib("flcore/servers/servercp.py").ConditionalSelection(16, 16)
    layer_of(rival, policy.fc[0], setting.start.policy)
    normal_of(rival, policy.fc[1], setting.start.policy)
    for client in clients:
        own = client.model
        client.model = ensemble(
            own, copy.deepcopy(policy), copy.deepcopy(own.head), copy.deepcopy(own.base)
        )
        client.set_head_g(own.head)
        client.opt = sgd_of(rival, client.model)
    found = []
    for t in range(ROUNDS):
        for i, client in enumerate(clients):
            client.load_train_data = batches_of(rival, t, i)
            client.train_cs_model()
            client.generate_upload_head()
        base = average_of([client.model.model.base for client in clients])
        head = average_of([client.model.head_g for client in clients])
        policy = average_of([client.model.gate.cs for client in clients])
        for client in clients:
            client.set_parameters(base)
            client.set_head_g(head)
            client.set_cs(policy)
        whole = rival.torch.nn.Sequential(base, head)
        rival.average([whole])

        def outputs(i, x):
            return clients[i].model(x, context=clients[i].context)

        with rival.torch.no_grad():
            found.append(mean_accuracy(rival, outputs))
    compare("FedCP", setting, rival, found, "own_model")
    last = policy.fc[0].weight.detach().numpy().T
    ours = setting.states[-1].server.policy["kernel"]
    np.testing.assert_allclose(ours, last, rtol=0, atol=1e-6)


def fill(params, like):
    """Give a model of PyTorch the values of another one."""
    for p, value in zip(params.parameters(), like.parameters(), strict=True):
        p.data = value.data.clone()


def gap(rival, models, ours):
    """The largest difference of parameters between PyTorch's models of all clients and ours."""
    largest = 0.0
    layers = model(hidden=(16,), dtype=jnp.float64)
    for i, of_pfllib in enumerate(models):
        own = by_layer(layers, *jax.tree.map(lambda leaf, i=i: leaf[i], ours))
        wanted = [a for layer in own.values() for a in (layer["kernel"].T, layer["bias"])]
        for p, w in zip(of_pfllib.parameters(), wanted, strict=True):
            largest = max(largest, np.abs(p.detach().numpy() - w).max())
    return largest


def test_fedfomo_of_pfllib(monkeypatch):
    """Its client, with our validation examples, when it downloads all models.

    Its own addition to the distance is taken off, and a client without a positive weight goes back to its last mixture.
    """
    others = len(COUNTS) - 1
    setting = setting_of(srp.algorithms.FedFomo, num_models=others, exploration=0.0)
    rival = Rival(setting)
    torch = rival.torch
    data_utils = ModuleType("utils.data_utils")
    data_utils.read_client_data = None
    monkeypatch.setitem(sys.modules, "utils.data_utils", data_utils)
    distance = lambda difference: torch.linalg.vector_norm(difference) - 1e-5
    monkeypatch.setattr(torch, "norm", distance)
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientfomo", "clientFomo", num_clients=len(COUNTS)
    )
    seeds = setting.states[-1].clients.seed
    parts = []
    for i, count in enumerate(COUNTS):
        key = named_key(jax.random.key(seeds[i]), "validation")
        order = random_order(key, jnp.int32(count), 1, max(COUNTS))
        order = np.array(order)[:count]
        parts.append(np.split(order, [round(0.8 * count)]))
        clients[i].old_model = copy.deepcopy(clients[i].model)
    found = []
    preferences = np.zeros((len(COUNTS), len(COUNTS)))
    returns = 0
    for t in range(ROUNDS):
        for i, client in enumerate(clients):
            fill(client.old_model, client.model)
            training = parts[i][0]
            optimizer = sgd_of(rival, client.model)
            for order in setting.orders.epochs(t, i, "local", EPOCHS):
                order = training[order[order < len(training)]]
                for rows in batches([order], BATCH):
                    x, y = rival.data[i]
                    optimizer.zero_grad()
                    rival.loss(client.model(x[rows]), y[rows]).backward()
                    optimizer.step()
        sent = [copy.deepcopy(client.model) for client in clients]
        for i, client in enumerate(clients):
            x, y = rival.data[i]
            rows = parts[i][1]
            client.receive_models(list(range(len(COUNTS))), sent)
            client.aggregate_parameters([(x[rows], y[rows])])
            preferences[i] += client.weight_vector.numpy()
            if client.weight_vector.max() <= 0:
                returns += 1
                fill(client.model, client.old_model)
        with torch.no_grad():
            found.append(mean_accuracy(rival, lambda i, x: clients[i].model(x)))
    print(f"FedFomo: {returns} of {ROUNDS * len(COUNTS)} times no weight was positive")
    compare("FedFomo", setting, rival, found, "own_model", None)
    ours = setting.states[-1].clients
    assert gap(rival, [client.model for client in clients], ours.params) < 1e-6
    np.fill_diagonal(preferences, 0)  # ours are of the others
    np.testing.assert_allclose(ours.preferences, preferences, rtol=0, atol=1e-6)


def test_apple_of_pfllib(monkeypatch, doubles):
    """Its client, with the step size of the cores as it is, and sums in the gradient of the relations.

    PFLlib sends the personal model in place of the core, takes the new core in the gradient of its own relation, and
    the schedule of the round before: here the client sends its core, and has the old one and the schedule of the round.
    """
    num_clients = len(COUNTS)
    setting = setting_of(
        srp.algorithms.APPLE,
        relation_step_size=0.01,
        penalty=2.0,
        penalty_rounds=10.0,
        penalty_schedule="cosine",
    )
    first = jax.tree.map(lambda cores: cores[0], setting.start.params)
    setting.params = by_layer(model(hidden=(16,), dtype=jnp.float64), *first)
    rival = Rival(setting)
    torch = rival.torch
    shares = [1 / num_clients] * num_clients
    fields = {
        "num_clients": num_clients,
        "drlr": 0.01,
        "mu": 2.0,
        "L": 10,
        "learning_rate": RATE,
        "p0": shares,
    }
    clients = clients_of_pfllib(
        rival, monkeypatch, "clientapple", "clientAPPLE", **fields
    )
    cores = [copy.deepcopy(client.model) for client in clients]
    num_parameters = len(list(rival.model.parameters()))
    turn = {}

    def sum_of(product):
        """The sum of a gradient times a core, as PFLlib divides the sum of four means by four."""
        client, place = turn["client"], turn["calls"] % (num_clients * num_parameters)
        turn["calls"] += 1
        total = product.sum()
        if place // num_parameters == client.id:
            gradient = list(client.model.parameters())[place % num_parameters].grad
            total = total + RATE * client.ps[client.id] * (gradient**2).sum()
        return total * num_parameters

    class Kept:
        """A client's core before the training; the trained one is taken when PFLlib puts this one back."""

        def __init__(self, client):
            self.client = client
            self.before = [p.data.clone() for p in cores[client.id].parameters()]

        def parameters(self):
            own = self.client.model_cs[self.client.id]
            self.trained = [p.data.clone() for p in own.parameters()]
            return self.before

    for i, client in enumerate(clients):
        client.id = i
        client.ps = list(shares)
    found = []
    for t in range(ROUNDS):
        sent = []
        for i, client in enumerate(clients):
            client.optimizer = sgd_of(rival, client.model)
            client.load_train_data = batches_of(rival, t, i)
            client.set_models(cores)
            client.model_c = kept = Kept(client)
            client.lamda = (1 + np.cos(np.pi * t / 10)) / 2 if t < 10 else 0.0
            turn.update(client=client, calls=0)
            with monkeypatch.context() as patched:
                patched.setattr(torch, "mean", sum_of)
                client.train(t)
            sent.append(kept.trained)
        for core, values in zip(cores, sent, strict=True):
            for p, value in zip(core.parameters(), values, strict=True):
                p.data = value
        for client in clients:
            client.aggregate_parameters()
        with torch.no_grad():
            found.append(mean_accuracy(rival, lambda i, x: clients[i].model(x)))
    compare("APPLE", setting, rival, found, "own_model", None)
    last = setting.states[-1]
    assert gap(rival, cores, last.server.params) < 1e-6
    relations = last.server.relations + last.clients.change
    np.testing.assert_allclose(
        relations, [client.ps for client in clients], rtol=0, atol=1e-6
    )
