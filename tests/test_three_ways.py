"""A clock or a policy is given as an object, as the text of its constructor, or as a word, everywhere alike."""

import jax
import numpy as np
import pytest
from command_line import TINY, main
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import CLOCKS, read_clock
from fedjax_srp.lab.grids import points
from fedjax_srp.lab.runs.run import from_options
from fedjax_srp.models import FACTORIES
from fedjax_srp.participation.by_name import POLICIES, read_policy
from fedjax_srp.parts.registry import Registry
from fedjax_srp.parts.texts import read_part

DATA = srp.data.linear_task(jax.random.key(0), num_clients=4, dim=3, rank=1)
EXPONENTIAL = srp.clocks.Exponential(1.0)
FIXED = srp.clocks.Fixed(EXPONENTIAL)
RANDOM = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.25, 1.0)))


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("fixed", FIXED),
        ("Fixed(Exponential(1.0))", FIXED),
        ("fixed(exponential(rate=1))", FIXED),
        ("fixed:exponential(1)", FIXED),
        ("random", RANDOM),
        ("Dynamic(Exponential(Uniform(1 / N, 1)))", RANDOM),
        ("Failing(random, rate=-(1 - N) / 10)", srp.clocks.Failing(RANDOM, 0.3)),
        ("Trace((1, 2.0, N, 4))", srp.clocks.Trace([1.0, 2.0, 4.0, 4.0])),
        (
            "ordered:fixed + 2 * N",
            srp.clocks.Fixed(EXPONENTIAL, ordered=True, communication=8.0),
        ),
    ],
)
def test_clocks_are_read(text, clock):
    assert read_clock(text, 4) == clock


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("full", srp.participation.Full()),
        ("oort", srp.participation.Oort()),
        ("Fastest(k=N // 2)", srp.participation.Fastest(2)),
        ("fastest(2, by='expected')", srp.participation.Fastest(2, "expected")),
        (
            "Deadline(limit=3, policy=Uniform(2))",
            srp.participation.Deadline(limit=3.0, policy=srp.participation.Uniform(2)),
        ),
    ],
)
def test_policies_are_read(text, policy):
    assert read_policy(text, 4) == policy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Fastst(3)", r"did you mean Fastest"),
        ("fastest", "missing a required argument: 'k'"),
        ("Fastest(k=)", "not understood"),
        ("Fastest(k=N)", "N, the number of clients, is not known"),
        ("Fastest(k='a' * 9)", "'a' is no number"),
        ("Fastest(k=2)(3)", "not understood"),
        ("Fastest.name", "not understood"),
        ("[Fastest(k=i) for i in (1, 2)]", "not understood"),
        ("(lambda: 3)()", "not understood"),
        ("-" * 200 + "1", "nested too deeply"),
        ("(" * 5000, "not understood"),
        ("Full(\0)", "not understood"),
        ("7", "participation=7 must be a ParticipationPolicy"),
        ("Uniform(0)", "k=0 must be at least 1"),
    ],
)
def test_other_texts_are_refused_in_one_line(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        read_policy(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nothing_is_evaluated():
    calls = []
    with refused("is unknown"):
        read_part("part", "print(mine())", {"mine": lambda: calls.append(1)}, "give one")
    assert not calls


# All, in runs and grids.


def simulated(algorithm, **run):
    return srp.simulate(
        algorithm, DATA, num_rounds=2, key=jax.random.key(0), progress=False, **run
    )


def test_simulate_takes_the_three_ways():
    algorithm = srp.algorithms.LinearFedRep(DATA, 0.1, 5)
    policy = srp.participation.Fastest(2)
    one = simulated(algorithm, clock=RANDOM, participation=policy)
    texts = {"clock": "random", "participation": "Fastest(k=N // 2)"}
    other = simulated(algorithm, **texts)
    np.testing.assert_array_equal(one.compute_time, other.compute_time)
    assert one.config["clock"] == other.config["clock"]
    assert one.name == other.name
    with refused("clock='radnom' .*random"):
        simulated(algorithm, clock="radnom")
    simulation = srp.Simulation(algorithm, DATA, clock="random", participation="full")
    assert simulation.init(jax.random.key(0)).clients is not None


def test_methods_take_texts_and_names_with_options():
    data = srp.data.load("digits", num_clients=6, classes_per_client=4)
    get = srp.methods.get
    by_text = get("fedavg", dataset=data, participation="Fastest(k=N // 2)")
    by_object = get("fedavg", dataset=data, participation=srp.participation.Fastest(3))
    by_name = get("fedavg", dataset=data, participation="fastest", k=3)
    assert by_text.participation == by_object.participation == by_name.participation
    assert by_text.name == by_object.name == by_name.name == "fedavg + fastest"
    with refused("k: has no effect"):
        get("fedavg", dataset=data, participation="Fastest(3)", k=3)


@pytest.mark.parametrize(
    "given", [srp.participation.Fastest(3), "Fastest(k=3)", "oort"], ids=str
)
def test_rows_of_own_methods_take_all_three(given):
    data = srp.data.load("digits", num_clients=6, classes_per_client=4)
    srp.methods.register("mine", srp.algorithms.FedAvg, participation=given)
    method = srp.methods.get("mine", dataset=data, learning_rate=0.2)
    assert method.name == "mine"
    text = given if isinstance(given, str) else "Fastest(k=3)"
    assert method.participation == read_policy(text)
    with refused("participation=3 must be"):
        srp.methods.register("mine", srp.algorithms.FedAvg, participation=3)


def test_runs_of_the_three_ways_have_one_record():
    options = {"method": "fedavg", "dataset": "digits", "num_clients": 6}
    policy = srp.participation.Fastest(3)
    texts = from_options(options | {"participation": "Fastest(k=N // 2)"})
    objects = from_options(options | {"participation": policy})
    assert texts.record == objects.record
    axes = {"participation": ["Fastest(k=3)", policy, "full"]}
    spec = points.Spec(options=options, axes=axes, variants={}, exclude=[])
    assert len(points.points(spec)) == 2


@pytest.mark.usefixtures("no_rounds")
def test_the_command_line_takes_texts(tmp_path):
    words = [*TINY, "--clock", "Fixed(Exponential(1.0))", "--out", tmp_path]
    words[words.index("srpfl")] = "fedrep"
    for option in ("--initial", "--rounds-per-stage"):
        at = words.index(option)
        del words[at : at + 2]
    assert main(*words, "--participation", "Fastest(k=N // 2)") == 0
    config = srp.History.load(tmp_path).config
    assert config["method"]["participation"]["k"] == 5


# Registries.


@pytest.mark.parametrize("registry", [CLOCKS, POLICIES, FACTORIES, srp.methods.RECIPES])
def test_registries_are_alike(registry: Registry):
    first = registry.names()[0]
    with refused(rf"name='{first}' is a {registry.kind} of the package; choose another"):
        registry.add(first, registry[first])
    registry.add("mine", registry[first])
    registry.add("mine", registry[registry.names()[1]])  # a file that is loaded again
    assert registry.own() == {"mine": registry[registry.names()[1]]}
    with refused(rf"unknown {registry.kind} 'minee' \(did you mean mine\?\).*register"):
        registry["minee"]
    assert registry.get("minee") is None
