"""Checks of the contract of `base.py`: of parts, from shapes, before a run; of cohorts and times after each segment.

Checks before a run only trace: the floats of a part are abstract, as in a program. A TypeError or AttributeError of an
author's function (a Python `if` on a float, a missing argument, a text in a state) becomes a ValueError that names part
and function in one line; other errors are not caught.
"""

from __future__ import annotations

import dataclasses
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_srp.base import (
    CLIENT_GRADIENT_NORM,
    GRADIENT_NORM,
    NUM_EXAMPLES,
    TRAINING_LOSS,
    WASTED_TIME,
    Array,
    Charges,
    ClientData,
    ClientFunction,
    ClientOutput,
    ClientTimes,
    Clock,
    Cohort,
    Examples,
    FederatedAlgorithm,
    FederatedSource,
    Jobs,
    ParticipationPolicy,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
    TrainingLoss,
)
from fedjax_srp.contract.faults import CohortFault
from fedjax_srp.contract.peak_memory import bytes_of, peak_bytes
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.columns import check_metric_names
from fedjax_srp.parts.part import remedy_of

# Name of the pass for policies that need the norm of the mean gradient.
GRADIENT = "gradient"
LIKE_INIT = "it must be like what init makes"
MAX_SHOWN = 160  # characters of a structure, or of an error of JAX, in a message
PACKAGE = str(Path(__file__).parents[1])
LIBRARIES = tuple(map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


class Shapes(NamedTuple):
    """Shapes of an algorithm's states, data and messages."""

    server: PyTree
    state: PyTree  # of a client
    train: PyTree  # a client's data
    test: PyTree
    # messages of the phases of a round, and of the criterion's gradient if it is needed
    up: tuple[PyTree, ...]
    down: tuple[PyTree, ...]  # downloads of the phases of a round
    metrics: dict[str, Any]  # of a round: those of the algorithm and the means of `info`
    training_bytes: int  # that a client's training needs besides its data and its state
    evaluation_bytes: int  # the same of an evaluation
    shown: PyTree  # the parts of a client's state that the server knows, for exchanges
    shared_bytes: int  # of the arrays in `train` that are the same for every client
    charges: Charges
    start_up: tuple[PyTree, ...]  # messages of the charged passes of the start
    start_down: tuple[PyTree, ...]  # their downloads


class Traced(NamedTuple):
    """The trace of a function of a part."""

    shapes: Any  # of its result, without weak types
    program: ClosedJaxpr


def _shape(dtype: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _float(*shape: int) -> Any:
    return _shape(jnp.result_type(float), *shape)


FLAG = _shape(jnp.bool_)
INTEGER = _shape(jnp.int32)


def abstract_key() -> Any:
    """The shape of a key; its type follows from the user's choice of generator."""
    return jax.eval_shape(lambda: jax.random.key(0))


def _traced(where: str, function: Callable[..., Any], *args: Any) -> Traced:
    """Trace a function of a part."""
    try:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, ValueError) and _is_refusal(error):
            raise
        raise ValueError(f"{where}: {_summarize(error)}") from error
    shapes = jax.tree.map(lambda leaf: _shape(leaf.dtype, *leaf.shape), shapes)
    return Traced(shapes, program)


def _result(name: str, part: Any, method: str, *args: Any) -> Any:
    """The shapes that a method of a part returns."""
    call = lambda part, *args: getattr(part, method)(*args)
    return _traced(f"{name}: {method}", call, part, *args).shapes


def _is_refusal(error: ValueError) -> bool:
    """Return True if a `raise` of this package, or of an author's code, made the error: its words suffice."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_package = last.filename.startswith((PACKAGE, "<"))
    is_library = last.filename.startswith(LIBRARIES)
    return (is_package or not is_library) and "raise " in (last.line or "raise ")


def _summarize(error: Exception) -> str:
    """The first line of a tracing error, with file and line of the author's code that caused it, and a remedy."""
    # "function client at own.py:2 traced for jit returned a value of type <class 'str'> at output component [1], ..."
    text = str(error).partition("\n")[0].rpartition(" traced for jit ")[2][:MAX_SHOWN]
    of_others = (*LIBRARIES, "<", __file__)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(of_others):
            text += f" ({Path(frame.filename).name}, line {frame.lineno})"
            break
    return text + remedy_of(error)


def shapes_of(tree: PyTree) -> str:
    """Describe a structure briefly, by types and shapes."""
    text = str(jax.tree.map(_describe, tree)).replace("'", "")
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[: MAX_SHOWN - 3]}..."


