"""Next words of users' texts: tokens by hand, users, and refusals."""

import json

import pytest
from clients import examples
from reference.small import refused

from fedjax_srp.data import next_words

TRAIN = {"ann": ["how do i sort a list", "sort it"], "bob": ["a list"], "eve": ["i do"]}
TEST = {"ann": ["how do i"], "bob": ["sort a dict of lists by key", "a"]}
# The words of eve, who is no client, count too: a do i list sort are there twice, so 1 to
# 4 are a do i list. 5 is unknown, 6 begins and 7 ends a sentence; one that is cut has no end.
TOKENS = {
    ("train", 0): [[6, 5, 2, 3, 5, 1], [6, 5, 5, 7, 0, 0]],
    ("train", 1): [[6, 1, 4, 7, 0, 0]],
    ("test", 0): [[6, 5, 2, 3, 7, 0]],
    ("test", 1): [[6, 5, 1, 5, 5, 5], [6, 1, 7, 0, 0, 0]],
}


def write(folder, kind, texts, **more):
    (folder / kind).mkdir(parents=True, exist_ok=True)
    entries = {user: {"x": x, **more} for user, x in texts.items()}
    content = {"users": [*texts], "user_data": entries}
    (folder / kind / "all.json").write_text(json.dumps(content))


@pytest.fixture
def forum(tmp_path):
    write(tmp_path / "forum", "train", TRAIN, y=[None])
    write(tmp_path / "forum", "test", TEST)
    return tmp_path / "forum"


@pytest.mark.filterwarnings("ignore:natural")
def test_tokens(forum, monkeypatch):
    monkeypatch.chdir(forum)
    data = next_words(".", vocabulary=4, length=5)
    assert (data.name, data.num_clients, data.num_classes) == ("forum", 2, 8)
    for (kind, client), sequences in TOKENS.items():
        x, y = examples(data, client, kind)
        assert x.tolist() == [sequence[:-1] for sequence in sequences]
        assert y.tolist() == [sequence[1:] for sequence in sequences]
    lengths = {len(next_words(forum, 1, seed=seed).x_train) for seed in range(6)}
    assert lengths == {1, 2}  # texts of bob or ann


def test_refusals(forum, tmp_path):
    with pytest.warns(UserWarning, match="1 of 3 users are left out"):
        assert next_words(forum, 1, vocabulary=3).num_clients == 1
    with refused("num_clients=3"):
        next_words(forum, 3)
    with refused(r"no \.json files in .*train"):
        next_words(tmp_path / "nothing")
    for kind in ("train", "test"):
        write(tmp_path / "numbers", kind, {"ann": [[1.0, 2.0]]})
    with refused("inputs in train are numbers; give a folder of texts"):
        next_words(tmp_path / "numbers")
