"""A row that is judged by a model that no client ever sends says so."""

import dataclasses
import inspect
from pathlib import Path

from report.made_up import made

import fedjax_srp as srp
from fedjax_srp.lab.report import fairness, repeats


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
            found[name, default] = next(n for n in evaluations if "own" in n)
    assert found == fairness.UNSENT_MEANS


def run_of(algorithm, seed):
    history = made(algorithm.__name__.lower(), seed, rounds=40, clients=6, own=True)
    described = {"part": f"{algorithm.__module__}.{algorithm.__name__}"}
    method = history.config["method"] | {"algorithm": described}
    history = dataclasses.replace(history, config=history.config | {"method": method})
    return repeats.of(history, Path(f"{history.name}{seed}"))


def test_the_note_names_the_methods_once():
    algorithms = (srp.algorithms.FedRep, srp.algorithms.FedAvg)
    runs = [run_of(algorithm, seed) for algorithm in algorithms for seed in (0, 1)]
    (note,) = [note for note in repeats.rows(runs).notes if "never send" in note]
    assert note.endswith("judged by own_head: FedRep")
    own = [repeats.with_evaluation(run, "own_head") for run in runs]
    assert not [note for note in repeats.rows(own).notes if "never send" in note]