def _describe(leaf: Any) -> str:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return f"{dtype}{list(jnp.shape(leaf))}"


def check_like(what: str, returned: PyTree, expected: PyTree, demand: str) -> None:
    """Raise "{what} {shapes}, {demand}: {shapes}" if structure, shapes or types are not as expected."""
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(returned, expected)
    except AssertionError:
        hint = _difference(returned, expected)
        raise ValueError(
            f"{what} {shapes_of(returned)}, {demand}: {shapes_of(expected)}{hint}"
        ) from None


def _difference(returned: PyTree, expected: PyTree) -> str:
    """A hint at the first leaf that differs, else at the classes of the containers."""
    new = _leaves_by_path(returned)
    old = _leaves_by_path(expected)
    for path in old | new:
        if new.get(path) != old.get(path):
            return f" (they differ in {path})" if path else ""
    return "; the containers are of other classes: define a class at the top of the file, not in a function"


def _leaves_by_path(tree: PyTree) -> dict[str, str]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path): _describe(leaf) for path, leaf in leaves}


def _require(holds: bool, what: str, returned: Any, demand: str) -> None:
    if not holds:
        raise ValueError(f"{what} {shapes_of(returned)}, it must {demand}")


def _is_number(leaf: Any) -> bool:
    """True for numbers and flags, False for keys."""
    return jnp.issubdtype(leaf.dtype, jnp.number) or jnp.issubdtype(leaf.dtype, jnp.bool_)


def _check_scalars(what: str, scalars: Any) -> None:
    _require(isinstance(scalars, Mapping), what, scalars, "be a dict of scalars")
    for name, value in scalars.items():
        is_scalar = getattr(value, "shape", None) == () and _is_number(value)
        is_real = is_scalar and not jnp.issubdtype(value.dtype, jnp.complexfloating)
        _require(is_real, f"{what} {name!r} =", value, "be a real scalar")


def check_output(where: str, output: Any, state: PyTree) -> None:
    """Raise a ValueError for an output that the engine cannot average or keep."""
    what = f"{where} returned"
    is_output = isinstance(output, ClientOutput)
    _require(is_output, what, output, "return srp.ClientOutput(message, state, ...)")
    if output.state is not None:
        demand = "it must be like what init_client makes"
        check_like(f"{what} the state", output.state, state, demand)
    if output.loss is not None:
        loss = TrainingLoss(_float(), INTEGER)
        check_like(f"{what} the loss", output.loss, loss, "it must be that of local_sgd")
    numbers = jax.tree.leaves((output.message, output.weight))
    if not _is_weight(output.weight, output.message) or not all(map(_is_number, numbers)):
        raise ValueError(
            f"{what} the message {shapes_of(output.message)} with the weight {shapes_of(output.weight)}: "
            "give numbers, with one scalar as weight or one for each part, or a vector with a weight for each group"
        )
    _check_scalars(f"{what} info:", output.info)


def server_update(phase: str, weight: PyTree) -> str:
    """Name the server's update of a phase, and a weight by which it gets means by group."""
    where = f"{phase}.server"
    if any(leaf.ndim for leaf in jax.tree.leaves(weight)):
        groups = f"a mean for each group, by the weight {shapes_of(weight)}"
        where += f" (which gets {groups}; give a scalar for one mean)"
    return where


