"""Checks of the contract of `base.py`: of parts, from shapes, before a run; of cohorts and times after each segment.

Checks before a run only trace: the floats of a part are abstract, as in a program. A TypeError or AttributeError of an
author's function (a Python `if` on a float, a missing argument, a text in a state) becomes a ValueError that names part
and function in one line; other errors are not caught.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from fedjax_srp.base import (
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
    ParticipationPolicy,
    Phase,
    PyTree,
    RoundContext,
    RoundInfo,
    TrainingLoss,
)
from fedjax_srp.contract.peak_memory import bytes_of, peak_bytes
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.columns import check_metric_names
from fedjax_srp.parts.part import remedy_of

GRADIENT = (
    "gradient"  # name of the pass for policies that need the norm of the mean gradient
)
LIKE_INIT = "it must be like what init makes"
SHOWN = 160  # characters of a structure, or of an error of JAX, in a message
PACKAGE = str(Path(__file__).parents[1])
LIBRARIES = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")
)
FAULTS = (  # of a cohort, see `cohort.cohort_fault`
    "its size is {}, it must be at least 1 and at most the length of client_ids",
    "client {} does not exist: ids lie in 0..num_clients - 1",
    "client {} is in it more than once: draw clients without replacement (jax.random.choice(..., replace=False))",
    "client {} has negative work: units of local work are 0 or more",
    "it asked {} clients, which must be at least its size and at most the length of client_ids",
    "client {} is not available: pick among those of times.available, see participation.cohorts.ask",
    "client {} leaves before its work is done: it cannot report, see participation.cohorts.ask",
)


class Shapes(NamedTuple):
    """Shapes of an algorithm's states, data and messages."""

    server: PyTree
    state: PyTree  # of a client
    train: PyTree  # a client's data
    test: PyTree
    up: tuple[
        PyTree, ...
    ]  # messages of the phases of a round, and of the criterion's gradient if it is needed
    down: tuple[PyTree, ...]  # downloads of the phases of a round
    metrics: dict[str, Any]  # of a round: those of the algorithm and the means of `info`
    working: (
        int  # bytes that a client's training needs at most besides its data and its state
    )
    working_evaluated: int  # the same of an evaluation
    shown: PyTree  # the parts of a client's state that the server knows, for exchanges
    common: int  # bytes of `train` that are the same array for every client
    charges: Charges


def _shape(dtype: Any, *shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _float(*shape: int) -> Any:
    return _shape(jnp.result_type(float), *shape)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _traced(
    where: str, function: Callable[..., Any], *args: Any
) -> tuple[Any, ClosedJaxpr]:
    """The shapes that a function of a part returns, and its trace."""
    try:
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, ValueError) and _is_refusal(error):
            raise
        raise ValueError(f"{where}: {_summarize(error)}") from error
    return jax.tree.map(
        lambda leaf: _shape(leaf.dtype, *leaf.shape), shapes
    ), jaxpr  # weak types become plain ones


def _is_refusal(error: ValueError) -> bool:
    """Return True if a `raise` of this package, or of an author's code, made the error: its words suffice."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = last.filename.startswith((PACKAGE, "<")) or not last.filename.startswith(
        LIBRARIES
    )
    return is_ours and "raise " in (last.line or "raise ")


def _summarize(error: Exception) -> str:
    """The first line of a tracing error, with file and line of the author's code that caused it, and a remedy."""
    text = str(error).partition("\n")[0].rpartition(" traced for jit ")[2][:SHOWN]
    frames = traceback.extract_tb(error.__traceback__)
    if own := [
        frame
        for frame in frames
        if not frame.filename.startswith((*LIBRARIES, "<", __file__))
    ]:
        text += f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    return text + remedy_of(error)


