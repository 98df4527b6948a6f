"""A run with overlapping rounds warns if its algorithm trains on new models alone."""

import warnings

import pytest
from reference.small import algorithm_of, model, numbers, simulate

import fedjax_srp as srp
from fedjax_srp import participation
from fedjax_srp.base import ClientOutput

DATA = numbers(1.0, 2.0, 4.0, 3.0)


def few_lines(**fields):
    return algorithm_of(lambda key, server, *rest: ClientOutput(server), **fields)


@pytest.mark.parametrize(
    "policy",
    [
        participation.Buffered(2),
        participation.AsynchronousTiers(1, tiers=2),
        participation.Queued(2),
        participation.Compass(),
    ],
)
def test_updates_that_are_never_stale_give_a_warning(policy):
    with pytest.warns(UserWarning, match="never stale") as caught:
        srp.simulate(few_lines(), DATA, participation=policy, num_rounds=1, seed=0)
    assert [warning.filename for warning in caught] == [__file__]  # of the caller
    (message,) = [str(warning.message) for warning in caught]
    assert "\n" not in message
    for words in (policy.name, "few_lines", "never stale", "new_algorithm.md"):
        assert words in message


@pytest.mark.parametrize(
    ("policy", "jobs_by"),
    [(participation.Buffered(2), "stage"), (participation.Queued(2), "client")],
)
def test_models_of_other_jobs_give_a_warning(policy, jobs_by):
    algorithm = few_lines(asynchronous=True, jobs_by=jobs_by)
    with pytest.warns(UserWarning, match="with which its job began"):
        simulate(algorithm, DATA, participation=policy)


def test_others_give_none():
    simulate(few_lines(), DATA, participation=participation.Uniform(2))
    stale = few_lines(asynchronous=True)
    simulate(stale, DATA, participation=participation.Buffered(2))
    for cls, policy in (
        ("FedBuff", participation.Buffered),
        ("FedAsync", participation.Buffered),
        ("FedAT", participation.AsynchronousTiers),
        ("AsyncSGD", participation.Queued),
        ("FedCompass", participation.Compass),
    ):
        algorithm = getattr(srp.algorithms, cls)(model())
        for each in (algorithm, srp.messages.Coded(algorithm, up="half")):
            assert each.asynchronous
            assert each.jobs_by in policy.jobs_by
    assert not srp.algorithms.FedAvg.asynchronous


def test_the_warning_comes_once_for_many_runs():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            simulate(few_lines(), DATA, participation=participation.Buffered(2))
    assert len(caught) == 1