def _is_weight(weight: PyTree, message: PyTree) -> bool:
    """True for a pytree prefix of scalars, or of vectors with an entry for each group."""
    try:
        jax.tree.structure(weight).flatten_up_to(message)
    except ValueError:
        return False
    return all(leaf.ndim <= 1 for leaf in jax.tree.leaves(weight))


def _averaged(weight: PyTree, tree: PyTree) -> PyTree:
    """Shapes of the mean over a cohort; integers and flags are averaged as floats."""

    def mean_of(weight: Any, part: PyTree) -> PyTree:
        def mean(leaf: Any) -> Any:
            shape = (*weight.shape, *leaf.shape)
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                return jax.ShapeDtypeStruct(shape, leaf.dtype)
            return _float(*shape)

        return jax.tree.map(mean, part)

    return jax.tree.map(mean_of, weight, tree)


@dataclasses.dataclass
class AlgorithmTracer:
    """Traces the functions of an algorithm that a run will call.

    Attributes:
        training_bytes: that client functions need besides data and state, of those traced so far.
        shown: the parts of a client's state that the server knows, of the phases traced so far.
    """

    algorithm: FederatedAlgorithm
    data: FederatedSource
    record_loss: bool
    server: PyTree
    state: PyTree  # of a client
    train: PyTree
    key: Any = dataclasses.field(default_factory=abstract_key)
    training_bytes: int = 0
    shown: list[PyTree] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The algorithm in messages."""
        return f"algorithm {self.algorithm.name!r}"

    def in_round(
        self,
        where: str,
        function: Callable[[Any], Any],
        *args: Any,
        client_id: Any = None,
    ) -> Traced:
        """Trace a function of the algorithm with a context as the last argument, of a client if it has an id."""

        def with_context(algorithm: Any, integers: tuple[Any, ...], *args: Any) -> Any:
            index, stage, size, work, client_id = integers
            context = RoundContext(
                index,
                stage,
                size,
                self.data.num_clients,
                work,
                self.record_loss,
                client_id=client_id,
            )
            return function(algorithm)(*args, context)

        integers = (*(INTEGER,) * 4, client_id)
        where = f"{self.name}: {where}"
        return _traced(where, with_context, self.algorithm, integers, *args)

    def client_trace(
        self, where: str, function: Callable[[Any], ClientFunction], broadcast: PyTree
    ) -> Traced:
        """Trace a client function."""
        args = (self.key, broadcast, self.state, self.train)
        return self.in_round(where, function, *args, client_id=INTEGER)

    def client(
        self, where: str, function: Callable[[Any], ClientFunction], broadcast: PyTree
    ) -> ClientOutput:
        """Trace a client function and check its output."""
        output, program = self.client_trace(where, function, broadcast)
        self.training_bytes = max(self.training_bytes, peak_bytes(program))
        check_output(f"{self.name}: {where}", output, self.state)
        return output

    def phase(self, phase_of: Callable[[Any], Phase]) -> tuple[ClientOutput, PyTree]:
        """Trace a phase: its output and its download."""
        phase = phase_of(self.algorithm)
        server = self.server
        broadcast = lambda algorithm: phase_of(algorithm).broadcast
        download = self.in_round(f"{phase.name}.broadcast", broadcast, server).shapes
        if phase.exchange is not None:
            mixed = lambda algorithm: phase_of(algorithm).download
            where = f"{phase.name}.exchange"
            args = (server, self.state)
            download = self.in_round(where, mixed, *args, client_id=INTEGER).shapes
            self.shown.append(jax.eval_shape(phase.exchange.shown, self.state))
        where = f"{phase.name}.client"
        output = self.client(
            where, lambda algorithm: phase_of(algorithm).client, download
        )
        where = server_update(phase.name, output.weight)
        mean = _averaged(output.weight, output.message)
        update = lambda algorithm: phase_of(algorithm).server
        updated = self.in_round(where, update, self.key, server, mean).shapes
        check_like(f"{self.name}: {where} returned", updated, server, LIKE_INIT)
        return output, download

    def evaluation(self, evaluation: str, test: PyTree) -> int:
        """Trace an evaluation: bytes that it needs besides data and state of a client."""
        where = f"{self.name}: evaluation {evaluation!r}"

        def judge(algorithm: Any, data: Any, test: ClientData, *args: Any) -> Any:
            predict = algorithm.evaluations[evaluation](*args)
            return score(where, data, predict, test)

        args = (self.data, test, self.key, self.server, self.state, self.train)
        return peak_bytes(_traced(where, judge, self.algorithm, *args).program)


def check_algorithm(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    evaluations: Sequence[str] = (),
    policy: ParticipationPolicy | None = None,
    record_loss: bool = False,
) -> Shapes:
    """Trace every function of an algorithm that a run will call, and check the policy's needs."""
    name = f"algorithm {algorithm.name!r}"
    train, shared_bytes = _client_data("train_client", data)
    test, _ = _client_data("test_client", data)
    key = abstract_key()
    server = _result(name, algorithm, "init", key, data)
    state = _result(name, algorithm, "init_client", key, server, train)
    tracer = AlgorithmTracer(algorithm, data, record_loss, server, state, train, key)
    _check_phases(name, algorithm)
    traces = [
        tracer.phase(lambda a, i=i: a.phases[i]) for i in range(len(algorithm.phases))
    ]
    outputs, downloads = zip(*traces, strict=True)
    if record_loss and outputs[0].loss is None:
        raise ValueError(
            f"record_loss: {name} reports no loss of its local training; return ClientOutput(..., "
            "loss=trained.loss) with what local_sgd returned, or leave out record_loss or the policy that needs it"
        )
    if policy is not None:
        _check_reports(policy, name, outputs[0], train)
    start_up = []
    start_down = []
    for i, phase in enumerate(algorithm.start_phases):
        output, download = tracer.phase(lambda a, i=i: a.start_phases[i])
        if phase.charged:
            start_up.append(output.message)
            start_down.append(download)
    messages = [output.message for output in outputs]
    if policy is not None and policy.needs_global_gradient:
        if algorithm.gradient is None:
            raise ValueError(
                f"the participation policy needs the global gradient but {name} has no `gradient`; use a policy "
                "without a gradient criterion, such as participation.Doubling"
            )
        gradient = tracer.client(GRADIENT, lambda a: a.gradient, downloads[0])
        messages.append(gradient.message)
    metrics = _result(name, algorithm, "metrics", server, data)
    _check_scalars(f"{name}: metrics returned", metrics)
    for output in outputs:
        metrics = _joined(name, metrics, _averaged(_float(), dict(output.info)))
    if record_loss:
        metrics = _joined(name, metrics, {TRAINING_LOSS: _float()})
    check_metric_names(f"{name}: metrics or info", metrics, evaluations)
    charges = _static_charges(algorithm)
    if charges.communicates is not None:
        flag = tracer.in_round("communicates", lambda a: a.charges.communicates, server)
        what = f"{name}: communicates returned"
        check_like(what, flag.shapes, FLAG, "it must return a flag")
    evaluation_bytes = [tracer.evaluation(each, test) for each in evaluations]
    return Shapes(
        server=server,
        state=state,
        train=train,
        test=test,
        up=tuple(messages),
        down=downloads,
        metrics=metrics,
        training_bytes=tracer.training_bytes,
        evaluation_bytes=max(evaluation_bytes, default=0),
        shown=tracer.shown,
        shared_bytes=shared_bytes,
        charges=charges,
        start_up=tuple(start_up),
        start_down=tuple(start_down),
    )