def shapes_of(tree: PyTree) -> str:
    """Describe a structure briefly, by types and shapes."""
    text = str(jax.tree.map(_describe, tree)).replace("'", "")
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _describe(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def check_like(what: str, returned: PyTree, expected: PyTree, demand: str) -> None:
    """Raise "{what} {shapes}, {demand}: {shapes}" if structure, shapes or types are not as expected."""
    new, old = (
        {
            jax.tree_util.keystr(path): _describe(leaf)
            for path, leaf in jax.tree.leaves_with_path(tree)
        }
        for tree in (returned, expected)
    )
    if new == old and jax.tree.structure(returned) == jax.tree.structure(expected):
        return
    differs = next(
        (name for name in {**old, **new} if new.get(name) != old.get(name)), None
    )
    hint = f" (they differ in {differs})" if differs else ""
    if differs is None:
        hint = "; the containers are of other classes: define a class at the top of the file, not in a function"
    raise ValueError(
        f"{what} {shapes_of(returned)}, {demand}: {shapes_of(expected)}{hint}"
    )


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


def _check_output(where: str, output: Any, state: PyTree) -> None:
    """Raise a ValueError for an output that the engine cannot average or keep."""
    is_output = isinstance(output, ClientOutput)
    _require(
        is_output,
        f"{where} returned",
        output,
        "return srp.ClientOutput(message, state, ...)",
    )
    if output.state is not None:
        check_like(
            f"{where} returned the state",
            output.state,
            state,
            "it must be like what init_client makes",
        )
    if output.loss is not None:
        expected = TrainingLoss(_float(), _shape(jnp.int32))
        check_like(
            f"{where} returned the loss",
            output.loss,
            expected,
            "it must be that of local_sgd",
        )
    shown = f"the message {shapes_of(output.message)} with the weight {shapes_of(output.weight)}"
    prefix = jax.tree.structure(output.weight)
    try:
        prefix.flatten_up_to(output.message)
        is_prefix = all(leaf.shape == () for leaf in jax.tree.leaves(output.weight))
    except ValueError:
        is_prefix = False
    numbers = jax.tree.leaves((output.message, output.weight))
    if not is_prefix or not all(map(_is_number, numbers)):
        raise ValueError(
            f"{where} returned {shown}: give numbers, with one scalar as weight or one for each part"
        )
    _check_scalars(f"{where} returned info:", output.info)


def _averaged(tree: PyTree) -> PyTree:
    """Shapes of the mean over a cohort; integers and flags are averaged as floats."""
    return jax.tree.map(
        lambda leaf: (
            leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else _float(*leaf.shape)
        ),
        tree,
    )


def check_algorithm(
    algorithm: FederatedAlgorithm,
    data: FederatedSource,
    evaluations: Sequence[str] = (),
    policy: ParticipationPolicy | None = None,
    record_loss: bool = False,
) -> Shapes:
    """Trace every function of an algorithm that a run will call, and check the policy's needs."""
    name, key, one = f"algorithm {algorithm.name!r}", _key(), _shape(jnp.int32)
    (train, common), (test, _) = (
        _client_data(f"{split}_client", data) for split in ("train", "test")
    )
    server = _traced(
        f"{name}: init", lambda a, *args: a.init(*args), algorithm, key, data
    )[0]
    state = _traced(
        f"{name}: init_client",
        lambda a, *args: a.init_client(*args),
        algorithm,
        key,
        server,
        train,
    )[0]
    working, shown = [0], []

    def in_round(
        where: str, function: Callable[[Any], Any], *args: Any
    ) -> tuple[Any, ClosedJaxpr]:
        """Trace a function of the algorithm with a context as the last argument."""

        def with_context(algorithm: Any, integers: tuple[Array, ...], *args: Any) -> Any:
            index, stage, size, work = integers
            context = RoundContext(
                index, stage, size, data.num_clients, work, record_loss
            )
            return function(algorithm)(*args, context)

        return _traced(f"{name}: {where}", with_context, algorithm, (one,) * 4, *args)

    def client(
        where: str, function: Callable[[Any], ClientFunction], broadcast: PyTree
    ) -> ClientOutput:
        output, traced = in_round(where, function, key, broadcast, state, train)
        working.append(peak_bytes(traced))
        _check_output(f"{name}: {where}", output, state)
        return output

    def check_phase(
        title: str, phase_of: Callable[[Any], Phase]
    ) -> tuple[ClientOutput, PyTree]:
        """Trace a phase: its output and its download."""
        down = in_round(f"{title}.broadcast", lambda a: phase_of(a).broadcast, server)[0]
        exchange = phase_of(algorithm).exchange
        if exchange is not None:
            down = in_round(
                f"{title}.exchange", lambda a: phase_of(a).download, server, state
            )[0]
            shown.append(jax.eval_shape(exchange.shown, state))
        output = client(f"{title}.client", lambda a: phase_of(a).client, down)
        mean = _averaged(output.message)
        new = in_round(
            f"{title}.server", lambda a: phase_of(a).server, key, server, mean
        )[0]
        check_like(f"{name}: {title}.server returned", new, server, LIKE_INIT)
        return output, down

    _check_phases(name, algorithm)
    outputs, down = [], []
    for index, phase in enumerate(algorithm.phases):
        output, download = check_phase(phase.name, lambda a, index=index: a.phases[index])
        outputs.append(output)
        down.append(download)
    if record_loss and outputs[0].loss is None:
        raise ValueError(
            f"record_loss: {name} reports no loss of its local training; return ClientOutput(..., "
            "loss=trained.loss) with what local_sgd returned, or leave out record_loss or the policy that needs it"
        )
    if policy is not None:
        _check_reports(policy, name, outputs[0], train)
    for index, phase in enumerate(algorithm.start_phases):
        check_phase(phase.name, lambda a, index=index: a.start_phases[index])
    up = [output.message for output in outputs]
    if policy is not None and policy.needs_global_gradient:
        if algorithm.gradient is None:
            raise ValueError(
                f"the participation policy needs the global gradient but {name} has no `gradient`; use a policy "
                "without a gradient criterion, such as participation.Doubling"
            )
        up.append(client(GRADIENT, lambda a: a.gradient, down[0]).message)
    metrics = _traced(
        f"{name}: metrics", lambda a, *args: a.metrics(*args), algorithm, server, data
    )[0]
    _check_scalars(f"{name}: metrics returned", metrics)
    infos = [_averaged(dict(output.info)) for output in outputs]
    if record_loss:
        infos.append({TRAINING_LOSS: _float()})
    metrics = _joined(name, metrics, *infos)
    check_metric_names(f"{name}: metrics or info", metrics, evaluations)
    charges = _static_charges(algorithm)
    if charges.communicates is not None:
        says = in_round("communicates", lambda a: a.charges.communicates, server)[0]
        check_like(
            f"{name}: communicates returned",
            says,
            _shape(jnp.bool_),
            "it must return a flag",
        )
    judged = [0]
    for evaluation in evaluations:
        where = f"{name}: evaluation {evaluation!r}"

        def judge(
            a: Any,
            data: FederatedSource,
            test: ClientData,
            *args: Any,
            e: str = evaluation,
            w: str = where,
        ):
            return score(w, data, a.evaluations[e](*args), test)

        traced = _traced(where, judge, algorithm, data, test, key, server, state, train)[
            1
        ]
        judged.append(peak_bytes(traced))
    return Shapes(
        server=server,
        state=state,
        train=train,
        test=test,
        up=tuple(up),
        down=tuple(down),
        metrics=metrics,
        working=max(working),
        working_evaluated=max(judged),
        shown=shown,
        common=common,
        charges=charges,
    )


def _check_phases(name: str, algorithm: FederatedAlgorithm) -> None:
    """Raise a ValueError for phases that are none, or whose names cannot tell their keys apart."""
    for field in ("phases", "start_phases"):
        phases = getattr(algorithm, field)
        if not isinstance(phases, tuple) or not all(
            isinstance(phase, Phase) for phase in phases
        ):
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
    for phase in algorithm.start_phases:
        if phase.over != "participants":
            raise ValueError(
                f"{name}: {phase.name}.over={phase.over!r}: a start has all clients; leave it out"
            )


def _check_reports(
    policy: ParticipationPolicy, name: str, output: ClientOutput, train: PyTree
) -> None:
    """Raise a ValueError if a policy needs reports that this algorithm or these data lack."""
    known = {TRAINING_LOSS, *output.info} | (
        {NUM_EXAMPLES} if isinstance(train, Examples) else set()
    )
    if isinstance(policy.needs, str):
        raise ValueError(
            f"policy {policy.name!r}: needs={policy.needs!r} is a text; give {(policy.needs,)!r}"
        )
    for need in policy.needs:
        if need not in known:
            has = ", ".join(sorted(known))
            raise ValueError(
                f"policy {policy.name!r} needs {need!r} of every participant and {name} has {has}; "
                "return it in ClientOutput(info={...}), or choose another policy"
            )


def _client_data(method: str, data: FederatedSource) -> tuple[PyTree, int]:
    """Shapes of a client's data, and bytes of the arrays in it that are the same for every client."""
    of_client = lambda data, client: getattr(data, method)(client)
    shapes, traced = _traced(f"data: {method}", of_client, data, _shape(jnp.int32))
    outputs, arrays = (
        traced.jaxpr.outvars,
        (*traced.jaxpr.constvars, *traced.jaxpr.invars[:-1]),
    )
    return shapes, bytes_of(
        [out for out in outputs if any(out is array for array in arrays)]
    )


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


def _joined(name: str, *scalars: Mapping[str, Any]) -> dict[str, Any]:
    """All metrics of a round; ValueError for a name that occurs twice."""
    joined: dict[str, Any] = {}
    for some in scalars:
        if twice := sorted(joined.keys() & some.keys()):
            raise ValueError(
                f"{name}: {twice[0]!r} is recorded twice in a round; rename one, of metrics or of info"
            )
        joined |= some
    return joined


def score(
    where: str, data: FederatedSource, predict: Any, test: ClientData
) -> tuple[Array, Array]:
    """Result of `data.score` for an evaluation's predictions, checked while it is traced."""
    is_function = callable(predict)
    shown = () if is_function else jax.tree.map(jnp.asarray, predict)
    _require(is_function, f"{where} returned", shown, "return predict, a function of x")
    scored = data.score(predict, test)
    is_pair = isinstance(scored, tuple) and [jnp.shape(part) for part in scored] == [
        (),
        (),
    ]
    shown = () if is_pair else jax.tree.map(jnp.asarray, scored)
    _require(
        is_pair,
        f"{where}: data.score returned",
        shown,
        "return the sum of scores and their number",
    )
    return jnp.asarray(scored[0]), jnp.asarray(scored[1])


def check_policy(
    policy: ParticipationPolicy,
    times: ClientTimes,
    metrics: Mapping[str, Any],
    evaluations: Sequence[str] = (),
) -> None:
    """Trace a policy for the shapes of a round's times and metrics, and check the names of its metrics."""
    name, key, one, num_clients = (
        f"policy {policy.name!r}",
        _key(),
        _shape(jnp.int32),
        times.realised.shape[0],
    )
    if policy.asynchronous and times.available is not None:
        raise ValueError(
            f"{name}: rounds overlap, and a client that leaves would take its job along; use a clock under which "
            "all clients are available, or a policy whose rounds do not overlap"
        )
    state = _traced(
        f"{name}: init", lambda policy, key: policy.init(key, num_clients), policy, key
    )[0]
    cohort = _first_of_pair(
        f"{name}: select",
        Cohort,
        state,
        lambda p, *args: p.select(*args),
        policy,
        key,
        state,
        times,
    )
    pool = getattr(cohort.client_ids, "shape", ())
    is_pool = len(pool) == 1 and 1 <= pool[0] <= num_clients
    _require(
        is_pool,
        f"{name}: select returned client_ids =",
        cohort.client_ids,
        f"be (pool,), at most {num_clients}",
    )
    ids, duration = (
        _shape(jnp.int32, *pool),
        None if cohort.duration is None else _float(),
    )
    asked = None if cohort.asked is None else one
    next_ids = None if cohort.next_ids is None else ids
    check_like(
        f"{name}: select returned",
        cohort,
        Cohort(ids, one, ids, one, duration, asked, next_ids),
        "a Cohort has",
    )
    flag = _shape(jnp.bool_)
    own = {GRADIENT_NORM: policy.needs_global_gradient, WASTED_TIME: asked is not None}
    metrics = _joined(
        name, metrics, {metric: _float() for metric, is_there in own.items() if is_there}
    )
    reports = {need: _float(num_clients) for need in policy.needs}
    info = RoundInfo(
        one, one, one, _float(), flag, _float(), flag, dict(metrics), reports
    )
    updated = _traced(
        f"{name}: update", lambda policy, *args: policy.update(*args), policy, state, info
    )[0]
    check_like(f"{name}: update returned", updated, state, LIKE_INIT)
    own_metrics = _traced(
        f"{name}: metrics", lambda policy, state: policy.metrics(state), policy, state
    )[0]
    _check_scalars(f"{name}: metrics returned", own_metrics)
    check_metric_names(
        f"{name}: metrics", _joined(name, metrics, own_metrics), evaluations
    )


def _first_of_pair(
    where: str, kind: type, state: PyTree, function: Callable[..., Any], *args: Any
) -> Any:
    """Trace a function of a policy or a clock that returns a pair; check the pair and its new state."""
    found = _traced(where, function, *args)[0]
    is_pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], kind)
    _require(is_pair, f"{where} returned", found, f"return ({kind.__name__}, state)")
    check_like(f"{where} returned the state", found[1], state, LIKE_INIT)
    return found[0]


