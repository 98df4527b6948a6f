"""Next words of users' texts: tokens by hand, users, and refusals."""

import json
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.data import next_words

TRAIN = {"ann": ["how do i sort a list", "sort it"], "bob": ["a list"], "eve": ["i do"]}
TEST = {"ann": ["how do i"], "bob": ["sort a dict of lists by key", "a"]}


def write(folder, kind, texts, **more):
    (folder / kind).mkdir(parents=True, exist_ok=True)
    content = {
        "users": [*texts],
        "user_data": {user: {"x": x, **more} for user, x in texts.items()},
    }
    (folder / kind / "all.json").write_text(json.dumps(content))


@pytest.fixture
def forum(tmp_path):
    write(tmp_path / "forum", "train", TRAIN, y=[None])
    write(tmp_path / "forum", "test", TEST)
    return tmp_path / "forum"


@pytest.mark.filterwarnings("ignore:natural")
def test_tokens_are_those_of_a_plain_loop(forum, monkeypatch):
    monkeypatch.chdir(forum)
    data = next_words(".", vocabulary=4, length=5)
    assert (data.name, data.num_clients, data.num_classes) == ("forum", 2, 8)
    # the words of eve, who is no client, count too
    counts = Counter(" ".join(text for texts in TRAIN.values() for text in texts).split())
    words = sorted(sorted(counts), key=counts.get, reverse=True)[:4]
    assert words == ["a", "do", "i", "list"]
    unknown, begin, end = 5, 6, 7
    for kind, texts in (("train", TRAIN), ("test", TEST)):
        for i, user in enumerate(("ann", "bob")):
            client = getattr(data, f"{kind}_client")(jnp.int32(i))
            assert int(client.count) == len(texts[user])
            for text, x, y in zip(
                texts[user], client.x.tolist(), client.y.tolist(), strict=False
            ):
                tokens = [
                    words.index(w) + 1 if w in words else unknown for w in text.split()
                ]
                whole = [begin, *tokens, end][:6]
                assert [x[0], *y] == whole + [0] * (6 - len(whole))
                assert x[1:] == y[:-1]
    assert end not in np.asarray(data.test_client(jnp.int32(1)).y)[0], (
        "a sentence that is cut has no end"
    )
    assert {len(next_words(forum, 1, seed=seed).x_train) for seed in range(6)} == {
        1,
        2,
    }  # texts of bob or ann


def test_refusals(forum, tmp_path):
    with pytest.warns(UserWarning, match="1 of 3 users are left out"):
        assert next_words(forum, 1, vocabulary=3).num_clients == 1
    for wrong, said in (
        ({"num_clients": 3}, "num_clients=3"),
        ({"vocabulary": 0}, "vocabulary=0"),
    ):
        with refused(said):
            next_words(forum, **wrong)
    with refused(r"no \.json files in .*train"):
        next_words(tmp_path / "nothing")
    write(tmp_path / "numbers", "train", {"ann": [[1.0, 2.0]]})
    write(tmp_path / "numbers", "test", {"ann": [[1.0, 2.0]]})
    with refused("inputs in train are numbers; give a folder of texts"):
        next_words(tmp_path / "numbers")
