"""FedAvg's round with the first dense layer in the dual: no client's first layer is ever formed.

    python benchmarks/dual_first_layer.py [--repeats 7] [--clients 100] [--momentum 0.5] [--out FILE.json]

A step of SGD changes the first layer W of a client by X_B^T dz: X_B are the inputs of its batch, dz the gradient at
that layer's outputs. So a client that began at W0 always has c W0 + X^T D with a number c and an array D of a row an
example, and its outputs are c X W0 + (X X^T) D. With m examples in d dimensions and h outputs D has m h numbers where
W has d h. Momentum and weight decay are linear and change c and D alone. The mean over all clients is
mean(c) W0 + X^T D / N, one product in which X and D hold the examples of all of them.

It is exact, which the script shows in double precision first, and only a benchmark: an algorithm of the package is
written for one client that has its weights. Then rounds of the engine's FedAvg and these are timed in turn: medians,
quartiles, ratios pair by pair, compile time apart; bytes and operations of the first layer are counted, not measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness.measure import Rounds, in_turn, machine, seconds, summary, synthetic

import fedjax_srp as srp
from fedjax_srp.algorithms.local import _shuffled, _steps_per_epoch  # the engine's batches
from fedjax_srp.base import Array, Key, PyTree, named_key
from fedjax_srp.engine.round import stream
from fedjax_srp.engine.sharding import lay_out, spread, total
from fedjax_srp.loops import batch_max
from fedjax_srp.models import SplitModel


class Training(NamedTuple):
    """SGD of a client in a round."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 10
    epochs: int = 1

    def sgd(self) -> srp.SGD:
        """As the engine has it."""
        return srp.SGD(self.learning_rate, self.momentum or None, self.weight_decay or None)


class Trained(NamedTuple):
    """A client after its training; its first layer is `scale` W0 + X^T `rows`."""

    scale: Array  # () c
    rows: Array  # (m, h) D
    others: PyTree  # every other parameter


class Steps(NamedTuple):
    """What changes from step to step."""

    scale: Array  # () c
    rows: Array  # (m, h) D
    velocity_scale: Array  # () e: the momentum of the first layer is e W0 + X^T E
    velocity_rows: Array  # (m, h) E
    others: PyTree
    optimizer: PyTree  # state of the others'


def split_first(params: PyTree) -> tuple[Array, PyTree]:
    """The kernel (d, h) of the first layer, and every other parameter by layer."""
    layers = {**params.representation, **params.head}
    kernel = layers["fc1"]["kernel"]
    return kernel, layers | {"fc1": {"bias": layers["fc1"]["bias"]}}


def joined(kernel: Array, others: PyTree, params: PyTree) -> PyTree:
    """What `split_first` took apart, in the containers of `params`."""
    layers = others | {"fc1": {"kernel": kernel, **others["fc1"]}}
    parts = [{name: layers[name] for name in part} for part in (params.representation, params.head)]
    return type(params)(*parts)


def _logits(others: PyTree, outputs: Array) -> Array:
    """The rest of the network, from what the first layer's product gives."""
    below = jax.nn.relu(outputs + others["fc1"]["bias"][None])
    for name in sorted(name for name in others if name not in ("fc1", "out")):
        below = jax.nn.relu(below @ others[name]["kernel"] + others[name]["bias"][None])
    return below @ others["out"]["kernel"] + others["out"]["bias"][None]