def check_clock(clock: Clock, num_clients: int) -> ClientTimes:
    """Trace a clock; return the shapes of its times."""
    name, key, each = f"clock {clock.name!r}", _key(), _float(num_clients)
    state = _traced(
        f"{name}: init", lambda clock, key: clock.init(key, num_clients), clock, key
    )[0]
    sample = lambda clock, *args: clock.sample(*args)
    times = _first_of_pair(
        f"{name}: sample", ClientTimes, state, sample, clock, key, state, _float()
    )
    flags, comes_and_goes = (
        _shape(jnp.bool_, num_clients),
        times[3:6] != (None, None, None),
    )
    presence = (flags, each, _float()) if comes_and_goes else (None, None, None)
    once = each if getattr(times.communication, "shape", ()) else _float()
    expected = ClientTimes(
        each, each, None if times.communication is None else once, *presence
    )
    if times.by_work is not None:
        units = max((1, *getattr(times.by_work, "shape", ())[1:2]))
        expected = expected._replace(by_work=_float(num_clients, units))
    check_like(
        f"{name}: sample returned",
        times,
        expected,
        "there must be a time for each client",
    )
    return times


def check_cohorts(policy: ParticipationPolicy, faults: Any, first: int) -> None:
    """Raise a ValueError for an impossible cohort, on the host after a segment whose first round has this number.

    The faults are (..., R, 2), see `cohort.cohort_fault`.
    """
    faults = np.asarray(faults)
    wrong = np.argwhere(faults[..., 0] > 0)
    if len(wrong):
        place = tuple(min(wrong.tolist(), key=lambda place: place[-1]))
        kind, number = faults[place].tolist()
        raise ValueError(
            f"policy {policy.name!r}: the cohort of round {place[-1] + first}: {FAULTS[kind - 1].format(number)}"
        )


def check_times(clock: Clock, what: str, times: Any, first: int = 0) -> None:
    """Raise a ValueError for times that are negative or not finite, on the host after a segment."""
    times = np.asarray(times)
    bad = np.argwhere(~(np.isfinite(times) & (times >= 0)))
    if len(bad):
        place = tuple(bad[0])
        raise ValueError(
            f"clock {clock.name!r}: the time of {what} {place[-1] + first} is {times[place]}; times must be finite and "
            f">= 0 as {times.dtype}: correct what its sample returns, or Cohort.duration if the policy sets it"
        )
