"""Operations of a client's local work, counted in the traced program, for clocks that compute times from them.

An operation is a multiplication or an addition of a matrix product or a convolution; everything else is free. A loop's
body counts once per trip; trip counts follow from the scalars of a client's data (its number of examples) and its units
of work. Steps and convolutions count the same on every backend: plain ones, without products with padding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fedjax_srp.base import (
    Array,
    Examples,
    FederatedAlgorithm,
    FederatedSource,
    ParticipationPolicy,
    PyTree,
    RoundContext,
    WorkCosts,
)
from fedjax_srp.contract.checks import GRADIENT, Shapes, check_algorithm
from fedjax_srp.contract.messages import Traffic, traffic
from fedjax_srp.contract.peak_memory import inner_jaxprs, opened, unstacked
from fedjax_srp.xla.backend import traced_for

Known = Sequence[Array | None]  # values of scalars, None if unknown
Total = Array | float


def work_costs(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    data: FederatedSource,
    shapes: Shapes,
    sizes: Traffic,
) -> Callable[[FederatedSource], WorkCosts]:
    """Return a compiled function of the data that counts the costs of a round for each client.

    Each client is charged for its own number of examples; the last batch of an epoch counts as a full one. An algorithm
    with `Charges.costs_as` costs what those algorithms cost.

    Raises:
        ValueError: the length of a loop does not follow from the scalars of a client's data and its units of work.
    """
    if shapes.charges.costs_as is not None:
        return _costs_by_work(shapes.charges.costs_as, policy, data)
    return _own_costs(algorithm, policy, data, shapes, sizes)


def _own_costs(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    data: FederatedSource,
    shapes: Shapes,
    sizes: Traffic,
) -> Callable[[FederatedSource], WorkCosts]:
    """`work_costs` of the algorithm itself."""
    count = _client_operations(algorithm, policy, data.num_clients, shapes, shapes.train)
    longer = count
    if isinstance(
        shapes.train, Examples
    ):  # with one more row, to find the operations of a padded row
        add_row = lambda leaf: jax.ShapeDtypeStruct(
            (leaf.shape[0] + 1, *leaf.shape[1:]), leaf.dtype
        )
        train = shapes.train._replace(
            x=add_row(shapes.train.x), y=add_row(shapes.train.y)
        )
        longer = _client_operations(algorithm, policy, data.num_clients, shapes, train)

    def of_client(data: FederatedSource, client_id: Array) -> tuple[Array, Array]:
        examples = data.train_client(client_id)
        scalars = [leaf for leaf in jax.tree.leaves(examples) if not leaf.ndim]

        def operations(work: int) -> Array:
            total = jnp.asarray(count(jnp.int32(work), scalars), float)
            if longer is count:
                return total
            of_row = jnp.asarray(longer(jnp.int32(work), scalars), float) - total
            return total - of_row * (examples.y.shape[0] - examples.count).astype(float)

        one, two = operations(1), operations(2)
        return two - one, 2 * one - two

    @jax.jit
    def costs(data: FederatedSource) -> WorkCosts:
        ids = jnp.arange(data.num_clients, dtype=jnp.int32)
        unit, once = jax.vmap(of_client, in_axes=(None, 0))(data, ids)
        return WorkCosts(
            unit, once, jnp.asarray(sizes.down, float), jnp.asarray(sizes.up, float)
        )

    return costs


def _costs_by_work(
    levels: Sequence[Sequence[FederatedAlgorithm]],
    policy: ParticipationPolicy,
    data: FederatedSource,
) -> Callable[[FederatedSource], WorkCosts]:
    """`work_costs` of the algorithms that clients run with 1, 2, ... units of work, see `costs_as`."""
    distinct = list(dict.fromkeys(itertools.chain(*levels)))
    shapes = [check_algorithm(one, data, (), policy) for one in distinct]
    counters = [
        _own_costs(one, policy, data, of_one, traffic(of_one))
        for one, of_one in zip(distinct, shapes, strict=True)
    ]
    places = [[distinct.index(one) for one in level] for level in levels]

    @jax.jit
    def costs(data: FederatedSource) -> WorkCosts:
        found = [count(data) for count in counters]
        total = jnp.stack(
            [each.operations + each.once for each in found]
        )  # (algorithms, num_clients)
        means = [jnp.mean(total[jnp.asarray(level)], axis=0) for level in places]
        down, up = (
            jnp.stack([getattr(found[level[-1]], name) for level in places])
            for name in ("bytes_down", "bytes_up")
        )
        return WorkCosts(jnp.stack(means, axis=1), jnp.zeros(data.num_clients), down, up)

    return costs


def _client_operations(
    algorithm: FederatedAlgorithm,
    policy: ParticipationPolicy,
    num_clients: int,
    shapes: Shapes,
    train: PyTree,
) -> Callable[[Array, Sequence[Array]], Total]:
    """Return (units of work, scalars of a client's data) -> operations of a participant in a round."""
    functions: list[tuple[str, Callable[[Any], Any]]] = []
    for index, phase in enumerate(algorithm.phases):
        functions.append((phase.name, lambda a, index=index: a.phases[index].client))
    broadcasts = [*shapes.down]
    if policy.needs_global_gradient:
        functions.append((GRADIENT, lambda a: a.gradient))
        broadcasts.append(shapes.down[0])
    key, integer = (
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    traced: list[tuple[str, ClosedJaxpr]] = []
    for (name, function), broadcast in zip(functions, broadcasts, strict=True):

        def client(
            work: Array,
            train: PyTree,
            algorithm: Any,
            integers: Any,
            *args: Any,
            function: Any = function,
        ):
            index, stage, size = integers
            context = RoundContext(index, stage, size, num_clients, work)
            key, broadcast, state = args
            return function(algorithm)(key, broadcast, state, train, context)

        with traced_for(
            "tpu"
        ):  # where convolutions stay convolutions and no step is taken in the span of the examples
            args = integer, train, algorithm, (integer,) * 3, key, broadcast, shapes.state
            traced.append(
                (
                    f"algorithm {algorithm.name!r}: {name}.client",
                    jax.make_jaxpr(client)(*args),
                )
            )
    is_scalar = [not leaf.shape for leaf in jax.tree.leaves(train)]

    def operations(work: Array, scalars: Sequence[Array]) -> Total:
        left = iter(scalars)
        known = [work, *(next(left) if scalar else None for scalar in is_scalar)]
        total: Total = 0.0
        for where, closed in traced:
            known_here = known + [None] * (len(closed.jaxpr.invars) - len(known))
            try:
                total = total + _count(closed.jaxpr, closed.consts, known_here)[0]
            except _UnknownLengthError:
                raise ValueError(
                    f"{where}: a loop's length is known only while it runs, so that its operations cannot be counted; "
                    "use jax.lax.fori_loop from 0 to a number that follows from the client's count and context.work, "
                    "or give the clock its costs"
                ) from None
        return total

    return operations


class _UnknownLengthError(Exception):
    """A loop with products and an unknown trip count."""


def _count(
    jaxpr: Jaxpr, consts: Sequence[Any], known: Known
) -> tuple[Total, list[Array | None]]:
    """Operations of a traced function, and the known values of its results."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, known, strict=True))
    env |= {
        v: c for v, c in zip(jaxpr.constvars, consts, strict=True) if not jnp.shape(c)
    }

    def read(variable: Any) -> Any:
        if isinstance(variable, Literal):
            if jnp.shape(variable.val):
                return None
            return jnp.asarray(variable.val, variable.aval.dtype)  # type: ignore[attr-defined]
        return env.get(variable)

    total: Total = 0.0
    for equation in jaxpr.eqns:
        more, results = _equation(equation, [*map(read, equation.invars)])
        total = total + more
        env |= dict(zip(equation.outvars, results, strict=True))
    return total, [*map(read, jaxpr.outvars)]


def _equation(equation: Any, known: Known) -> tuple[Total, Known]:
    name, params = equation.primitive.name, equation.params
    nothing = [None] * len(equation.outvars)
    if name == "dot_general":
        return _product(equation), nothing
    if name == "conv_general_dilated":
        return _convolution(equation), nothing
    if name == "while":
        return _while(params, known)
    if name == "scan":
        body, consts = opened(params["jaxpr"])
        of_carry = unstacked(
            equation.outvars, body.outvars
        )  # JAX 0.11 has no number of these
        of_consts = unstacked(equation.invars, body.invars) - of_carry
        kept = _kept(body, of_consts, known[of_consts : of_consts + of_carry])
        rows = [None] * (len(known) - of_consts - of_carry)
        inside, _ = _count(body, consts, [*known[:of_consts], *kept, *rows])
        return params["length"] * inside, [*kept, *nothing[of_carry:]]
    if name == "cond":
        counted = [_count(*opened(branch), known[1:])[0] for branch in params["branches"]]
        if all(
            isinstance(inside, float) for inside in counted
        ):  # the longest branch, if unknown
            counted = [max(counted)] if known[0] is None else counted  # type: ignore[type-var]
        totals = jnp.stack([jnp.asarray(inside, float) for inside in counted])
        return totals.max() if known[0] is None else totals[
            known[0].astype(jnp.int32)
        ], nothing
    inner = [*inner_jaxprs(params.values())]
    if inner:
        body, consts = opened(inner[0])
        takes = known if len(body.invars) == len(known) else [None] * len(body.invars)
        inside, results = _count(body, consts, takes)
        return inside, results if len(results) == len(nothing) else nothing
    of_scalars = not any(v.aval.shape for v in equation.outvars) and not equation.effects
    if known and of_scalars and not any(value is None for value in known):
        results = equation.primitive.bind(*known, **params)
        return 0.0, results if equation.primitive.multiple_results else [results]
    return 0.0, nothing


def _kept(body: Jaxpr, first: int, carry: Known) -> list[Array | None]:
    """Entries of a carry that are known in every trip, as the body returns them unchanged."""
    entries = zip(carry, body.invars[first:], body.outvars, strict=False)
    return [value if variable is out else None for value, variable, out in entries]


def _while(params: Any, known: Known) -> tuple[Total, Known]:
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    carry = known[of_cond + of_body :]
    body, consts = opened(params["body_jaxpr"])
    kept = _kept(body, of_body, carry)
    inside, _ = _count(body, consts, [*known[of_cond : of_cond + of_body], *kept])
    if isinstance(inside, float) and not inside:
        return 0.0, kept
    trips = _trips(params, body, known[:of_cond], carry, kept)
    if trips is None:
        raise _UnknownLengthError
    return trips * inside, kept


def _trips(
    params: Any, body: Jaxpr, consts: Known, carry: Known, kept: Known
) -> Array | None:
    """() float: trip count of a loop that counts up by one to a bound; None for other loops."""
    cond, _ = opened(params["cond_jaxpr"])
    if [equation.primitive.name for equation in cond.eqns] != ["lt"]:
        return None
    counter, bound = cond.eqns[0].invars
    place = next(
        (i for i, v in enumerate(cond.invars[len(consts) :]) if v is counter), None
    )
    start = None if place is None else carry[place]
    if place is None or start is None:
        return None
    values: dict[Any, Any] = dict(zip(cond.invars, [*consts, *kept], strict=True))
    end = jnp.asarray(bound.val) if isinstance(bound, Literal) else values.get(bound)
    before, after = body.invars[params["body_nconsts"] + place], body.outvars[place]
    steps = [equation for equation in body.eqns if after in equation.outvars]
    counts = steps and steps[0].primitive.name == "add" and before in [*steps[0].invars]
    ones = (
        [v for v in steps[0].invars if isinstance(v, Literal) and v.val == 1]
        if counts
        else []
    )
    if end is None or not ones:
        return None
    return jnp.maximum(end - start.astype(end.dtype), 0).astype(float)


def _product(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return 2.0 * inner * equation.outvars[0].aval.size


def _convolution(equation: Any) -> float:
    """2 * products of an entry of the image with one of the kernel, without padding and holes."""
    p, (image, kernel) = equation.params, (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    of_image, of_kernel, of_out = p["dimension_numbers"]
    pairs = 1.0
    for axis, (stride, (low, _), hole, spread) in enumerate(
        zip(
            p["window_strides"],
            p["padding"],
            p["lhs_dilation"],
            p["rhs_dilation"],
            strict=True,
        ),
        start=2,
    ):
        first = np.arange(out[of_out[axis]]) * stride - low
        place = first[:, None] + np.arange(kernel[of_kernel[axis]]) * spread
        pairs *= float(
            np.sum(
                (place >= 0)
                & (place <= (image[of_image[axis]] - 1) * hole)
                & (place % hole == 0)
            )
        )
    return 2.0 * pairs * out[of_out[0]] * out[of_out[1]] * kernel[of_kernel[1]]
