"""Notes on rows: judged by a model that no client ever sends, or an asynchronous server without stale updates."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.made_up import made

import fedjax_srp as srp
from fedjax_srp.lab.report import fairness, repeats
from fedjax_srp.parts.description import describe


def test_every_default_evaluation_that_says_so_is_known():
    """The evaluations' descriptions, the list of the report and the algorithms' other evaluations agree."""
    model = srp.models.MLP((5,), 3, (4,))
    found = {}
    for name in srp.algorithms.__all__:
        if name.startswith("Linear"):
            continue
        algorithm = getattr(srp.algorithms, name)(model)
        evaluations = algorithm.evaluations
        default = next(iter(evaluations))
        if "never send" in inspect.getdoc(evaluations[default]).replace("\n", " "):
            found[algorithm.name, default] = next(n for n in evaluations if "own" in n)
    assert found == fairness.UNSENT_MEANS


def runs_of(*algorithms, policy=None, **fields):
    """Return two runs of each algorithm, with other fields of their histories."""
    runs = []
    for algorithm in algorithms:
        for seed in (0, 1):
            name = algorithm.name
            history = made(name, seed, rounds=40, clients=6, own=True)
            method = {"name": name, "algorithm": describe(algorithm)}
            if policy is not None:
                method["participation"] = describe(policy)
            config = history.config | {"method": method}
            history = replace(history, config=config, **fields)
            runs.append(repeats.of(history, Path(f"{name}{seed}")))
    return runs


MODEL = srp.models.MLP((5,), 3, (4,))


def test_the_note_names_the_methods_once():
    runs = runs_of(srp.algorithms.FedRep(MODEL), srp.algorithms.FedAvg(MODEL))
    (note,) = [note for note in repeats.rows(runs).notes if "never send" in note]
    assert note.endswith("judged by own_head: FedRep")
    own = [repeats.with_evaluation(run, "own_head") for run in runs]
    assert not [note for note in repeats.rows(own).notes if "never send" in note]


def test_an_asynchronous_server_without_stale_updates_has_a_note():
    algorithms = srp.algorithms.FedAvg(MODEL), srp.algorithms.FedBuff(MODEL)
    runs = runs_of(*algorithms, asynchronous=True)
    (note,) = [note for note in repeats.rows(runs).notes if "never stale" in note]
    assert note.endswith(": FedAvg")
    for fields in ({"metrics": {"staleness": np.ones(40)}}, {"asynchronous": False}):
        shown = runs_of(*algorithms, **({"asynchronous": True} | fields))
        assert not [note for note in repeats.rows(shown).notes if "stale" in note]


def test_codes_and_privacy_change_no_note():
    coded = srp.messages.Coded(srp.algorithms.FedRep(MODEL), up="half")
    runs = runs_of(coded, asynchronous=True)
    notes = repeats.rows(runs).notes
    assert [note for note in notes if note.endswith("judged by own_head: FedRep")]
    assert [note for note in notes if "never stale" in note]


@pytest.mark.parametrize(("name", "is_noted"), [("Buffered", False), ("Queued", True)])
def test_models_of_clients_are_not_those_of_slots(name, is_noted):
    """FedBuff keeps a model for each client, and `Queued` tells jobs apart by their slots."""
    policy = getattr(srp.participation, name)()
    stale = {"metrics": {"staleness": np.ones(40)}}
    runs = runs_of(
        srp.algorithms.FedBuff(MODEL), policy=policy, asynchronous=True, **stale
    )
    notes = [note for note in repeats.rows(runs).notes if "never stale" in note]
    assert len(notes) == is_noted
