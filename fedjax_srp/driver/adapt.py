"""`adapt`: scores of new clients that train from a server state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_srp.algorithms.examples import ExampleAlgorithm
from fedjax_srp.algorithms.local import example_loss, head_problem, local_sgd
from fedjax_srp.algorithms.optimizers import Given, as_optimizer
from fedjax_srp.algorithms.training import LocalTraining, Training
from fedjax_srp.base import (
    Array,
    ClientOutput,
    Examples,
    FederatedAlgorithm,
    FederatedSource,
    Key,
    Method,
    PyTree,
    ServerState,
    named_key,
)
from fedjax_srp.driver.given import check_kept, fitted, root_key
from fedjax_srp.driver.outcome import ratio, smaller_is_better
from fedjax_srp.driver.prepare import Request, prepare
from fedjax_srp.driver.settings import Settings, takes_settings
from fedjax_srp.linear import LinearClient, samplers
from fedjax_srp.linear.sampling import least_squares
from fedjax_srp.linear.task import LinearTask
from fedjax_srp.models.split import SplitModel, SplitParams
from fedjax_srp.parts.checks import as_annotated, checked, short
from fedjax_srp.parts.part import Count, part
from fedjax_srp.results.measures import worst_tenth
from fedjax_srp.rounds.adaptation import AdaptationPlan, ClientAdaptation, Epoch
from fedjax_srp.rounds.sharding import place

ALL = np.iinfo(np.int32).max  # number of samples that no client exceeds


class Adaptation(NamedTuple):
    """Scores of clients during adaptation: S numbers of samples, E epochs, M clients.

    Attributes:
        num_samples: (S,) maximal number of training examples of a client; -1 for all.
        epochs: (E + 1,) completed epochs at each score, from 0.
        scores: (S, E + 1, M) of each client on its test data: accuracies, or errors for linear tasks; nan for a client
            without test data.
        mean: (S, E + 1) over clients, weighted by test points.
        worst_tenth: (S, E + 1) plain mean over the worst tenth of the clients with test data (rounded down, at least
            one), other clients in every entry; the largest errors for linear tasks.
    """

    num_samples: np.ndarray
    epochs: np.ndarray
    scores: np.ndarray
    mean: np.ndarray
    worst_tenth: np.ndarray


@checked
@takes_settings("chunk_size", "devices", "shard_data")
def adapt(
    model: SplitModel | LinearTask | FederatedAlgorithm | Method,
    data: FederatedSource,
    server_state: ServerState,
    *,
    key: Key | None = None,
    seed: int | None = None,
    part: Literal["head", "all"] = "head",
    epochs: Count = 10,
    num_samples: Sequence[int] | None = None,
    optimizer: Given | None = None,
    batch_size: int | None = None,
    **settings: Any,
) -> Adaptation:
    """Train new clients from a server state, and score each before the first epoch and after every epoch.

    Every client starts from the model in the server state, trains its head with the representation frozen (or all
    layers) on its own training data, and is scored on its test data after each epoch (FedRep, figure 6). One compiled
    program serves all clients, epochs and numbers of samples. After E epochs the scores equal those of
    `srp.evaluate(..., evaluations="fine_tune")` with `fine_tune_epochs=E`, the same optimizer and the same key, for a
    method whose `fine_tune` trains the head (LG-FedAvg's trains the local layers); `part="all"` corresponds to
    `fine_tune_all`.

    On a linear task `part`, `epochs`, `optimizer` and `batch_size` do not apply: the head is the least-squares solution
    on samples of the client, of smallest norm if it is not unique (FedRep, figure 4).

    Args:
        model: the method that trained the server state, or its algorithm, if it is one of the package or of its base
            classes; or a model, cut at its head, such as `algorithm.model` of your own algorithm; on linear tasks a
            `LinearTask` of the state's shapes.
        data: of the clients that adapt.
        server_state: `history.server_state` of any algorithm whose server has a whole model; or `SplitParams`, for your
            own head. On linear tasks the state of `linear_fedrep`.
        key: of samples and batches; the same key draws the same for every method.
        seed: instead of a key: that of `jax.random.key(seed)`.
        part: "head", or "all" layers.
        epochs: E, over a client's shuffled samples.
        num_samples: S numbers of training examples, drawn at random from the client's own, all where it has fewer;
            smaller samples are subsets of larger ones; None for all. Required on linear tasks.
        optimizer: keeps its state between epochs; default that of the method's `fine_tune`: its `fine_tune_optimizer`,
            else FedRep's `head_optimizer`, else that of training; for a model alone, SGD with step size 0.01.
        batch_size: samples per step; default that of the method's training, 10 for a model alone. The last batch of an
            epoch may be smaller.
        **settings: fields of `Settings`, by keyword.

    Returns:
        An `Adaptation` of NumPy arrays.

    Raises:
        ValueError: an argument out of range or without effect on a linear task, a missing server state or one without a
            model, or a state with names, shapes or types that are not those of the model.

    Example:
        >>> import jax, fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=4)
        >>> method = srp.methods.get("fedrep", dataset=data, hidden=(32,))
        >>> history = srp.simulate(method, data, num_rounds=2, key=jax.random.key(0), progress=False)
        >>> new = srp.data.load("digits", num_clients=10, classes_per_client=5, seed=1)
        >>> options = {"epochs": 3, "num_samples": [5, 20]}
        >>> srp.adapt(method, new, history.server_state, key=jax.random.key(1), **options).scores.shape
        (2, 4, 10)
    """
    check_kept(server_state)
    key = root_key(key, seed)
    counts = as_annotated("num_samples", num_samples, tuple[Count, ...] | None)
    if counts is not None and not counts:
        raise ValueError(
            "num_samples is empty; give at least one number, or None for all examples"
        )
    if isinstance(model, LinearTask):
        _check_unused(
            part=part, epochs=epochs, optimizer=optimizer, batch_size=batch_size
        )
        plan, state, expected = _linear(model, server_state, counts)
    else:
        tuning, model = _fine_tuning(model)
        model.check_fits(data)
        if optimizer is None:
            optimizer = tuning.optimizer
        if batch_size is None:
            batch_size = tuning.batch_size
        training = Training(as_optimizer("optimizer", optimizer), batch_size)
        plan = Fit(model, training, part, epochs)
        state = params_of(server_state)
        expected = jax.eval_shape(model.init, jax.random.key(0))
    chosen = Settings(evaluations=(), **settings)
    run = prepare(Request(_Placeholder(), data, settings=chosen))
    placed = place(run.layout, fitted("server_state", state, expected))
    root, on_devices = run.placed(key)
    limits = place(run.layout, jnp.asarray(counts or (ALL,), jnp.int32))
    sums = run.program().epoch_scores(plan, placed, limits, root, on_devices)
    total, count = jax.device_get(sums)
    total = np.asarray(total, np.float64)[:, : run.layout.num_clients]
    count = np.asarray(count, np.float64)[:, : run.layout.num_clients]
    scores = np.swapaxes(ratio(total, count[..., None]), 1, 2)
    worst = [
        worst_tenth(of_samples, tests, smaller_is_better(data))
        for of_samples, tests in zip(scores, count, strict=True)
    ]
    return Adaptation(
        num_samples=np.asarray(counts or (-1,)),
        epochs=np.arange(plan.num_epochs + 1),
        scores=scores,
        mean=ratio(total.sum(1), count.sum(1)[:, None]),
        worst_tenth=np.stack(worst),
    )


def _fine_tuning(
    given: SplitModel | FederatedAlgorithm | Method,
) -> tuple[LocalTraining, SplitModel]:
    """Training of the method's `fine_tune`, and its model."""
    given = given.algorithm if isinstance(given, Method) else given
    if isinstance(given, ExampleAlgorithm):
        return given.tuning, given.model
    if isinstance(given, FederatedAlgorithm) and isinstance(
        getattr(given, "model", None), SplitModel
    ):
        raise ValueError(
            f"model={short(given)}: adapt cannot tell how this algorithm fine-tunes; give algorithm.model, with "
            "optimizer and batch_size"
        )
    return Training().alone(), as_annotated("model", given, SplitModel)


