"""The transformer against NumPy, next tokens as data, and LoRA in federated training."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import (
    ALGORITHMS,
    KEY,
    assert_close,
    assert_same_bits,
    clients_of,
    federation,
    prepared,
    refused,
)
from reference.small import model as small_mlp

import fedjax_srp as srp
from fedjax_srp import Examples

LENGTH, VOCABULARY = 6, 9
MODEL = srp.models.GPT((LENGTH,), VOCABULARY, embedding=8, blocks=2, heads=2)


def params_of(model, key=KEY):
    """Return random parameters, none of them 0 or 1."""
    leaves, structure = jax.tree.flatten(jax.jit(model.init)(key))
    noise = [
        0.3 * jax.random.normal(jax.random.key(i), leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(
        structure, [leaf + more for leaf, more in zip(leaves, noise, strict=True)]
    )


def normalised(x, layer):
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return unit * layer["scale"] + layer["bias"]


def dense(x, layer):
    return x @ layer["kernel"] + layer["bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gpt(layers, tokens, heads=2):
    """Return the logits of one sequence, computed position by position and head by head."""
    x = layers["embedding"]["embedding"][tokens] + layers["embedding"]["positions"]
    for name in ("block1", "block2"):
        layer, width = layers[name], x.shape[-1]
        q, k, v = np.split(dense(normalised(x, layer["norm1"]), layer["qkv"]), 3, axis=-1)
        mixed = np.zeros_like(x)
        for h in range(heads):
            of = slice(h * width // heads, (h + 1) * width // heads)
            for place in range(len(x)):
                scores = q[place, of] @ k[: place + 1, of].T / np.sqrt(width // heads)
                mixed[place, of] = softmax(scores) @ v[: place + 1, of]
        x = x + dense(mixed, layer["mix"])
        x = x + dense(
            gelu(dense(normalised(x, layer["norm2"]), layer["up"])), layer["down"]
        )
    return dense(normalised(x, layers["norm"]), layers["out"])


def test_it_agrees_with_numpy():
    params = params_of(MODEL)
    tokens = (
        np.random.default_rng(0).integers(0, VOCABULARY, (3, LENGTH)).astype(np.int32)
    )
    layers = jax.tree.map(np.asarray, {**params.representation, **params.head})
    expected = np.stack([gpt(layers, row) for row in tokens])
    logits = jax.jit(MODEL.logits)
    assert_close(np.asarray(logits(params, tokens)), expected.astype(np.float32), 1e-5)


def test_positions_do_not_depend_on_later_ones_and_padding_has_no_loss():
    params, tokens = params_of(MODEL), np.arange(1, LENGTH + 1, dtype=np.int32)[None]
    other = tokens.copy()
    other[0, 4:] = (0, 7)
    one, two = (np.asarray(jax.jit(MODEL.logits)(params, x))[0] for x in (tokens, other))
    np.testing.assert_array_equal(one[:4], two[:4])
    assert np.abs(one[4:] - two[4:]).min() > 0
    labels = np.array([[2, 3, 4, 5, 0, 0]], np.int32)
    losses = -np.log(softmax(one)[np.arange(4), labels[0, :4]])
    np.testing.assert_allclose(
        MODEL.loss(jnp.asarray(one)[None], jnp.asarray(labels))[0],
        losses.mean(),
        rtol=1e-5,
    )


def sequences(seed=0, counts=(5, 3, 8)):
    """Return sequences that count by the client's own step, so that each token follows from the previous one."""
    rng, found = np.random.default_rng(seed), []
    for step, count in enumerate(counts, 1):
        starts = rng.integers(0, VOCABULARY - 1, (count, 1))
        found.append(1 + (starts + step * np.arange(LENGTH + 1)) % (VOCABULARY - 1))
    found[0][0, 4:] = 0
    return found


DATA = srp.data.next_tokens(
    sequences(), sequences(1), num_classes=VOCABULARY, name="counting"
)


def test_next_tokens_are_inputs_and_labels():
    for client, own in enumerate(sequences()):
        examples = DATA.train_client(jnp.int32(client))
        np.testing.assert_array_equal(examples.x[: len(own)], own[:, :-1])
        np.testing.assert_array_equal(examples.y[: len(own)], own[:, 1:])
        assert int(examples.count) == len(own)
    assert (DATA.example_shape, DATA.num_classes, DATA.num_clients) == (
        (LENGTH,),
        VOCABULARY,
        3,
    )


def test_a_score_counts_tokens_and_no_padding():
    y = jnp.asarray([[1, 2, 0], [3, 4, 5], [5, 5, 5]], jnp.int32)
    outputs = (
        jax.nn.one_hot(jnp.asarray([[1, 3, 0], [3, 4, 5], [5, 5, 5]]), VOCABULARY)
        .at[1, 2, 5]
        .set(jnp.nan)
    )
    right, asked = DATA.score(lambda x: outputs, Examples(y, y, jnp.int32(2)))
    assert (float(right), float(asked)) == (3, 5)


