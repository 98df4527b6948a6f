"""HetLoRA and FlexLoRA against NumPy, against FedAvg of LoRA, and their costs by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine import counted
from parts_of_models import (
    BATCH,
    EPOCHS,
    NUM_ROUNDS,
    SGD,
    clients,
    participants,
    policy,
    training,
)
from reference import lora_ranks
from reference.small import (
    Run,
    assert_close,
    federation,
    model,
    prepared,
    refused,
    scripted,
    simulate,
)
from setting import by_layer

import fedjax_srp as srp

RANKS, SCALING = (1, 2, 3), 1.5
PLAIN = SGD._replace(decay=0.0)


@pytest.mark.short("num_examples-sparsity", "num_examples-svd")
@pytest.mark.parametrize("aggregation", ["sparsity", "zero_padding", "svd"])
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
def test_ranks_are_cut_out_trained_and_averaged(aggregation, weighting):
    with jax.enable_x64(True):
        of_clients = clients()
        split_model = model(dtype=jnp.float64)
        adapted = srp.models.lora(split_model, scaling=SCALING)
        options = adapted, training(weighting, PLAIN), RANKS
        if aggregation == "svd":
            algorithm = srp.algorithms.FlexLoRA(*options)
        else:
            algorithm = srp.algorithms.HetLoRA(*options, aggregation)
        run = Run(algorithm, federation(of_clients), policy())
        params = jax.tree.map(np.asarray, run.host_state().server.params)
        base = by_layer(split_model, params.representation)
        for t in range(NUM_ROUNDS):
            parts, weights = [], []
            for each in participants(t, of_clients, weighting):
                rank = RANKS[min(each.work, 3) - 1]
                matrices = base, params.head, rank, SCALING
                examples = each.x, each.y, each.rows, PLAIN
                parts.append(lora_ranks.client(*matrices, *examples))
                weights.append(each.weight)
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
                    largest = np.abs(pair["a"]).argmax(axis=0)
                    assert (pair["a"][largest, range(3)] > 0).all()
            else:
                expected = lora_ranks.hetlora(
                    parts, weights, RANKS[-1], aggregation == "sparsity"
                )
                assert_close(params.head, expected, 1e-9)
            assert_close(by_layer(split_model, params.representation), base, 0)


def test_equal_ranks_are_fedavg_of_lora():
    with jax.enable_x64(True):
        data = federation(clients())
        frozen = srp.models.lora(model(dtype=jnp.float64), rank=2, is_frozen=True)
        options = {"training": training("num_examples", PLAIN)}
        algorithms = (
            srp.algorithms.HetLoRA(
                frozen, ranks=(2, 2, 2), aggregation="zero_padding", **options
            ),
            srp.algorithms.FedAvg(frozen, **options),
        )
        policies = policy(), policy([[1] * 5] * NUM_ROUNDS)
        params = []
        for algorithm, participation in zip(algorithms, policies, strict=True):
            run = Run(algorithm, data, participation)
            run.rounds(NUM_ROUNDS)
            params.append(run.host_state().server.params)
        assert_close(params[0], params[1], 1e-12)


def test_products_of_a_single_client_are_kept():
    """One client of the whole rank: the server's factors have the product that it sent."""
    with jax.enable_x64(True):
        data = federation(clients())
        found = []
        for cls in (srp.algorithms.FlexLoRA, srp.algorithms.HetLoRA):
            algorithm = cls(model(dtype=jnp.float64), training(sgd=PLAIN), ranks=(5,))
            run = Run(algorithm, data, scripted([[2]], [1], [[1]]))
            run.rounds()
            found.append(lora_ranks.products_of(run.host_state().server.params.head))
        assert_close(*found, 1e-9)  # "out" is 4 x 4: the fifth rank is zeros


def test_clients_without_a_step_change_nothing():
    data = federation(clients(np.float32))
    algorithm = srp.algorithms.HetLoRA(model(), srp.Training(epochs=0))
    run = Run(algorithm, data, policy())
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
        run = prepared(
            cls(net, training(sgd=PLAIN), ranks=RANKS), data, clock=counted.UNIT
        )
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


def test_the_share_of_a_client_is_that_of_its_rank():
    work = [[1, 2, 3, 1, 1]]
    policy = scripted([[0, 1, 2, 3, 4]], [5], work)
    data = federation(clients(np.float32))
    algorithm = srp.algorithms.HetLoRA(model(), training(), RANKS)
    history = simulate(algorithm, data, 1, participation=policy)
    share = np.mean(np.array(RANKS)[np.array(work) - 1]) / max(RANKS)
    np.testing.assert_allclose(history.metrics["message_share"], share, rtol=1e-6)


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
