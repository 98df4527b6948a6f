"""Methods compared with SRPFL's paper and code: layers, evaluations, cohorts, defaults, options."""

import dataclasses
import functools

import numpy as np
import pytest
from method_helpers import (
    SHAPES,
    algorithm_of,
    cohort_sizes,
    record,
    steps_of,
    values_of,
)

import fedjax_srp as srp
from fedjax_srp.methods.options import PRIVACY

BY_CRITERION = {
    "flanp",
    "flanp_fednova",
    "flanp_fedavg_criterion",
}  # stages end by what is learned
AT_FIRST = {
    "fedbuff": 10,
    "fedat": 10,
    "fedasync": 1,
    "asyncsgd": 1,
    "fedcompass": 1,
    **dict.fromkeys(BY_CRITERION, 10),
}  # size of their cohorts
COMMON = {
    "learning_rate": 0.01,
    "batch_size": 10,
    "epochs": 1,
    "weighting": "uniform",
    "fine_tune_epochs": 10,
}
FEDOPT = {"server_step_size": 0.01, "beta1": 0.9, "beta2": 0.99, "adaptivity": 1e-3}
DEFAULTS = {  # of a method, or of its algorithm, beside the common ones
    "fedavgm": FEDOPT | {"rule": "momentum", "server_step_size": 1.0},
    "fedadagrad": FEDOPT | {"rule": "adagrad", "beta1": 0.0},
    "fedadam": FEDOPT | {"rule": "adam"},
    "fedyogi": FEDOPT | {"rule": "yogi"},
    "moon": {"mu": 1.0, "temperature": 0.5},
    "fedbn": {"own": "normalisation"},
    "fedproto": {"penalty": 1.0},
    "knn_per": {"num_neighbours": 10, "own_share": 0.5},
    "feddyn": {"penalty": 0.01},
    "fedvarp": {"server_step_size": 1.0},
    "pfedme": {
        "penalty": 15.0,
        "inner_steps": 5,
        "inner_step_size": 0.09,
        "server_step_size": 1.0,
    },
    "afl": {"weight_step_size": 0.1},
    "q_fedavg": {"q": 1.0, "weighting": "num_examples"},
    "ifca": {"num_clusters": 4},
    "feddwa": {"num_neighbours": 5, "guidance_epochs": 1},
    "fedphp": {"teaching": 0.1, "inheritance": 0.9, "inheritance_rounds": 100},
    "apple": {
        "relation_step_size": 0.001,
        "penalty": 0.1,
        "penalty_rounds": 16.0,
        "penalty_schedule": "exponential",
    },
    "fedfomo": {
        "num_models": 4,
        "validation_share": 0.2,
        "exploration": 0.3,
        "exploration_decay": 0.05,
    },
    "fedcac": {"critical_share": 0.5, "collaboration_rounds": 100.0},
    "fedcp": {"alignment_penalty": 5.0},
    "gpfl": {"guidance_penalty": 0.01, "guidance_decay": 0.1},
    "feddbe": {"mean_penalty": 50.0, "charge_start": False},
    "fedala": {"weight_step_size": 1.0, "weight_share": 0.8, "start_epochs": 11},
    "fedamp": {"penalty": 1.0, "attention_step_size": 1.0, "attention_width": 1.0},
    "fedpac": {"penalty": 1.0, "head_epochs": 1},
    "fedas": {"alignment_step_size": 0.01},
    "fedrep": {
        "head_epochs": 10,
        "representation_epochs": 1,
        "keeps_optimizer": False,
        "newcomers_take_mean_head": False,
    },
    "fedbuff": {"server_step_size": 1.0, "staleness_exponent": 0.5},
    "fedasync": {
        "server_step_size": 0.6,
        "staleness_exponent": 0.5,
        "discount": "polynomial",
        "mu": 0.005,
    }
    | {"hinge_slope": 10.0, "hinge_start": 4.0},
    "asyncsgd": {"server_step_size": 1.0, "num_jobs": 10},
    "fedcompass": {"server_step_size": 0.9, "staleness_exponent": 0.5},
    "hf_maml": {"inner_step_size": 0.01, "difference": 1e-3, "inner_steps": 1},
    "fedsgd": {"weighting": "num_examples"},
    "fedat": {"mu": 0.4, "num_tiers": 5},
    "depthfl": {"least_blocks": 1, "distillation": 1.0, "ramp_rounds": 300},
    "sliding_window": {"least_blocks": 1},
    "flexlora": {"ranks": (1, 2, 4, 8)},
    "hetlora": {"ranks": (1, 2, 4, 8), "aggregation": "sparsity"},
    "heterofl": {"rates": (0.0625, 0.125, 0.25, 0.5, 1.0)},
    "fedrolex": {"rates": (0.0625, 0.125, 0.25, 0.5, 1.0)},
    "fjord": {"rates": (0.2, 0.4, 0.6, 0.8, 1.0)},
    "fedprox": {"mu": 0.1},
    "scaffold": {"server_step_size": 1.0, "counts_momentum": True},
    "per_fedavg": {
        "inner_step_size": 1e-4,
        "difference": 1e-3,
        "inner_steps": 1,
        "support_fraction": 0.8,
    },
    "l2gd": {"aggregation_step_size": 0.05, "aggregation_probability": 0.9},
    "apfl": {"own_share": 0.75, "adaptive": False},
    "ditto": {"penalty": 1.0},
    "fedgate": {"server_step_size": 1.0},
}