def train(
    model: SplitModel, training: Training, key: Key, kernel: Array, others: PyTree, examples: Any, alone: bool
) -> Trained:
    """One client's local training, with the batches that the engine's FedAvg draws.

    Args:
        model: an MLP.
        training: how.
        key: of the client in this round.
        kernel: (d, h) W0.
        others: every other parameter, as `split_first` gives them.
        examples: of the client; x (m, ...), y (m,), count ().
        alone: whether no vmap is around this, so that no step of a smaller client has to be masked.
    """
    capacity = examples.y.shape[0]
    batch_size = min(training.batch_size, capacity)
    x = examples.x.reshape(capacity, -1)
    start, gram = x @ kernel, x @ x.T  # X W0, X X^T
    optimizer, dtype = training.sgd(), kernel.dtype
    number = functools.partial(jnp.asarray, dtype=dtype)
    rate, momentum, decay = map(number, (training.learning_rate, training.momentum, training.weight_decay))
    steps_per_epoch = _steps_per_epoch(training.batch_size, examples)
    position = jnp.arange(batch_size, dtype=jnp.int32)

    def step(s: Array, order: Array, now: Steps) -> Steps:
        rows = jax.lax.dynamic_slice(order, (s * batch_size,), (batch_size,))
        valid = s * batch_size + position < examples.count
        rows = jnp.where(valid, rows, rows[0])
        weights = valid.astype(dtype) / jnp.maximum(jnp.sum(valid.astype(dtype)), 1)

        def objective(others: PyTree, outputs: Array) -> Array:
            return jnp.sum(weights * model.loss(_logits(others, outputs), examples.y[rows]))

        # z = X_B W = c X_B W0 + (X_B X^T) D
        outputs = now.scale * start[rows] + gram[rows] @ now.rows
        gradient, slope = jax.grad(objective, (0, 1))(now.others, outputs)
        updates, state = optimizer.update(gradient, now.optimizer, now.others)
        # V <- mu V + X_B^T dz + lambda W, W <- W - eta V, both in terms of W0 and X^T
        velocity_scale = momentum * now.velocity_scale + decay * now.scale
        if training.momentum or training.weight_decay:
            velocity_rows = (momentum * now.velocity_rows + decay * now.rows).at[rows].add(slope)
            moved = now.rows - rate * velocity_rows
        else:
            velocity_rows, moved = now.velocity_rows, now.rows.at[rows].add(-rate * slope)
        new = Steps(
            now.scale - rate * velocity_scale,
            moved,
            velocity_scale,
            velocity_rows,
            optax.apply_updates(now.others, updates),
            state,
        )
        active = s < steps_per_epoch
        return new if alone else jax.tree.map(lambda n, o: jnp.where(active, n, o), new, now)

    def epoch(e: Array, now: Steps) -> Steps:
        order = _shuffled(jax.random.fold_in(key, e), examples.count, batch_size, capacity)
        return jax.lax.fori_loop(jnp.int32(0), batch_max(steps_per_epoch), lambda s, n: step(s, order, n), now)

    zero, rows = number(0), jnp.zeros_like(start)
    unused = rows if training.momentum or training.weight_decay else jnp.zeros((0,), dtype)
    now = Steps(number(1), rows, zero, unused, others, optimizer.init(others))
    end = jax.lax.fori_loop(jnp.int32(0), jnp.int32(training.epochs), epoch, now)
    return Trained(end.scale, end.rows, end.others)