def params_of(server_state: ServerState) -> SplitParams:
    """The whole model in a server's state, from its fields `params`, or `representation` and `head`."""
    fields = _fields(server_state)
    if "params" in fields:
        parts = _fields(fields["params"])
        if parts.keys() & {"representation", "head"}:
            # a saved state has lost a part that is empty, such as the representation of a model of one layer
            parts = {"representation": {}, "head": {}, **parts}
        return params_of(parts)
    if not {"representation", "head"} <= fields.keys():
        raise ValueError(
            f"server_state={short(server_state)} has neither params nor representation and head; give "
            "history.server_state, or srp.models.SplitParams(representation, head)"
        )
    return SplitParams(fields["representation"], fields["head"])


def _fields(server_state: ServerState) -> Mapping[str, Any]:
    """Fields of a server's state, also of one that was loaded from a folder."""
    return (
        server_state
        if isinstance(server_state, Mapping)
        else getattr(server_state, "_asdict", dict)()
    )


@part
class _Placeholder(FederatedAlgorithm):
    """A placeholder with which the engine prepares data and devices; it never runs."""

    def init(self, key: Key, data: Any) -> Any:
        return ()

    def client(
        self, key: Key, broadcast: Any, state: Any, data: Any, context: Any
    ) -> ClientOutput:
        return ClientOutput(())

    def server(self, key: Key, server: Any, mean: Any, context: Any) -> Any:
        return server


