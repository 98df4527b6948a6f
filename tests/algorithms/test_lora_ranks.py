"""HetLoRA and FlexLoRA against NumPy, against FedAvg of LoRA, and their costs by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine import counted
from recorded_orders import RecordedOrders
from reference import lora_ranks
from reference.local import Sgd, batches, weight
from reference.small import (
    KEY,
    Run,
    assert_close,
    clients_of,
    federation,
    model,
    prepared,
    refused,
    scripted,
)
from setting import by_layer

import fedjax_srp as srp

COUNTS, TEST_COUNTS = (4, 3, 7, 5, 8), (2, 2, 2, 2, 2)
BATCH, EPOCHS, SGD = 3, 2, Sgd(0.3, momentum=0.5)
IDS, SIZES = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 3, 4, 0, 2]], [4, 2, 3]
WORK = [[3, 1, 2, 1, 1], [1, 2, 1, 1, 1], [1, 9, 2, 1, 1]]
RANKS, SCALING = (1, 2, 3), 1.5


def training(weighting="uniform"):
    optimizer = srp.SGD(SGD.step, SGD.momentum)
    return srp.Training(optimizer, batch_size=BATCH, epochs=EPOCHS, weighting=weighting)


def trained_by_hand(t, size, base, matrices, clients, orders):
    """The participants' matrices in round t."""
    parts = []
    for i, work in zip(IDS[t][:size], WORK[t][:size], strict=True):
        rank = RANKS[min(work, 3) - 1]
        rows = [*batches(orders.epochs(t, i, "local", EPOCHS), BATCH)]
        of_client = clients[i].x, clients[i].y, rows, SGD
        parts.append(lora_ranks.client(base, matrices, rank, SCALING, *of_client))
    return parts


@pytest.mark.short("num_examples-sparsity", "num_examples-svd")
@pytest.mark.parametrize("aggregation", ["sparsity", "zero_padding", "svd"])
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_ranks_are_cut_out_trained_and_averaged(aggregation, weighting):
    with jax.enable_x64(True):
        clients = clients_of(COUNTS, TEST_COUNTS, dtype=np.float64)
        split_model = model(dtype=jnp.float64)
        adapted = srp.models.lora(split_model, scaling=SCALING)
        if aggregation == "svd":
            algorithm = srp.algorithms.FlexLoRA(adapted, training(weighting), RANKS)
        else:
            algorithm = srp.algorithms.HetLoRA(
                adapted, training(weighting), RANKS, aggregation
            )
        run = Run(algorithm, federation(clients), scripted(IDS, SIZES, WORK))
        params = jax.tree.map(np.asarray, run.host_state().server.params)
        base = by_layer(split_model, params.representation)
        orders = RecordedOrders(KEY, COUNTS, BATCH)
        for t, size in enumerate(SIZES):
            parts = trained_by_hand(t, size, base, params.head, clients, orders)
            weights = [weight(weighting, clients[i]) for i in IDS[t][:size]]
            run.rounds()
            params = jax.tree.map(np.asarray, run.host_state().server.params)
            if aggregation == "svd":
                products = lora_ranks.mean_products(parts, weights)
                # the simulator's factors go on: those of NumPy have other signs
                found = lora_ranks.products_of(params.head)
                assert_close(found, lora_ranks.nearest(products, RANKS[-1]), 1e-9)
                for pair in params.head.values():
                    columns = pair["a"].T @ pair["a"]
                    np.testing.assert_allclose(columns, np.eye(3), atol=1e-9)
            else:
                expected = lora_ranks.hetlora(
                    parts, weights, RANKS[-1], aggregation == "sparsity"
                )
                assert_close(params.head, expected, 1e-9)
            assert_close(by_layer(split_model, params.representation), base, 0)


def test_equal_ranks_are_fedavg_of_lora():
    with jax.enable_x64(True):
        data = federation(clients_of(COUNTS, TEST_COUNTS, dtype=np.float64))
        frozen = srp.models.lora(model(dtype=jnp.float64), rank=2, is_frozen=True)
        options = {"training": training("num_examples")}
        algorithms = (
            srp.algorithms.HetLoRA(
                frozen, ranks=(2, 2, 2), aggregation="zero_padding", **options
            ),
            srp.algorithms.FedAvg(frozen, **options),
        )
        works = WORK, [[1] * 5] * 3
        params = []
        for algorithm, work in zip(algorithms, works, strict=True):
            run = Run(algorithm, data, scripted(IDS, SIZES, work))
            for _ in SIZES:
                run.rounds()
            params.append(run.host_state().server.params)
        assert_close(params[0], params[1], 1e-12)


def test_products_of_a_single_client_are_kept():
    """One client of the whole rank: the server's factors have the product that it sent."""
    with jax.enable_x64(True):
        data = federation(clients_of(COUNTS, TEST_COUNTS, dtype=np.float64))
        found = []
        for cls in (srp.algorithms.FlexLoRA, srp.algorithms.HetLoRA):
            algorithm = cls(model(dtype=jnp.float64), training(), ranks=(5,))
            run = Run(algorithm, data, scripted([[2]], [1], [[1]]))
            run.rounds()
            found.append(lora_ranks.products_of(run.host_state().server.params.head))
        assert_close(*found, 1e-9)  # "out" is 4 x 4: the fifth rank is zeros


def test_clients_without_a_step_change_nothing():
    data = federation(clients_of(COUNTS, TEST_COUNTS))
    algorithm = srp.algorithms.HetLoRA(model(), srp.Training(epochs=0))
    run = Run(algorithm, data, scripted(IDS, SIZES, WORK))
    before = run.host_state().server
    run.rounds()
    assert_close(run.host_state().server, before, 0)  # B is 0, and so are all norms


def test_a_rank_costs_what_is_counted_by_hand():
    counts = np.array([3, 25, 12, 9, 17])
    net, data = counted.of_model("mlp", counts)
    steps = EPOCHS * -(-counts // BATCH)
    widths = [(counted.NUM_FEATURES, 5), (5, 4), (4, counted.NUM_CLASSES)]
    operations, _ = counted.mlp(5, 4)
    shares = []
    for cls in (srp.algorithms.HetLoRA, srp.algorithms.FlexLoRA):
        run = prepared(cls(net, training(), ranks=RANKS), data, clock=counted.UNIT)
        for level, rank in enumerate(RANKS):
            # of a step: A B, and the gradients of A and B from that of the kernel
            of_matrices = sum(3 * 2 * rank * m * n for m, n in widths)
            step = BATCH * counted.of_step(operations) + of_matrices
            size = 4 * rank * sum(m + n for m, n in widths)
            expected = steps * step
            found = run.costs.operations[:, level]
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            assert run.costs.bytes_up[level] == run.costs.bytes_down[level] == size
        shares.append(run.sizes.messages)
    assert shares[0] == shares[1] == (size, size)  # those of the largest rank


def test_ranks_need_kernels_and_numbers():
    for make, says in (
        (lambda: srp.algorithms.HetLoRA(model(), ranks=()), r"ranks=\(\) is empty; give"),
        (
            lambda: srp.algorithms.FlexLoRA(
                srp.models.Split(
                    (5,),
                    3,
                    [srp.models.Layer("embed", nn.Embed(7, 3))],
                    cut=None,
                    dtype=jnp.int32,
                )
            ),
            "no dense kernel",
        ),
    ):
        with refused(says):
            make()