@pytest.fixture(params=srp.methods.names())
def name(request):
    return request.param


def test_who_takes_part(name):
    """10 clients at first, doubled every 10 rounds; in a pool of 20: 10 for 10 rounds, then 20."""
    get = functools.partial(srp.methods.get, name, dataset=SHAPES, hidden=(4, 4))
    if name in AT_FIRST:
        assert cohort_sizes(get().participation, (0, 9)) == [AT_FIRST[name]] * 2
        return
    rounds = (0, 9, 10, 19, 20, 29, 30, 39, 40, 149)
    doubles = srp.methods.recipe(name).doubling
    of_all = [10, 10, 20, 20, 40, 40, 80, 80, 100, 100] if doubles else [100] * 10
    assert cohort_sizes(get().participation, rounds) == of_all
    if srp.methods.recipe(name).participation != "partial_work":  # has no pool
        of_a_fifth = [10, 10] + [20] * 8 if doubles else [20] * 10
        assert cohort_sizes(get(pool=20).participation, rounds) == of_a_fifth


def test_defaults_are_the_papers(name):
    """Step size 0.01 in all experiments, no momentum, no decay; fine-tuning uses the optimizer of training."""
    algorithm = algorithm_of(name)
    np.testing.assert_allclose(
        steps_of(algorithm.training.optimizer), [-0.01] * 4, rtol=1e-6
    )
    assert algorithm.fine_tune_optimizer is None
    assert algorithm.tuning.optimizer == algorithm.training.optimizer
    found = values_of(algorithm, leave_out=("model", "evaluation"))
    given = {option: value for option, value in found.items() if value is not None}
    assert given == COMMON | DEFAULTS.get(name, DEFAULTS.get(algorithm.name, {}))


def test_the_optimizers_of_the_code(name):
    """Momentum 0.5 in fine-tuning only, decay 1e-4 on weights but not on biases."""
    algorithm = algorithm_of(
        name, **{"fine_tune_optimizer.momentum": 0.5}, weight_decay=1e-4
    )
    plain, heavy = -0.01 * (1 + 1e-4), -0.01
    np.testing.assert_allclose(
        steps_of(algorithm.training.optimizer), [plain, -0.01, plain, -0.01], rtol=1e-6
    )
    tuning = steps_of(algorithm.fine_tune_optimizer)
    np.testing.assert_allclose(
        tuning, [plain, heavy, 1.5 * plain, 1.5 * heavy], rtol=1e-6
    )


def test_what_only_other_methods_read_is_refused_unless_it_is_shared():
    shared = {"inner_step_size": 0.1, "head_epochs": 2, "initial": 5, "redraw": "stage"}
    read = {
        "fedavg": set(),
        "srpfl": shared.keys() - {"inner_step_size"},
        "hf_maml": {"inner_step_size"},
    }
    for name, known in read.items():
        recorded = record(name, shared=shared)
        assert {o: recorded[o] for o in shared if o in recorded} == {
            o: shared[o] for o in known
        }
        for option in shared.keys() - known:
            with pytest.raises(ValueError, match=f"^{option}: .*; leave"):
                srp.methods.get(name, dataset=SHAPES, **{option: shared[option]})


def test_every_field_of_every_algorithm_is_an_option(name):
    """Fields of an algorithm and of its inner parts are options and reach the algorithm."""
    route = srp.methods.routes(name)
    fixed = getattr(route.factory, "keywords", {})
    fields = {field.name for field in dataclasses.fields(algorithm_of(name))}
    paths = {option.path for option in route.algorithm.values()}
    codes = {"up", "down", *PRIVACY}  # of any algorithm's messages
    expected = (fields | codes) - {"model", *fixed}
    assert {path for path in paths if "." not in path} == expected
    other = {"fine_tune_epochs": 4, "inner_steps": 2, "epochs": 2, "head_epochs": 3}
    for option in other.keys() & set(route.algorithm):
        given = values_of(algorithm_of(name, **{option: other[option]}))
        assert given[option] == other[option]