def _check_phases(name: str, algorithm: FederatedAlgorithm) -> None:
    """Raise a ValueError for phases that are none, or whose names cannot tell their keys apart."""
    for field in ("phases", "start_phases"):
        phases = getattr(algorithm, field)
        is_tuple = isinstance(phases, tuple)
        if not is_tuple or not all(isinstance(phase, Phase) for phase in phases):
            raise ValueError(
                f"{name}: {field}={short(phases)} must be a tuple of srp.Phase(name, ...)"
            )
    if not algorithm.phases:
        raise ValueError(
            f"{name}: phases=() has no pass over clients; give at least one srp.Phase"
        )
    names = [GRADIENT]
    for phase in (*algorithm.phases, *algorithm.start_phases):
        if not isinstance(phase.name, str) or phase.name in names:
            raise ValueError(
                f"{name}: the name {short(phase.name)} of a phase is no text, or taken; choose another"
            )
        names.append(phase.name)
        if phase.over not in ("participants", "next"):
            raise ValueError(
                f"{name}: {phase.name}.over={short(phase.over)}: give 'participants' or 'next'"
            )
    for phase in algorithm.phases:
        if phase.charged:
            raise ValueError(
                f"{name}: {phase.name}.charged=True: rounds are always charged; leave it out"
            )
    for phase in algorithm.start_phases:
        if phase.over != "participants":
            raise ValueError(
                f"{name}: {phase.name}.over={phase.over!r}: a start has all clients; leave it out"
            )


