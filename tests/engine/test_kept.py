"""Final states of a run: kept, saved, loaded, evaluated again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import algorithm_of, assert_same_bits, numbers, refused

import fedjax_srp as srp
from fedjax_srp import ClientOutput

DATA = numbers(3.0, -1.0, 4.0, 1.5, -5.0)


def client(key, broadcast, state, value, context):
    return ClientOutput(
        {"mean": value, "key": 0.0},
        {"sums": [state["sums"][0] + value], "key": state["key"]},
    )


def predict(key, server, state, value):
    return lambda test: 100 * server["mean"] + state["sums"][0]


# A state that contains a list and a typed key.
ALGORITHM = algorithm_of(
    client,
    init=lambda key, data: {"mean": jnp.zeros(()), "key": key},
    init_client=lambda key, server, value: {"sums": [jnp.zeros(())], "key": key},
    broadcast=lambda server, context: server["mean"],
    server=lambda key, server, mean, context: server | {"mean": mean["mean"]},
    evaluations={"sum": predict},
)


@pytest.fixture(scope="module")
def history():
    options = {"num_rounds": 3, "eval_every": 3, "devices": 2, "progress": False}
    return srp.simulate(
        ALGORITHM, DATA, key=jax.random.key(0), keep_clients=True, **options
    )


@pytest.fixture(scope="module")
def folder(history, tmp_path_factory):
    return history.save(tmp_path_factory.mktemp("kept") / "run", models=True)


def test_the_states_of_all_clients_are_kept_in_their_order(history):
    np.testing.assert_array_equal(history.client_states["sums"][0], 3 * DATA.values)
    np.testing.assert_allclose(
        history.server_state["mean"], np.mean(DATA.values), rtol=1e-6
    )
    assert history.client_states["key"].shape == (5,)


def test_saved_states_are_loaded_on_access(history, folder):
    loaded = srp.History.load(folder)
    assert not {"server_state", "client_states"} & set(vars(loaded))
    for name in ("server_state", "client_states"):
        expected = jax.tree.leaves(getattr(history, name))
        actual = jax.tree.leaves(getattr(loaded, name))
        for one, other in zip(actual, expected, strict=True):
            if jax.dtypes.issubdtype(other.dtype, jax.dtypes.prng_key):
                assert (one == other).all()
            else:
                assert_same_bits(one, other)
    with pytest.raises(AttributeError, match="server_stat"):
        loaded.server_stat  # noqa: B018


def test_saving_again_keeps_the_models_and_another_run_replaces_them(
    history, folder, tmp_path
):
    place = history.save(tmp_path / "run", models=True)
    srp.History.load(place).save(place)
    assert srp.History.load(place).client_states is not None
    srp_history = srp.History.load(folder)
    srp_history.save(place)  # without its models, which are elsewhere
    assert srp.History.load(place).server_state is None
    with pytest.raises(ValueError, match="models=True: this history has no server_state"):
        srp.History.load(place).save(place, models=True)


@pytest.mark.parametrize("file", ["net.py", "contents.json", "arrays/x.npy"])
def test_a_models_folder_of_another_program_is_kept(file, history, tmp_path):
    precious = tmp_path / "models" / file
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    with pytest.raises(
        ValueError,
        match="models' was not written by fedjax_srp: rename it, or give another folder",
    ):
        history.save(tmp_path, models=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [precious]
    assert srp.History.load(history.save(tmp_path)).num_rounds == history.num_rounds
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("how", ["relative", "left", "link"])
def test_a_folder_given_by_another_path_keeps_its_models(
    how, history, tmp_path, monkeypatch
):
    place = history.save(tmp_path / "run", models=True)
    (tmp_path / "link").symlink_to(place, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    loaded = srp.History.load("link" if how == "link" else "run")
    if how == "left":  # the relative path `run` no longer exists
        monkeypatch.chdir(place)
    loaded.save(place)
    for one in (loaded, srp.History.load(place)):
        assert_same_bits(one.server_state["mean"], history.server_state["mean"])


def test_damaged_models_are_refused(history, tmp_path):
    place = history.save(tmp_path / "run", models=True)
    path = max(
        (place / "models").rglob("*"),
        key=lambda path: path.stat().st_size * path.is_file(),
    )
    path.write_bytes(path.read_bytes()[1:])
    with pytest.raises(
        ValueError, match=r"models' is damaged \(.*: save the run again with models=True"
    ):
        srp.History.load(place).server_state  # noqa: B018


@pytest.mark.parametrize("devices", [1, 3])
def test_clients_are_evaluated_with_their_own_states(history, folder, devices):
    loaded, options = (
        srp.History.load(folder),
        {"key": jax.random.key(1), "devices": devices},
    )
    for run in (history, loaded):
        own = srp.evaluate(
            ALGORITHM, DATA, run.server_state, client_states=run.client_states, **options
        )
        np.testing.assert_allclose(own["sum"], history.accuracy[-1], rtol=1e-6)
        new = srp.evaluate(ALGORITHM, DATA, run.server_state, **options)
        np.testing.assert_allclose(
            new["sum"], np.full(5, 100 * history.server_state["mean"]), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s, c: ({"mean": s["mean"]}, c),
            "server_state lacks key",
        ),
        (
            lambda s, c: (s | {"mean": np.zeros(2, np.float32)}, c),
            r"mean is float32\[2\], expected float32\[\]",
        ),
        (
            lambda s, c: (s, jax.tree.map(lambda leaf: leaf[:4], c)),
            r"client_states: .* is .*\[4\], expected .*\[5\]",
        ),
        (
            lambda s, c: (None, c),
            "server_state=None",
        ),
        (
            lambda s, c: (s, None),
            "client_states=None: .* keep_clients=True",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused(change, message, history):
    server, clients = change(history.server_state, history.client_states)
    with refused(message):
        srp.evaluate(
            ALGORITHM, DATA, server, key=jax.random.key(0), client_states=clients
        )