class DualRounds:
    """Compiled FedAvg rounds of everybody; a call runs one and waits.

    Args:
        model: an MLP, whose layers are fc1, fc2, ... and out.
        data: of the clients; examples of one client must not be more than it has room for, as everywhere.
        training: how clients train.
        chunk: clients that train at once on each device; 1: one after the other.

    Raises:
        ValueError: clients that cannot be dealt out evenly to the devices and chunks.
    """

    def __init__(self, model: SplitModel, data: Any, training: Training, chunk: int = 1):
        num_clients = data.num_clients
        layout = lay_out(None, chunk, num_clients)
        each = num_clients // layout.num_devices
        if each * layout.num_devices != num_clients or each % chunk:
            raise ValueError(
                f"chunk={chunk}: {num_clients} clients on {layout.num_devices} devices cannot be dealt out in such "
                "chunks; give other numbers"
            )

        def one_round(root: Key, index: Array, params: PyTree, data: Any, ids: Array) -> PyTree:
            kernel, others = split_first(params)
            key = named_key(stream(root, "training", index), "round")

            def client(client_id: Array) -> tuple[Trained, Array]:
                examples = data.train_client(client_id)
                key_client = named_key(jax.random.fold_in(key, client_id), "local")
                trained = train(model, training, key_client, kernel, others, examples, alone=chunk == 1)
                return trained, examples.x.reshape(examples.y.shape[0], -1)

            def serve(sums: PyTree, ids: Array) -> tuple[PyTree, tuple[Array, Array]]:
                if chunk == 1:
                    trained, x = jax.tree.map(lambda leaf: leaf[None], client(ids[0]))
                else:
                    trained, x = jax.vmap(client)(ids)
                new = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), (trained.scale, trained.others))
                return jax.tree.map(jnp.add, sums, new), (trained.rows, x)

            zeros = jnp.zeros((), kernel.dtype), jax.tree.map(jnp.zeros_like, others)
            sums, (rows, x) = jax.lax.scan(serve, zeros, ids.reshape(-1, chunk))
            # sum_i X_i^T D_i over all clients of this device, by one product
            product = x.reshape(-1, x.shape[-1]).T @ rows.reshape(-1, rows.shape[-1])
            (scale, others), product = total(layout, (sums, product))
            mean = jax.tree.map(lambda leaf: leaf / num_clients, others)
            return joined((scale * kernel + product) / num_clients, mean, params)

        self.root, self.round, self.data = jax.random.key(0), 0, data
        self.ids = jax.device_put(jnp.arange(num_clients, dtype=jnp.int32), layout.sharding(by_client=True))
        self.params = model.init(named_key(named_key(self.root, "server"), "init"))
        arguments = jax.device_put((self.root, jnp.int32(0), self.params, data), layout.sharding())
        self.root, _, self.params, self.data = arguments
        begin = time.perf_counter()
        spread_round = spread(one_round, layout, (False, False, False, _replicated(data), True), False)
        self._run = jax.jit(spread_round).lower(*arguments, self.ids).compile()
        self.compile_seconds = time.perf_counter() - begin
        self._index = lambda: jax.device_put(jnp.int32(self.round), layout.sharding())

    def __call__(self) -> None:
        """Runs a round and waits."""
        new = self._run(self.root, self._index(), self.params, self.data, self.ids)
        self.params, self.round = jax.block_until_ready(new), self.round + 1


def _replicated(data: Any) -> Any:
    return jax.tree.map(lambda leaf: False, data)


def difference(ours: PyTree, theirs: PyTree, begin: PyTree) -> float:
    """The largest difference between two states, as a part of the largest move from where both began."""
    apart, moved = (
        max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))
        for left, right in ((ours, theirs), (theirs, begin))
    )
    return apart / moved


def exactness(
    counts: Sequence[int], training: Training, rounds: int = 2, hidden: tuple[int, ...] = (12, 6), chunk: int = 1
) -> float:
    """How far these rounds are from the engine's in double precision, as a part of how far parameters moved.

    Args:
        counts: examples of each client, on all devices; `len(counts)` must be a multiple of their number.
        training: how clients train.
        rounds: that are compared.
        hidden: widths of the model, for images of 6 x 6.
        chunk: clients at once.
    """
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(sum(counts), 6, 6)), rng.integers(0, 10, sum(counts))
        own = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
        x_test, y_test, judged = rng.normal(size=(len(counts), 6, 6)), y[: len(counts)], np.arange(len(counts))
        indices: dict[str, Any] = {"train_indices": own, "test_indices": judged[:, None]}
        data = srp.data.from_arrays(x, y, x_test, y_test, **indices, num_classes=10)
        model = srp.models.MLP((6, 6), 10, hidden, dtype=jnp.float64)
        dual, engine = _both(model, data, training, chunk)
        begin = dual.params
        for call in range(rounds):
            dual()
            if call:  # the engine has run one already
                engine()
        return difference(dual.params, engine.state.server.params, begin)


def _both(model: SplitModel, data: Any, training: Training, chunk: int) -> tuple[DualRounds, Rounds]:
    algorithm = srp.algorithms.FedAvg(
        model, srp.Training(training.sgd(), batch_size=training.batch_size, epochs=training.epochs)
    )
    return DualRounds(model, data, training, chunk), Rounds(algorithm, data)