def test_data_that_are_no_sequences_of_tokens_are_refused():
    one = [np.ones((2, 4), int)]
    with refused("train lists 1 clients and test 2"):
        srp.data.next_tokens(one, one * 2)
    with refused(r"train\[0\]: has values that are not tokens"):
        srp.data.next_tokens([np.ones((2, 4))], one)


# LoRA.


def test_lora_starts_as_its_base_and_adds_a_product():
    model = srp.models.lora(MODEL, rank=2, scaling=0.5, layers=("block1", "out"))
    params, tokens = model.init(KEY), DATA.x_train[:3]
    assert set(params.head) == {"out/kernel"} | {
        f"block1/{name}/kernel" for name in ("qkv", "mix", "up", "down")
    }
    start = MODEL.init(KEY)
    assert_same_bits({**start.representation, **start.head}, params.representation)
    logits, of_base = jax.jit(model.logits), jax.jit(MODEL.logits)
    assert_close(logits(params, tokens), of_base(start, tokens), 1e-5)
    a, b = (
        np.random.default_rng(0).normal(size=(8, 2)),
        np.random.default_rng(1).normal(size=(2, VOCABULARY)),
    )
    matrices = {"a": jnp.asarray(a, jnp.float32), "b": jnp.asarray(b, jnp.float32)}
    changed = params._replace(head=params.head | {"out/kernel": matrices})
    kernel = jnp.asarray(start.head["out"]["kernel"] + 0.5 * a @ b, jnp.float32)
    expected = start._replace(head={"out": start.head["out"] | {"kernel": kernel}})
    assert_close(logits(changed, tokens), of_base(expected, tokens), 1e-5)


def changes(tree, start):
    """Return the largest change of any entry."""
    moved = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), tree, start
    )
    return max(jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("name", "is_frozen"),
    [
        ("fedrep", False),
        *(
            pytest.param(name, True, marks=pytest.mark.long)
            for name in ("fedper", "lg_fedavg")
        ),
    ],
)
def test_either_part_may_be_personal_and_the_base_frozen(name, is_frozen):
    small = dataclasses.replace(MODEL, blocks=1)
    pretrained = params_of(small)
    model = srp.models.lora(small, rank=2, is_frozen=is_frozen, pretrained=pretrained)
    method = srp.methods.get(
        name, dataset=DATA, model=model, learning_rate=0.3, batch_size=4
    )
    simulation = srp.Simulation(
        method.algorithm, DATA, participation=method.participation
    )
    state, step = jax.jit(simulation.init)(KEY), jax.jit(simulation.step)
    for _ in range(2):
        state, _ = step(state)
    start = model.init(KEY)
    base = {**pretrained.representation, **pretrained.head}
    assert_same_bits(start.representation, base)
    of_base, of_matrices = (
        changes(state.server.representation, base),
        changes(state.server.head, start.head),
    )
    assert (of_base < 1e-6) == is_frozen  # a mean of equal numbers is rounded
    assert of_matrices > 1e-4


def test_pretrained_parameters_are_no_constants_of_the_program():
    one, other = (
        srp.models.lora(MODEL, pretrained=params_of(MODEL, jax.random.key(i)))
        for i in (0, 1)
    )
    assert one != other
    assert jax.tree.structure(one) == jax.tree.structure(other)


def test_a_base_under_trained_lora_matrices_keeps_its_batch_norm():
    """Heads train on the function that is evaluated, as for a model whose representation has BatchNorm."""
    layers = [
        srp.models.Layer("norm", nn.BatchNorm()),
        srp.models.Layer("out", nn.Dense(2)),
    ]
    model = srp.models.lora(srp.models.Split((3,), 2, layers), rank=1)
    params, key = model.init(jax.random.key(0)), jax.random.key(1)
    body, head = params
    x = 2 + jax.random.normal(key, (5, 3))
    trained = model.classify(head, model.rest(body, model.stem(body, x), key), key)
    np.testing.assert_array_equal(trained, model.logits(params, x))
    # the base is trained too
    assert not np.allclose(model.logits(params, x, key), trained)


def test_methods_that_need_features_refuse_lora():
    model, data = (
        srp.models.lora(small_mlp(), rank=1),
        federation(clients_of([3, 2], [1, 1])),
    )
    for name in ("fedas", "fedcp", "fedpac", "fedproto", "gpfl", "knn_per", "moon"):
        with refused(f"{name} needs features, but model 'lora'.*; choose another model"):
            prepared(ALGORITHMS[name](model), data, evaluations="all", devices=1)
