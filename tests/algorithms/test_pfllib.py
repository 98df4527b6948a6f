"""FedALA and FedProto against PFLlib's own code: 20 rounds on the same batches.

Skipped without PyTorch and a copy of PFLlib: PFLLIB=path/to/PFLlib/system python -m pytest -m long -s <this file>.
"""

import copy
import importlib.util
import os
import random
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType

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
        return self.torch.tensor(np.array(array))

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