def counted(examples: int, inputs: int, outputs: int, training: Training) -> dict[str, float]:
    """Bytes and operations of a client's first layer in a round, in single precision, at the least.

    Plain: a step reads the weights forwards, and reads and writes them (and the momentum) in the update. In the dual:
    a step reads all rows of D, a batch's rows of X X^T and of X W0, and writes a batch's rows of D (all of them, and
    those of the momentum, where there is momentum or decay); X is read for X W0, X X^T and the mean.
    """
    m, d, h, b = examples, inputs, outputs, min(training.batch_size, examples)
    steps = training.epochs * math.ceil(m / b)
    full = bool(training.momentum or training.weight_decay)
    plain = steps * d * h * (5 if training.momentum else 3)
    written = m * h * (4 if training.momentum else 2) if full else 2 * b * h
    dual = steps * (m * h + b * m + b * h + written) + 3 * m * d + 2 * m * h + m * m
    return {
        "plain_bytes": 4.0 * plain,
        "dual_bytes": 4.0 * dual,
        "plain_operations": 4.0 * training.epochs * m * d * h,
        "dual_operations": 4.0 * m * d * h + 2.0 * m * m * d + 2.0 * steps * b * m * h,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=150)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256, 64])
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--chunk", type=int, help="clients at once a device (default: 1 on a CPU, all elsewhere)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    srp.use_all_cores()
    training = Training(momentum=args.momentum, weight_decay=args.weight_decay, epochs=args.epochs)
    on_cpu, devices = jax.default_backend() == "cpu", jax.device_count()
    sizes = [int(count) for count in np.random.default_rng(1).integers(3, 40, 4 * devices)]
    exact = {
        f"momentum {tried.momentum:g}, decay {tried.weight_decay:g}": exactness(sizes, tried)
        for tried in (Training(epochs=2), Training(momentum=0.5, weight_decay=1e-3, epochs=2))
    }
    for what, apart in exact.items():
        print(f"double precision, {what}: {apart:.1e} of the move apart from the engine's FedAvg", flush=True)
    data = synthetic(args.clients, args.examples, tests=1)
    model = srp.models.MLP(data.example_shape, 10, tuple(args.hidden))
    chunk = args.chunk or (1 if on_cpu else args.clients // devices)
    dual, engine = _both(model, data, training, chunk)
    begin = jax.device_get(dual.params)
    dual()
    single = difference(jax.device_get(dual.params), jax.device_get(engine.state.server.params), begin)
    for _ in range(2):
        dual()
        engine()
    contenders = {"engine": functools.partial(seconds, engine), "dual": functools.partial(seconds, dual)}
    times = in_turn(contenders, args.repeats)
    ratios = [plain / other for plain, other in zip(times["engine"], times["dual"], strict=True)]
    results = {
        "machine": machine(),
        "clients": args.clients,
        "examples": args.examples,
        "hidden": args.hidden,
        "training": training._asdict(),
        "chunk_of_the_engine": engine.layout.chunk_size,
        "chunk_of_the_dual": chunk,
        "apart_in_double_precision": exact,
        "apart_in_single_precision": single,
        "seconds": {name: summary(each) for name, each in times.items()},
        "engine_over_dual": summary(ratios),
        "compile_seconds": {"engine": engine.compile_seconds, "dual": dual.compile_seconds},
        "first_layer_of_a_client_counted": counted(
            args.examples, math.prod(data.example_shape), args.hidden[0], training
        ),
    }
    ratio, (low, high) = results["engine_over_dual"]["median"], results["engine_over_dual"]["quartiles"]
    ours, theirs = (results["seconds"][name]["median"] for name in ("dual", "engine"))
    print(f"a round: engine {theirs:.3g} s, dual {ours:.3g} s, ratio {ratio:.2f} ({low:.2f} to {high:.2f})")
    print(f"single precision: {single:.1e} of the move apart after a round")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
