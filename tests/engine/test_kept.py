"""Final states of a run: kept, saved, loaded, evaluated again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import algorithm_of, assert_same_bits, numbers, refused

import fedjax_srp as srp
from fedjax_srp.base import ClientOutput
from fedjax_srp.results import sealed_folders
from fedjax_srp.results.history import History

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
    loaded = History.load(folder)
    assert not {"server_state", "client_states"} & set(vars(loaded))
    for name in ("server_state", "client_states"):
        expected, actual = (
            sealed_folders.named(getattr(history, name)),
            sealed_folders.named(getattr(loaded, name)),
        )
        assert expected.keys() == actual.keys()
        bits = lambda key: jax.random.key_data(key)
        assert_same_bits(bits(actual.pop("key")), bits(expected.pop("key")))
        assert_same_bits({name: actual[name] for name in expected}, expected)
    with pytest.raises(AttributeError, match="server_stat"):
        loaded.server_stat  # noqa: B018


def test_saving_again_keeps_the_models_and_another_run_replaces_them(
    history, folder, tmp_path
):
    place = history.save(tmp_path / "run", models=True)
    History.load(place).save(place)
    assert History.load(place).client_states is not None
    srp_history = History.load(folder)
    srp_history.save(place)  # without its models, which are elsewhere
    assert History.load(place).server_state is None
    with pytest.raises(ValueError, match="models=True: this history has no server_state"):
        History.load(place).save(place, models=True)


@pytest.mark.parametrize(
    "file", ["config.json", "history.csv", "clients.csv", "summary.json"]
)
def test_files_of_another_program_are_kept(file, history, tmp_path):
    (tmp_path / file).write_text("{}")
    with pytest.raises(
        ValueError, match=f"its {file} was not written by fedjax_srp; give another one"
    ):
        history.save(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        (file, "{}")
    ]


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
    assert History.load(history.save(tmp_path)).num_rounds == history.num_rounds
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("how", ["relative", "left", "link"])
def test_a_folder_given_by_another_path_keeps_its_models(
    how, history, tmp_path, monkeypatch
):
    place = history.save(tmp_path / "run", models=True)
    (tmp_path / "link").symlink_to(place, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    loaded = History.load("link" if how == "link" else "run")
    if how == "left":  # the relative path `run` no longer exists
        monkeypatch.chdir(place)
    loaded.save(place)
    for one in (loaded, History.load(place)):
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
        History.load(place).server_state  # noqa: B018


@pytest.mark.parametrize("devices", [1, 3])
def test_clients_are_evaluated_with_their_own_states(history, folder, devices):
    loaded, options = History.load(folder), {"key": jax.random.key(1), "devices": devices}
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
            "server_state lacks key, 1 in all: give the state of a run of the same",
        ),
        (
            lambda s, c: (s | {"more": s["mean"]}, c),
            "server_state also has more, 1 in all",
        ),
        (lambda s, c: (c, c), "server_state lacks mean, 1 in all"),
        (
            lambda s, c: (s | {"mean": np.zeros(2, np.float32)}, c),
            r"mean is float32\[2\], expected float32\[\]",
        ),
        (
            lambda s, c: (s | {"mean": np.float64(1)}, c),
            r"mean is float64\[\], expected float32\[\]",
        ),
        (
            lambda s, c: (s, jax.tree.map(lambda leaf: leaf[:4], c)),
            r"client_states: .* is .*\[4\], expected .*\[5\]",
        ),
        (
            lambda s, c: (None, c),
            "server_state=None: this history was loaded from a folder without models",
        ),
        (lambda s, c: (1.0, c), "server_state lacks key, 2 in all"),
        (
            lambda s, c: (s, None),
            "client_states=None: this history kept none; run with keep_clients=True",
        ),
        (lambda s, c: (s, "old"), "client_states='old' is unknown; choose from new"),
    ],
)
def test_states_that_do_not_fit_are_refused(change, message, history):
    server, clients = change(history.server_state, history.client_states)
    with refused(message):
        srp.evaluate(
            ALGORITHM, DATA, server, key=jax.random.key(0), client_states=clients
        )


def test_names_that_collide_are_refused():
    with pytest.raises(ValueError, match="two arrays of a state are called 'a/b'"):
        sealed_folders.named({"a": {"b": 1}, "a/b": 2})


def test_every_seed_keeps_its_client_states():
    keys = jax.random.split(jax.random.key(0), 2)
    runs = srp.simulate_seeds(
        ALGORITHM,
        DATA,
        keys=keys,
        num_rounds=1,
        devices=2,
        keep_clients=True,
        progress=False,
    )
    for run, key in zip(runs, keys, strict=True):
        options = {"num_rounds": 1, "devices": 2, "progress": False}
        alone = srp.simulate(ALGORITHM, DATA, key=key, keep_clients=True, **options)
        bits = lambda run: jax.random.key_data(run.client_states["key"])
        assert_same_bits(bits(run), bits(alone))
        assert_same_bits(run.client_states["sums"], alone.client_states["sums"])