def _check_unused(**given: Any) -> None:
    defaults = inspect.signature(adapt).parameters
    for name, value in given.items():
        if value != defaults[name].default:
            raise ValueError(
                f"{name}={short(value)}: no effect on a linear task, as heads are fitted in closed form; leave it out"
            )


def some(key: Key, examples: Examples, count: Array) -> Examples:
    """At most `count` random examples of a client, in their order; smaller samples are subsets of larger ones."""
    rows = jnp.arange(examples.y.shape[0], dtype=jnp.int32)
    drawn = jnp.where(rows < examples.count, jax.random.uniform(key, rows.shape), jnp.inf)
    number = jnp.argsort(
        drawn, stable=True
    )  # a random permutation of the client's rows; padding stays last
    order = jnp.argsort(number >= count, stable=True)  # taken rows first
    return Examples(
        examples.x[order], examples.y[order], jnp.minimum(examples.count, count)
    )


@part
class Fit:
    """Training of a head, or of all layers, epoch by epoch, with the batches of `fine_tune` and `fine_tune_all`."""

    model: SplitModel
    training: Training
    trains: str  # "head" or "all"
    num_epochs: int

    @property
    def together(self) -> bool:
        """True for heads: they share a representation, so those of all epochs are kept and scored together."""
        return self.trains == "head"

    def begin(
        self, key: Key, server: SplitParams, examples: Examples, count: Array
    ) -> ClientAdaptation:
        """The adaptation of one client."""
        examples, model = some(named_key(key, "samples"), examples, count), self.model
        if self.trains == "head":
            start, key_part = server.head, named_key(key, "head")
            loss, frozen, seen = head_problem(model, server.representation, examples)
        else:
            start, key_part = server, named_key(key, "local")
            loss, frozen, seen = example_loss(model), (), examples
        now = self.training.alone(epochs=1)

        def epoch(before: Epoch, e: Array) -> Epoch:
            params, memory = before
            trained = local_sgd(
                key_part, loss, params, frozen, seen, now, e, optimizer_state=memory
            )
            return Epoch(trained.params, trained.optimizer)

        def predict(params: PyTree, x: Array) -> Array:
            if self.trains == "head":
                return model.classify(params, model.represent(server.representation, x))
            return model.logits(params, x)

        return ClientAdaptation(Epoch(start, now.optimizer.init(start)), epoch, predict)


def _linear(
    task: LinearTask, server_state: ServerState, counts: tuple[int, ...] | None
) -> tuple[AdaptationPlan, Any, Any]:
    """The plan for a linear task, the representation, and its shape."""
    if counts is None:
        raise ValueError(
            "num_samples=None: clients of a linear task draw their samples; give numbers, e.g. (5, 10)"
        )
    fields = _fields(server_state)
    if "representation" not in fields:
        raise ValueError(
            f"server_state={short(server_state)} has no representation; give that of linear_fedrep"
        )
    shape = jax.ShapeDtypeStruct((task.dim, task.rank), task.representation.dtype)
    return (
        LeastSquares(max(counts)),
        {"representation": fields["representation"]},
        {"representation": shape},
    )


@part
class LeastSquares:
    """A head fitted in closed form to the first `count` of `most` samples of a client."""

    most: int
    num_epochs: int = 0
    together: bool = True

    def begin(
        self, key: Key, server: Mapping[str, Array], client: LinearClient, count: Array
    ) -> ClientAdaptation:
        """The fit for one client, without epochs."""
        b = server["representation"]
        batch = samplers.full(self.most).draw(key, b, (), client)
        taken = (jnp.arange(self.most, dtype=jnp.int32) < count).astype(
            batch.y.dtype
        )  # the others are rows of zeros
        w = least_squares(batch.features * taken[:, None], batch.y * taken)
        return ClientAdaptation(
            Epoch(w, ()), lambda carry, e: carry, lambda w, x: x @ (b @ w)
        )
