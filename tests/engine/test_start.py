"""Runs that begin from a given server state, or from parameters alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, assert_same_bits, clients_of, federation, model

import fedjax_srp as srp

DATA = federation(clients_of((4, 6, 3, 8), (3,) * 4))
OPTIONS = {"num_rounds": 2, "eval_every": 2, "devices": 1, "progress": False}
TRAINING = srp.Training(srp.SGD(0.1), batch_size=3)
FEDREP = srp.algorithms.FedRep(
    model(hidden=(3,)), TRAINING, head_epochs=1, fine_tune_epochs=1
)


def simulate(algorithm, **options):
    return srp.simulate(algorithm, DATA, key=KEY, **OPTIONS | options)


@pytest.fixture(scope="module")
def earlier():
    return simulate(FEDREP)


def test_a_run_begins_from_the_final_state_of_another(earlier):
    """In every form of the state the first round is that of the pure functions, whose clients start with its head."""
    again = simulate(FEDREP, start=earlier.server_state, keep_clients=True)
    plain = jax.tree.map(
        np.asarray, earlier.server_state._asdict()
    )  # as a folder gives it
    assert_same_bits(simulate(FEDREP, start=plain).server_state, again.server_state)
    simulation = srp.Simulation(FEDREP, DATA)
    state = simulation.init(KEY, start=earlier.server_state)
    assert_same_bits(state.server, earlier.server_state)
    assert_same_bits(
        jax.tree.map(lambda leaf: leaf[2], state.clients.head), earlier.server_state.head
    )
    for _ in range(2):
        state, _ = jax.jit(simulation.step)(state)
    for ours, theirs in zip(
        jax.tree.leaves(state.server), jax.tree.leaves(again.server_state), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    with pytest.raises(AssertionError):
        assert_same_bits(again.server_state, earlier.server_state)


def test_the_start_is_part_of_the_record(earlier):
    again = simulate(FEDREP, start=earlier.server_state)
    other = simulate(FEDREP, start=again.server_state)
    starts = [run.config["start"] for run in (earlier, again, other)]
    assert starts[0] is None
    assert len({*starts}) == 3


def test_a_checkpoint_resumes_only_from_its_start(earlier, tmp_path):
    simulate(FEDREP, checkpoint_dir=tmp_path, start=earlier.server_state)
    simulate(FEDREP, checkpoint_dir=tmp_path, start=earlier.server_state)
    with pytest.raises(ValueError, match="with start="):
        simulate(
            FEDREP,
            checkpoint_dir=tmp_path,
            start=jax.tree.map(jnp.zeros_like, earlier.server_state),
        )


def test_several_seeds_begin_from_one_start(earlier):
    keys = jax.random.split(KEY, 2)
    runs = srp.simulate_seeds(
        FEDREP, DATA, keys=keys, start=earlier.server_state, **OPTIONS | {"num_rounds": 1}
    )
    alone = srp.simulate(
        FEDREP,
        DATA,
        key=keys[1],
        start=earlier.server_state,
        **OPTIONS | {"num_rounds": 1},
    )
    for ours, theirs in zip(
        jax.tree.leaves(runs[1].server_state),
        jax.tree.leaves(alone.server_state),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


PRETRAINED = model(hidden=(3,)).init(jax.random.key(5))


@pytest.mark.parametrize(
    "name", ["FedAvg", "SCAFFOLD", "FedAT", "FedSGD", "LocalOnly", "FedOpt"]
)
def test_parameters_give_the_state_of_an_algorithm_that_drew_them(name):
    """The rest of the state follows from them as in `init`."""

    @srp.part
    class Drew(getattr(srp.algorithms, name)):
        def init_params(self, key, data):
            return PRETRAINED

    start = srp.Simulation(getattr(srp.algorithms, name)(model(hidden=(3,))), DATA).init(
        KEY, start=PRETRAINED
    )
    expected = srp.Simulation(Drew(model(hidden=(3,))), DATA).init(KEY)
    for ours, theirs in zip(
        jax.tree.leaves(start[1:3]), jax.tree.leaves(expected[1:3]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_given_start_replaces_the_method_of_moments():
    task = srp.data.linear_task(KEY, 4, dim=6, rank=2)
    algorithm = srp.algorithms.LinearFedRep(task, step_size=0.1, samples_per_round=5)
    simulation = srp.Simulation(algorithm, task)
    server = algorithm.init(jax.random.key(3), task)
    assert_same_bits(simulation.init(KEY, start=server).server, server)


OTHER = model(hidden=(4,)).init(KEY)
WRONG = {
    "shape": (
        FEDREP,
        OTHER,
        r"start: representation/fc1/\w+ is float32\[.*4\], expected float32\[.*3\]",
    ),
    "PyTorch's order": (
        FEDREP,
        jax.tree.map(jnp.transpose, PRETRAINED),
        r"start: \w+/\w+/kernel is .*, expected .*: transpose it, as PyTorch's weights",
    ),
    "dtype": (
        FEDREP,
        jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PRETRAINED),
        r"start: \w+/\w+/\w+ is bfloat16\[.*expected float32\[.*: convert it by .astype\('float32'\)",
    ),
    "lacks": (
        FEDREP,
        PRETRAINED._replace(head={}),
        r"start lacks head/out/\w+, 2 in all: give .*as model.init\(key\) returns them",
    ),
    "texts": (
        FEDREP,
        jax.tree.map(lambda leaf: np.asarray(leaf).astype(str), PRETRAINED),
        r"start=.* \w+/\w+/\w+ is no array of numbers; give plain arrays",
    ),
    "masked": (
        FEDREP,
        jax.tree.map(lambda leaf: np.ma.masked_less(leaf, 0), PRETRAINED),
        r"start=.* \w+/\w+/\w+ is no array of numbers; give plain arrays",
    ),
    "not finite": (
        FEDREP,
        jax.tree.map(lambda leaf: leaf * jnp.nan, PRETRAINED),
        r"start=.* \w+/\w+/\w+ has nan or infinity.*; give finite parameters",
    ),
    "None": (FEDREP, None, 'start=None .* give "init" for what the algorithm makes'),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_start_is_refused_and_the_leaf_is_named(case):
    algorithm, start, words = WRONG[case]
    with pytest.raises(ValueError, match=words) as caught:
        simulate(algorithm, start=start)
    assert "\n" not in str(caught.value)