def _check_reports(
    policy: ParticipationPolicy, name: str, output: ClientOutput, train: PyTree
) -> None:
    """Raise a ValueError if a policy needs reports that this algorithm or these data lack."""
    reports = {TRAINING_LOSS, *output.info}
    if isinstance(train, Examples):
        reports.add(NUM_EXAMPLES)
    if policy.needs_global_gradient:
        reports.add(CLIENT_GRADIENT_NORM)
    if isinstance(policy.needs, str):
        raise ValueError(
            f"policy {policy.name!r}: needs={policy.needs!r} is a text; give {(policy.needs,)!r}"
        )
    for need in policy.needs:
        if need not in reports:
            raise ValueError(
                f"policy {policy.name!r} needs {need!r} of every participant and {name} has "
                f"{', '.join(sorted(reports))}; "
                "return it in ClientOutput(info={...}), or choose another policy"
            )


def _client_data(method: str, data: FederatedSource) -> tuple[PyTree, int]:
    """Shapes of a client's data, and bytes of the arrays in it that are the same for every client."""
    of_client = lambda data, client: getattr(data, method)(client)
    shapes, program = _traced(f"data: {method}", of_client, data, INTEGER)
    jaxpr = program.jaxpr
    arrays = [*jaxpr.constvars, *jaxpr.invars[:-1]]
    shared = [out for out in jaxpr.outvars if any(out is array for array in arrays)]
    return shapes, bytes_of(shared)


def _static_charges(algorithm: FederatedAlgorithm) -> Charges:
    """Return the charges; ValueError if they read a float, since runs of other floats share the check."""
    name = f"algorithm {algorithm.name!r}"

    def read(algorithm: FederatedAlgorithm) -> tuple[()]:
        _ = algorithm.charges
        return ()

    _traced(f"{name}: charges", read, algorithm)
    charges = algorithm.charges
    if not isinstance(charges, Charges):
        raise ValueError(f"{name}: charges={short(charges)} must be srp.Charges(...)")
    return charges


def static_costs_as(
    algorithm: FederatedAlgorithm,
) -> tuple[tuple[FederatedAlgorithm, ...], ...] | None:
    """Return what the algorithm costs as; ValueError if that reads a float, see `_static_charges`."""

    def read(algorithm: FederatedAlgorithm) -> tuple[()]:
        if algorithm.charges.costs_as is not None:
            algorithm.charges.costs_as()
        return ()

    _traced(f"algorithm {algorithm.name!r}: charges", read, algorithm)
    costs_as = algorithm.charges.costs_as
    return None if costs_as is None else costs_as()


