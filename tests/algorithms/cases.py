"""Table of NumPy references: the options of each and of its algorithm, and the values that must agree."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from recorded_orders import stream
from reference import (
    afl,
    apfl,
    apple,
    ditto,
    fed_mtl,
    fedala,
    fedamp,
    fedas,
    fedavg,
    fedbabu,
    fedcac,
    fedcp,
    feddbe,
    feddwa,
    feddyn,
    fedfomo,
    fedgate,
    fednova,
    fedopt,
    fedpac,
    fedper,
    fedphp,
    fedproto,
    fedprox,
    fedrep,
    fedrod,
    fedsgd,
    gpfl,
    hf_maml,
    ifca,
    l2gd,
    local_only,
    memory,
    moon,
    pfedme,
    q_fedavg,
    scaffold,
)
from reference.local import Sgd, batches, combine, mean
from reference.small import KEY, NUM_CLASSES
from setting import (
    BATCH,
    COUNTS,
    EPOCHS,
    PLAIN,
    SPREAD,
    UNEQUAL,
    Rounds,
    Setting,
    optimizer,
)

from fedjax_srp import named_key
from fedjax_srp.algorithms.local import random_order


class Case(NamedTuple):
    """A run of the package and one of its reference, and the values that must agree after every round.

    `server`, `clients` and `rounds` map a value of the package's states and `RoundInfo` to one of the reference's
    states, each given by an attribute or a function. The reference keeps a list for the clients.
    """

    run: Callable[
        ..., Any
    ]  # (params, clients, cohorts, steps, sgd=, client_weighting=, **numbers) -> states
    options: Mapping[str, Any] = {}  # of the algorithm
    numbers: Mapping[str, Any] = {}  # of the reference
    drawn: Callable[[Setting], Mapping[str, Any]] = (
        lambda setting: {}
    )  # random numbers of the run
    server: Mapping[Any, Any] = {"params": "params"}
    clients: Mapping[Any, Any] = {}
    rounds: Mapping[Any, Any] = {}
    judged: Mapping[
        str, Any
    ] = {}  # evaluation -> (state, i, client, tuning, sgd) -> accuracy; None: not compared
    shapes: tuple[str, ...] = ("heavy", "plain")
    sgd: Sgd | None = None
    steps: int | None = None  # of a unit of work, instead of epochs
    schedule: Rounds = UNEQUAL
    counts: tuple[int, ...] = COUNTS
    layout: Mapping[str, Any] = {}
    cut: str = "out"
    rtol: float = 1e-9
    tuned: bool = False  # compare inherited evaluations by fine-tuning too
    tuner: Sgd | None = None  # the optimizer of fine-tuning, by default that of training


def itself(state):
    """Return the state: for references whose state is a model or a list of models."""
    return state


def get(tree, place):
    return place(tree) if callable(place) else operator.attrgetter(place)(tree)


def accuracy(place, layers=(), purpose="head"):
    """Return a judge: the accuracy of the model at `place` (client i's of a list) after training these layers."""

    def judge(state, i, client, tuning, sgd):
        models = get(state, place)
        params = models[i] if isinstance(models, list) else models
        return fedavg.fine_tuned_accuracy(
            params, layers, client, tuning(purpose) if layers else [], sgd
        )

    return judge


def adapted(alpha, inner_steps=1):
    """Return the comparisons of methods that judge one global model, and that model after full-batch steps."""

    def judge(params, i, client, *_):
        return hf_maml.adapted_accuracy(params, client, alpha, inner_steps)

    return {
        "server": {"params": itself},
        "judged": {"global": accuracy(itself), "one_inner_step": judge},
    }


def partly_own(part, purpose="head", tuner=None):
    """Return the judges of methods whose clients keep a part of the model."""

    def tuned(state, i, client, tuning, sgd):
        return fedrep.fine_tuned_accuracy(state, client, tuning(purpose), tuner or sgd)

    return {
        "fine_tune": tuned,
        f"own_{part}": lambda state, i, client, *_: fedrep.own_accuracy(state, i, client),
        f"own_or_mean_{part}": lambda state, i, client, *_: fedrep.own_or_mean_accuracy(
            state, i, client
        ),
    }


def classes_of(prototypes):
    """Return prototypes as rows, in the order of the classes that have one."""
    return np.array([prototypes[c] for c in sorted(prototypes)])


def known(server):
    return server.prototypes.features[server.prototypes.weight > 0]


def coins(setting):
    """A partial cohort aggregates after a local round, and then all clients: the others have not seen that mean."""
    found = [
        bool(server.aggregates)
        for server in (setting.start, *(s.server for s in setting.states[:-1]))
    ]
    assert found == [False, True, True]
    return {"coins": found}


def rows_of_weights(setting):
    """Return the batches that FedALA's weights are trained on: orders of a segment of the client's examples."""

    def of(t, i):
        count = COUNTS[i]
        num = max(round(0.6 * count), 1)
        key = jax.random.fold_in(
            named_key(stream(KEY, "training", jnp.int32(t)), "round"), i
        )
        first = int(
            jax.random.randint(
                named_key(key, "segment"), (), 0, jnp.int32(count - num + 1), jnp.int32
            )
        )

        def epochs(number):
            orders = setting.orders.epochs(t, i, "weights", number)
            return batches([first + order[order < num] for order in orders], BATCH)

        return epochs

    return {"rows_of_epochs": of}


def guidance_of(number):
    """Return batches of `number` epochs of the guidance model per unit of work."""
    return lambda setting: {
        "guidance_steps": setting.epochs(number=number, purpose="guidance")
    }


def draws_of_fomo(setting):
    """Return FedFomo's training and validation rows, and its draws for downloads."""
    seeds = setting.states[-1].clients.seed

    def parts(i):
        count = COUNTS[i]
        key = named_key(jax.random.key(seeds[i]), "validation")
        order = np.asarray(random_order(key, jnp.int32(count), 1, max(COUNTS)))[:count]
        number = round(0.6 * count)
        return order[:number], order[number:] if number < count else order

    def training(t, i):
        rows = parts(i)[0]
        epochs = EPOCHS * UNEQUAL.work_of(t, i)
        orders = setting.orders.epochs(t, i, "local", epochs)
        return batches([rows[order[order < len(rows)]] for order in orders], BATCH)

    def draws(t, i):
        key = jax.random.fold_in(jax.random.key(seeds[i]), t)
        lots = jax.random.uniform(named_key(key, "lots"), (len(COUNTS),))
        chances = jax.random.uniform(named_key(key, "explore"), (2,))
        return np.asarray(lots), np.asarray(chances) < 0.7 - 0.3 * t

    validation = lambda i: parts(i)[1]
    return {"training": training, "validation": validation, "draws": draws}


def start_of_dbe(setting):
    """Return the batches of the epoch before the first round."""

    def rows(i):
        orders = setting.orders.epochs(0, i, "local", 1, phase="means")
        return batches(orders, BATCH)

    return {"first_steps": rows}


def start_of_gpfl(setting):
    """Return the first valve and embeddings."""
    start = setting.start
    return {"others": start.valve | {"embeddings": {"kernel": start.embeddings}}}


def heads_of(number):
    """Return batches of `number` epochs of the head per unit of work."""
    return lambda setting: {"head_steps": setting.epochs(number=number, purpose="head")}


def one_epoch(setting, purpose):
    return lambda t, i: batches(setting.orders.epochs(t, i, purpose, 1), BATCH)


def heads_that_trained(clients):
    """Return the heads of clients that have taken part, and zeros for the others."""
    has_trained = clients.has_trained
    return jax.tree.map(
        lambda leaf: leaf * has_trained.reshape(-1, *[1] * (leaf.ndim - 1)), clients.head
    )


def reference_heads_that_trained(state):
    heads = []
    for i, head in enumerate(state.own):
        heads.append(head if i in state.trained else combine(np.zeros_like, head))
    return heads


GLOBAL, OWN, MODELS = (
    {"global": accuracy("params")},
    {"own_model": accuracy("own")},
    {"own_model": accuracy("models")},
)
ONE_MODEL = {"server": {"params": itself}, "judged": {"global": accuracy(itself)}}
ONLY_OWN = {"clients": {"params": itself}, "judged": {"own_model": accuracy(itself)}}
KEPT_HEAD = {
    "server": {"representation": "shared", "head": "mean_own"},
    "clients": {"head": "own"},
}
KEPT_BODY = {
    "server": {"head": "shared", "representation": "mean_own"},
    "clients": {"representation": "own"},
}
VARIATES = {
    "server": {"params": "params", "variate": "variate"},
    "clients": {"variate": "variates"},
    "judged": GLOBAL,
}
# Two stages: clients 1 and 3 go on in the second one, 0 comes back in its second round, 4 is new then.
STAGED = np.array([[1, 3, 0, 2, 4, 5, 6], [6, 1, 3, 5, 0, 2, 4], [3, 4, 6, 0, 1, 2, 5]])
TWO_STAGES = Rounds(STAGED, (3, 4, 5), 1 + (STAGED == 3) + 2 * (STAGED == 0), (0, 1, 1))
# Nobody has class 3 in the first two rounds, and nobody class 0 in the second.
FEW = np.array([[1, 0, 2, 3, 4, 5, 6], [5, 1, 0, 2, 3, 4, 6], [3, 2, 6, 0, 1, 4, 5]])
FEW_CLASSES = UNEQUAL._replace(ids=FEW, sizes=(2, 1, 7))
HEADS = Sgd(0.1, momentum=0.3)  # FedRep's heads have an optimizer of their own
TUNER = Sgd(0.4, momentum=0.2)
CASES = {
    # One global model.
    "fedavg": Case(
        fedavg.run, server={"params": itself}, tuned=True, tuner=TUNER,
        judged={"global": accuracy(itself), "fine_tune": accuracy(itself, ["out"]),
                "fine_tune_all": accuracy(itself, ["fc1", "fc2", "out"], "local")},
    ),
    "fedsgd": Case(fedsgd.run, **ONE_MODEL),
    "fedprox": Case(fedprox.run, {"mu": 0.7}, {"mu": 0.7}, **ONE_MODEL),
    **{
        f"fedopt-{rule}": Case(
            fedopt.run, {"rule": rule, "server_step_size": 0.3, "beta1": beta1, "beta2": 0.8, "adaptivity": 0.05},
            {"rule": rule, "eta": 0.3, "beta1": beta1, "beta2": 0.8, "tau": 0.05},
            server={"params": "params", "m": "m", "v": "v"}, judged=GLOBAL, shapes=("heavy",),
        )
        for rule, beta1 in {"yogi": 0.6, "momentum": 0.4, "adagrad": 0.0, "adam": 0.6}.items()
    },
    "scaffold": Case(
        scaffold.run, {"server_step_size": 0.8}, {"server_step": 0.8}, **VARIATES, shapes=("heavy",)
    ),
    "scaffold-momentum_as_in_the_code_of_fedrep": Case(
        scaffold.run, {"server_step_size": 0.8, "counts_momentum": False},
        {"server_step": 0.8, "counts_momentum": False}, **VARIATES, shapes=("plain",), sgd=Sgd(0.1, momentum=0.5),
    ),
    "fednova": Case(fednova.run, **ONE_MODEL, schedule=TWO_STAGES),
    "fedgate": Case(
        fedgate.run, {"server_step_size": 0.6}, {"gamma": 0.6, "stages": TWO_STAGES.stages}, judged=GLOBAL,
        clients={"tracking": "tracking"}, schedule=TWO_STAGES,
    ),
    "fedgate-by_stage": Case(
        fedgate.run, {"step_size_by_stage": (0.3, 0.08), "server_step_size_by_stage": (0.5, 0.9)},
        {"gamma": None, "stages": TWO_STAGES.stages, "step_sizes": (0.3, 0.08), "gammas": (0.5, 0.9)},
        judged=GLOBAL, clients={"tracking": "tracking"}, schedule=TWO_STAGES,
    ),
    "feddyn": Case(
        feddyn.run, {"penalty": 0.4}, {"alpha": 0.4}, server={"params": "params", "h": "h"},
        clients={"h": "of_clients"}, judged=GLOBAL,
    ),
    "mifa": Case(
        memory.mifa, server={"params": "params"}, clients={"update": "table"}, judged=GLOBAL,
    ),
    "fedvarp": Case(
        memory.fedvarp, {"server_step_size": 0.7}, {"server_step": 0.7}, server={"params": "params"},
        clients={"update": "table"}, judged=GLOBAL,
    ),
    "q_fedavg": Case(q_fedavg.run, {"q": 0.7}, {"q": 0.7}, **ONE_MODEL),
    "q_fedavg-2": Case(q_fedavg.run, {"q": 2.0}, {"q": 2.0}, **ONE_MODEL, shapes=("plain",)),
    "afl": Case(
        afl.run, {"weight_step_size": 0.1}, {"gamma": 0.1}, clients={"share": "shares"}, judged=GLOBAL, rtol=1e-8,
    ),
    "ifca": Case(
        ifca.run, {"num_clusters": 3}, {"num_clusters": 3},
        judged={"cluster": ifca.accuracy, "fine_tune": ifca.fine_tuned_accuracy},
    ),
    "fedbabu": Case(fedbabu.run, numbers={"own": ["out"]}, **ONE_MODEL, shapes=("heavy",)),
    "moon": Case(
        moon.run, {"mu": 0.8, "temperature": 0.3}, {"mu": 0.8, "tau": 0.3}, judged=GLOBAL, shapes=("heavy",),
        clients={"representation": lambda state: [{name: w[name] for name in ("fc1", "fc2")} for w in state.last]},
    ),
    "hf_maml-support_and_target": Case(
        hf_maml.run, {"inner_step_size": 0.1, "difference": 1e-2, "support_fraction": 0.4, "inner_steps": 2},
        {"alpha": 0.1, "delta": 1e-2, "support_fraction": 0.4}, **adapted(0.1, 2), shapes=("plain",), rtol=1e-6,
    ),
    "hf_maml-whole_batches": Case(
        hf_maml.run, {"inner_step_size": 0.3, "difference": 1e-3, "support_fraction": None},
        {"alpha": 0.3, "delta": 1e-3}, **adapted(0.3), shapes=("heavy",), rtol=1e-6,
    ),
    "per_fedavg": Case(
        hf_maml.run, {"inner_step_size": 0.3}, {"alpha": 0.3, "delta": 1e-3, "support_fraction": 0.8}, **adapted(0.3),
        shapes=("heavy",),
    ),
    # Personal layers.
    "fedper": Case(
        fedper.run, numbers={"own": ["out"]}, **KEPT_HEAD, judged=partly_own("head"), shapes=("heavy",), tuner=TUNER
    ),
    "lg_fedavg": Case(
        fedper.run, numbers={"own": ["fc1"]}, **KEPT_BODY, judged=partly_own("representation", "local"), cut="fc2",
        layout=SPREAD, shapes=("heavy",),
    ),
    "lg_fedavg-steps": Case(
        fedper.run, numbers={"own": ["fc1"]}, **KEPT_BODY, judged=partly_own("representation", "local"), cut="fc2",
        steps=5, shapes=("plain",),
    ),
    "fedrep": Case(
        fedrep.run, {"epochs": 2, "head_epochs": 3, "representation_epochs": 2, "head_optimizer": optimizer(HEADS)},
        {"own": ["out"], "head_sgd": HEADS, "alternations": 2}, heads_of(3), **KEPT_HEAD,
        judged=partly_own("head", tuner=HEADS), shapes=("heavy",), rtol=1e-6,
    ),
    "fedrep-as_in_the_code_of_srpfl": Case(
        fedrep.run,
        {
            "epochs": 2, "head_epochs": 3, "representation_epochs": 2, "head_optimizer": optimizer(HEADS),
            "keeps_optimizer": True, "newcomers_take_mean_head": True,
        },
        {"own": ["out"], "head_sgd": HEADS, "alternations": 2, "as_in_the_code_of_srpfl": True}, heads_of(3),
        server=KEPT_HEAD["server"], clients={heads_that_trained: reference_heads_that_trained},
        judged=partly_own("head", tuner=HEADS), shapes=("heavy",), rtol=1e-6,
    ),
    "fedrep-very_unequal_clients": Case(
        fedrep.run, {"epochs": 1, "head_epochs": 3, "representation_epochs": 2}, {"own": ["out"], "head_sgd": PLAIN},
        heads_of(3), **KEPT_HEAD, judged=partly_own("head"), shapes=("plain",), rtol=1e-6,
        counts=(1, 200, 3, 1, 1, 2, 3), layout={"devices": 4, "chunk_size": 1},
    ),
    "fedrod": Case(
        fedrod.run, numbers={"num_classes": NUM_CLASSES}, clients={"head": "heads"}, shapes=("heavy",),
        judged=GLOBAL | {"own_model": lambda state, i, client, *_: fedrod.own_accuracy(state, i, client)},
    ),
    "fedala": Case(
        fedala.run, {"weight_step_size": 0.7, "weight_share": 0.6, "start_epochs": 3}, {"eta": 0.7, "start_epochs": 3},
        rows_of_weights, clients={"head": "heads", "weights": "weights", "is_learnt": "learnt"},
        judged=GLOBAL | {"aggregated": None},
    ),
    "fedpac": Case(
        fedpac.run, {"penalty": 0.7}, {"penalty": 0.7, "num_classes": NUM_CLASSES}, heads_of(1),
        server={"params": "params", known: lambda state: classes_of(state.centroids)}, clients={"head": "heads"},
        judged=GLOBAL | {"own_head": accuracy(lambda state: [state.params | {"out": head} for head in state.heads])},
        rtol=1e-6,
    ),
    # Personal models.
    "local_only": Case(
        local_only.run, server={"square_norm": "square_norm"}, clients={"params": "models"},
        judged=MODELS | {"fine_tune": accuracy("models", ["out"])}, layout=SPREAD, shapes=("heavy",), tuned=True,
        tuner=TUNER,
    ),
    "fed_mtl": Case(
        fed_mtl.run, {"relation_strength": 0.6, "norm_strength": 0.1}, {"relation": 0.6, "norm": 0.1}, **ONLY_OWN,
        server={"params": lambda models: mean(models, [1.0] * len(models))}, layout=SPREAD, shapes=("heavy",),

    ),
    "feddwa": Case(
        feddwa.run, {"num_neighbours": 2, "guidance_epochs": 2, "weighting": "num_examples"}, {"num_neighbours": 2},
        guidance_of(2), server={}, clients={"params": "models", "guidance": "guidance"},
        judged=MODELS | {"fine_tune": accuracy("models", ["out"])}, tuned=True, tuner=TUNER,
    ),
    "fedcac": Case(
        fedcac.run, {"critical_share": 0.4, "collaboration_rounds": 4.0}, {"share": 0.4, "beta": 4.0},
        clients={"own": "own", lambda state: jax.tree.map(np.float64, state.critical): "critical"},
        judged=GLOBAL | {"own_model": accuracy("starts")},
    ),
    "fedcac-more_rounds_than_beta": Case(
        fedcac.run, {"critical_share": 0.6, "collaboration_rounds": 1.5}, {"share": 0.6, "beta": 1.5},
        clients={"own": "own"}, judged=GLOBAL | {"own_model": accuracy("starts")}, shapes=("plain",),
    ),
    "fedcp": Case(
        fedcp.run, {"alignment_penalty": 2.0}, {"penalty": 2.0}, lambda setting: {"policy": setting.start.policy},
        server={"params": "params", "policy": "policy"}, clients={"head": "heads"},
        judged={"own_model": fedcp.own_accuracy, "fine_tune": None},
    ),
    "gpfl": Case(
        gpfl.run, {"guidance_penalty": 0.3, "guidance_decay": 0.2}, {"penalty": 0.3, "decay": 0.2}, start_of_gpfl,
        server={"params": "params", "valve": "valve", "embeddings": "embeddings"}, clients={"head": "heads"},
        judged={"own_model": gpfl.own_accuracy, "fine_tune": None},
    ),
    "fedfomo": Case(
        fedfomo.run,
        {"num_models": 2, "validation_share": 0.4, "exploration": 0.7, "exploration_decay": 0.3},
        {}, draws_of_fomo, clients={"params": "models", "preferences": "preferences"},
        rounds={lambda info: info.metrics["models_used"]: "used"},
        judged=MODELS | {"fine_tune": accuracy("models", ["out"])}, tuned=True, tuner=TUNER,
    ),
    **{
        f"apple-{name}": Case(
            apple.run,
            {"relation_step_size": 0.02, "penalty": 5.0, "penalty_rounds": 2.0, "penalty_schedule": name},
            {"eta": 0.02, "mu": 5.0, "rounds": 2.0, "name": name},
            server={"params": "cores", "relations": "p_0"}, clients={"change": "changes"},
            rounds={lambda info: info.metrics["own_relation"]: "own_relation"}, shapes=(shape,),
            judged={"own_model": accuracy("mixtures"), "fine_tune": accuracy("mixtures", ["out"])},
        )
        for name, shape in (("exponential", "heavy"), ("cosine", "plain"))
    },
    "fedphp": Case(
        fedphp.run, {"teaching": 0.4, "inheritance": 0.8, "inheritance_rounds": 2},
        {"teaching": 0.4, "inheritance": 0.8, "inheritance_rounds": 2}, clients={"own": "own"},
        judged=GLOBAL | OWN,
    ),
    "fedphp-1": Case(
        fedphp.run, {"inheritance_rounds": 1}, {"teaching": 0.1, "inheritance": 0.9, "inheritance_rounds": 1},
        clients={"own": "own"}, judged=GLOBAL | OWN, shapes=("plain",),
    ),
    "feddbe": Case(
        feddbe.run, {"mean_penalty": 3.0}, {"kappa": 3.0}, start_of_dbe, server={"params": "params", "mean": "mean"},
        clients={"bias": "own"}, judged=GLOBAL | {"own_model": feddbe.own_accuracy},
    ),
    "fedamp": Case(
        fedamp.run, {"weighting": "num_examples", "penalty": 0.6, "attention_step_size": 0.5, "attention_width": 3.0},
        {"penalty": 0.6, "alpha": 0.5, "sigma": 3.0}, server={}, **ONLY_OWN,
    ),
    "fedas": Case(
        fedas.run, {"weighting": "num_examples", "alignment_step_size": 0.3}, {"align": 0.3},
        clients={"params": "models"}, judged=MODELS,
        drawn=lambda setting: {f"{name}_steps": one_epoch(setting, name) for name in ("align", "fisher")},

    ),
    "fedproto": Case(
        fedproto.run, {"penalty": 0.7}, {"penalty": 0.7}, clients={"params": "models"},
        server={known: lambda state: classes_of(state.prototypes)}, schedule=FEW_CLASSES,
        judged=MODELS | {"nearest_prototype": lambda state, i, c, *_: fedproto.nearest_accuracy(state, i, c)},
    ),
    "ditto": Case(
        ditto.run, {"penalty": 0.7}, {"penalty": 0.7}, clients={"own": "own"}, judged=GLOBAL | OWN, shapes=("heavy",)
    ),
    **{
        f"apfl-{name}": Case(
            apfl.run, {"own_share": 0.3, "adaptive": adaptive}, {"alpha": 0.3, "adaptive": adaptive},
            clients={"own": "own", "alpha": "alpha"}, rounds={lambda info: info.metrics["own_share"]: "mean_alpha"},
            judged=GLOBAL | {"own_model": accuracy("mixtures")}, shapes=(shape,),
        )
        for name, adaptive, shape in (("adaptive", True, "heavy"), ("fixed", False, "plain"))
    },
    **{
        f"pfedme-{penalty}": Case(
            pfedme.run, {"penalty": penalty, "inner_steps": 3, "inner_step_size": 0.1, "server_step_size": 0.8},
            {"penalty": penalty, "inner_steps": 3, "inner_step": 0.1, "beta": 0.8}, clients={"own": "own"},
            judged=GLOBAL | OWN, shapes=("heavy",), sgd=Sgd(0.15, momentum=0.5),
        )
        for penalty in (2.0, 0.0)
    },
    "l2gd": Case(
        l2gd.run, {"aggregation_step_size": 0.4, "aggregation_probability": 0.5}, {"theta": 0.4}, coins,
        server={"params": "x_bar"}, clients={"own": "own"}, rounds={"communicated": "aggregated"},
        judged={"global": accuracy("x_bar")} | OWN, shapes=("heavy",), layout={"key": jax.random.key(2)},
    ),
}  # fmt: skip
