"""A method with its own part switched off equals the method that it extends: three rounds in float64."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from reference.small import ALGORITHMS, assert_close, built
from setting import (
    COUNTS,
    EVERYBODY,
    FULL,
    HEAVY_STEPS,
    SMALL,
    UNEQUAL,
    run_of,
    split_model,
)

import fedjax_srp as srp

pytestmark = pytest.mark.usefixtures("float64")

MODELS, OWN = (
    "server.params",
    "clients.params",
)  # of a global model, and of clients' own ones
WHOLE = "server"
DOUBLING, AT_RANDOM = srp.participation.Doubling(2, 1), srp.participation.Uniform(3)
SIZED, STEPS = (
    {"weighting": "num_examples"},
    {"epochs": None, "steps": 4, "weighting": "num_examples"},
)


class Limit(NamedTuple):
    """Two runs and the states that must be equal in them."""

    name: str
    off: Mapping[str, Any]  # options that switch its part off
    other: str
    equal: tuple[str, str] = (MODELS, MODELS)
    policy: Any = EVERYBODY
    options: Mapping[str, Any] = {}  # of both methods
    more: Mapping[str, Any] = {}  # of the other method alone
    other_policy: Any = None
    rtol: float = 1e-12
    clients: Any = SMALL


ALONE, BESIDE = (OWN, OWN), ("clients.own", OWN)
LIMITS = {
    "fedprox without its term": Limit("fedprox", {"mu": 0.0}, "fedavg", policy=srp.participation.Buffered(3), rtol=0),
    "moon without its contrast": Limit("moon", {"mu": 0.0}, "fedavg", policy=DOUBLING),
    "fedopt without momentum": Limit(
        "fedopt", {"rule": "momentum", "beta1": 0.0, "server_step_size": 1.0}, "fedavg", policy=DOUBLING
    ),
    "q_fedavg with q = 0": Limit("q_fedavg", {"q": 0.0}, "fedavg", policy=DOUBLING, options=SIZED, rtol=1e-9),
    "afl whose weights stay": Limit("afl", {"weight_step_size": 0.0}, "fedavg", policy=DOUBLING),
    "fedphp without its teacher": Limit("fedphp", {"teaching": 0.0}, "fedavg", policy=DOUBLING),
    "fedcac without critical parameters": Limit(
        "fedcac", {"critical_share": 0.0}, "fedavg", policy=DOUBLING
    ),
    "fedala whose weights stay": Limit("fedala", {"weight_step_size": 0.0}, "fedavg", policy=DOUBLING),
    "fednova with equal steps": Limit("fednova", {}, "fedavg", policy=DOUBLING, options=STEPS),
    "scaffold of identical clients": Limit(
        "scaffold", {}, "fedavg", options={"batch_size": 99, "epochs": 3}, clients=lambda: [SMALL()[2]] * 4, rtol=1e-9
    ),
    "mifa of everybody": Limit("mifa", {}, "fedavg"),
    "fedvarp of everybody": Limit("fedvarp", {}, "fedavg"),
    "fedbuff that waits for everybody": Limit(
        "fedbuff", {}, "fedavg", policy=srp.participation.Buffered(len(COUNTS)), other_policy=EVERYBODY
    ),
    "fedasync that goes all the way": Limit(
        "fedasync", {"server_step_size": 1.0, "mu": 0.0}, "fedavg", options=SIZED
    ),
    "fedat of one tier": Limit(
        "fedat", {"num_tiers": 1}, "fedprox", policy=srp.participation.AsynchronousTiers(3, tiers=1),
        more={"mu": 0.4}, other_policy=AT_RANDOM,
    ),
    "fedcompass of everybody": Limit("fedcompass", {"server_step_size": 1.0}, "fedavg"),
    "asyncsgd of one job of everybody": Limit("asyncsgd", {"num_jobs": 1}, "fedavg", policy=AT_RANDOM),
    **{
        f"{name} of one whole rate": Limit(
            name, {"rates": (1.0,)}, "fedavg", options=SIZED, policy=UNEQUAL.policy, rtol=1e-9,
            other_policy=UNEQUAL._replace(work=None).policy,
        )
        for name in ("heterofl", "fedrolex", "fjord")
    },
    "depthfl of one block": Limit("depthfl", {"exits": ()}, "fedavg", policy=AT_RANDOM, options=SIZED, rtol=0),
    "sliding_window of all blocks": Limit(
        "sliding_window", {"least_blocks": 4}, "fedavg", policy=AT_RANDOM, options=SIZED, rtol=0
    ),
    # SRPFL from all clients
    "doubling from everybody": Limit("fedrep", {}, "fedrep", (WHOLE, WHOLE), srp.participation.Doubling(len(COUNTS), 1),
                                     other_policy=EVERYBODY, rtol=0),
    "fedbn without normalisation": Limit("fedbn", {}, "fedavg", rtol=0),
    "fed_mtl without relations": Limit(
        "fed_mtl", {"relation_strength": 0.0, "norm_strength": 0.0}, "local_only", ALONE, DOUBLING
    ),
    "fedproto without its penalty": Limit("fedproto", {"penalty": 0.0}, "local_only", ALONE, DOUBLING),
    "fedamp without its penalty": Limit(
        "fedamp", {"penalty": 0.0, "attention_width": 3.0}, "local_only", ALONE, DOUBLING
    ),
    "feddwa of one participant": Limit(
        "feddwa", {}, "local_only", ALONE, srp.participation.Uniform(1), rtol=1e-9
    ),
    "apple of one client with fixed relations": Limit(
        "apple", {"relation_step_size": 0.0}, "local_only", ("server.params", OWN), clients=lambda: [SMALL()[2]]
    ),
    # whose training always saves loss on the examples of the training
    "fedfomo of one participant": Limit(
        "fedfomo", {"validation_share": 0.0}, "local_only", ALONE, srp.participation.Uniform(1), FULL, rtol=1e-9
    ),
    "l2gd that never aggregates": Limit("l2gd", {"aggregation_probability": 0.0}, "local_only", BESIDE, DOUBLING),
    "ditto without its penalty": Limit("ditto", {"penalty": 0.0}, "local_only", BESIDE, DOUBLING),
    "apfl with its own model alone": Limit("apfl", {"own_share": 1.0}, "local_only", BESIDE, AT_RANDOM),
}  # fmt: skip


def part(state, path):
    for name in path.split("."):
        state = getattr(state, name)
    return state


@pytest.mark.short("doubling*")
@pytest.mark.parametrize("case", LIMITS)
def test_the_two_methods_agree(case):
    limit = LIMITS[case]
    options, model = HEAVY_STEPS | limit.options, split_model()
    one = built(ALGORITHMS[limit.name], model, **options, **limit.off)
    other = built(ALGORITHMS[limit.other], model, **options, **limit.more)
    found = run_of(one, limit.clients(), limit.policy)
    expected = run_of(other, limit.clients(), limit.other_policy or limit.policy)
    if "rate" not in case:  # submodels take other times
        np.testing.assert_array_equal([s.now for s in found], [s.now for s in expected])
    mine, theirs = limit.equal
    for state, of_other in zip(found, expected, strict=True):
        assert_close(part(state, mine), part(of_other, theirs), limit.rtol)
    with pytest.raises(AssertionError):
        assert_close(part(found[0], mine), part(found[-1], mine), 1e-3)