def _joined(
    name: str, scalars: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """All metrics of a round; ValueError for a name that occurs twice."""
    for metric in sorted(scalars.keys() & more.keys()):
        raise ValueError(
            f"{name}: {metric!r} is recorded twice in a round; rename one, of metrics or of info"
        )
    return {**scalars, **more}


def score(
    where: str, data: FederatedSource, predict: Any, test: ClientData
) -> tuple[Array, Array]:
    """Result of `data.score` for an evaluation's predictions, checked while it is traced."""
    what = f"{where} returned"
    _require(callable(predict), what, predict, "return predict, a function of x")
    scored = data.score(predict, test)
    is_pair = isinstance(scored, tuple) and list(map(jnp.shape, scored)) == [(), ()]
    demand = "return the sum of scores and their number"
    _require(is_pair, f"{where}: data.score returned", scored, demand)
    return jnp.asarray(scored[0]), jnp.asarray(scored[1])


def check_policy(
    policy: ParticipationPolicy,
    times: ClientTimes,
    metrics: Mapping[str, Any],
    evaluations: Sequence[str] = (),
) -> None:
    """Trace a policy for the shapes of a round's times and metrics, and check the names of its metrics."""
    name = f"policy {policy.name!r}"
    key = abstract_key()
    num_clients = times.realised.shape[0]
    init = lambda policy, key: policy.init(key, num_clients)
    state = _traced(f"{name}: init", init, policy, key).shapes
    selected = _result(name, policy, "select", key, state, times)
    cohort = _first_of_pair(f"{name}: select", Cohort, selected, state)
    _check_cohort(name, cohort, num_clients)
    if policy.asynchronous and times.available is not None and cohort.jobs is None:
        raise ValueError(
            f"{name}: rounds overlap, and a client that leaves takes its job along; use Buffered, or a clock under "
            "which all clients are available; a policy of your own returns Cohort.jobs"
        )
    if policy.needs_global_gradient:
        metrics = _joined(name, metrics, {GRADIENT_NORM: _float()})
    wasted = None if cohort.jobs is None else cohort.jobs.wasted
    if cohort.asked is not None or wasted is not None:
        metrics = _joined(name, metrics, {WASTED_TIME: _float()})
    info = RoundInfo(
        round=INTEGER,
        stage=INTEGER,
        cohort_size=INTEGER,
        compute_time=_float(),
        communicated=FLAG,
        global_grad_norm=_float(),
        finite=FLAG,
        metrics=dict(metrics),
        reports={need: _float(num_clients) for need in policy.needs},
    )
    updated = _result(name, policy, "update", state, info)
    check_like(f"{name}: update returned", updated, state, LIKE_INIT)
    of_policy = _result(name, policy, "metrics", state)
    _check_scalars(f"{name}: metrics returned", of_policy)
    metrics = _joined(name, metrics, of_policy)
    check_metric_names(f"{name}: metrics", metrics, evaluations)


def _check_cohort(name: str, cohort: Cohort, num_clients: int) -> None:
    """Raise a ValueError for a cohort of other shapes and types than a `Cohort` has."""
    pool = getattr(cohort.client_ids, "shape", ())
    is_pool = len(pool) == 1 and 1 <= pool[0] <= num_clients
    what = f"{name}: select returned client_ids ="
    _require(is_pool, what, cohort.client_ids, f"be (pool,), at most {num_clients}")
    ids = _shape(jnp.int32, *pool)
    expected = Cohort(ids, INTEGER, ids, INTEGER)
    jobs = Jobs(_shape(jnp.int32, num_clients), INTEGER)
    if cohort.jobs is not None and cohort.jobs.wasted is not None:
        jobs = jobs._replace(wasted=_float())
    optional = {"duration": _float(), "asked": INTEGER, "next_ids": ids, "jobs": jobs}
    optional["importance"] = _float(*pool)
    for field, shape in optional.items():
        if getattr(cohort, field) is not None:
            expected = expected._replace(**{field: shape})
    check_like(f"{name}: select returned", cohort, expected, "a Cohort has")


def _first_of_pair(where: str, kind: type, result: Any, state: PyTree) -> Any:
    """Check the pair that a function of a policy or a clock returned, and its new state."""
    is_pair = isinstance(result, tuple) and len(result) == 2
    is_pair = is_pair and isinstance(result[0], kind)
    _require(is_pair, f"{where} returned", result, f"return ({kind.__name__}, state)")
    check_like(f"{where} returned the state", result[1], state, LIKE_INIT)
    return result[0]


def check_clock(clock: Clock, num_clients: int) -> ClientTimes:
    """Trace a clock; return the shapes of its times."""
    name = f"clock {clock.name!r}"
    key = abstract_key()
    of_clients = _float(num_clients)
    init = lambda clock, key: clock.init(key, num_clients)
    state = _traced(f"{name}: init", init, clock, key).shapes
    sampled = _result(name, clock, "sample", key, state, _float())
    times = _first_of_pair(f"{name}: sample", ClientTimes, sampled, state)
    expected = ClientTimes(of_clients, of_clients)
    if times.communication is not None:
        is_of_clients = getattr(times.communication, "shape", ()) != ()
        communication = of_clients if is_of_clients else _float()
        expected = expected._replace(communication=communication)
    if (times.available, times.stays, times.wait) != (None, None, None):
        flags = _shape(jnp.bool_, num_clients)
        expected = expected._replace(available=flags, stays=of_clients, wait=_float())
    if times.by_work is not None:
        units = max((1, *getattr(times.by_work, "shape", ())[1:2]))
        expected = expected._replace(by_work=_float(num_clients, units))
    what = f"{name}: sample returned"
    check_like(what, times, expected, "there must be a time for each client")
    return times


def check_start(algorithm: FederatedAlgorithm, clock: Clock, times: ClientTimes) -> None:
    """Raise a ValueError for a clock that cannot charge the passes before the first round."""
    charged = [phase.name for phase in algorithm.start_phases if phase.charged]
    if not charged:
        return
    reason = None
    if clock.needs_costs:
        reason = "its times are those of a round's operations and messages"
    elif times.available is not None:
        reason = "clients can be away, and the start needs all of them"
    if reason is not None:
        raise ValueError(
            f"clock {clock.name!r} cannot charge the start ({charged[0]!r}) of {algorithm.name!r}: {reason}; choose "
            "another clock, such as srp.clocks.Fixed, or do not charge it (charge_start=False)"
        )


def check_cohorts(policy: ParticipationPolicy, faults: Any, first: int) -> None:
    """Raise a ValueError for an impossible cohort, on the host after a segment whose first round has this number.

    The faults are (..., R, 2), see `rounds.cohort.cohort_fault`.
    """
    faults = np.asarray(faults)
    places = np.argwhere(faults[..., 0] != CohortFault.NONE)
    if len(places) == 0:
        return
    place = tuple(min(places.tolist(), key=lambda place: place[-1]))
    fault, number = faults[place].tolist()
    words = CohortFault(fault).describe(number)
    raise ValueError(
        f"policy {policy.name!r}: the cohort of round {place[-1] + first}: {words}"
    )


def check_times(clock: Clock, what: str, times: Any, first: int = 0) -> None:
    """Raise a ValueError for times that are negative or not finite, on the host after a segment."""
    times = np.asarray(times)
    is_time = np.isfinite(times) & (times >= 0)
    for place in np.argwhere(~is_time)[:1]:
        raise ValueError(
            f"clock {clock.name!r}: the time of {what} {place[-1] + first} is {times[tuple(place)]}; "
            f"times must be finite and >= 0 as {times.dtype}: correct what its sample returns, "
            "or Cohort.duration if the policy sets it"
        )
