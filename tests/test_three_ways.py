"""A clock or a policy is given as an object, as the text of its constructor, or as a word, everywhere alike."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from command_line import RUN, main
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import CLOCKS, read_clock
from fedjax_srp.lab.grids import points
from fedjax_srp.lab.runs.run import from_options
from fedjax_srp.models import FACTORIES
from fedjax_srp.participation.by_name import CLASSES, POLICIES, read_policy
from fedjax_srp.parts.description import describe, rebuild
from fedjax_srp.parts.registry import Registry
from fedjax_srp.parts.texts import read_part
from fedjax_srp.results.records import identity

DATA = srp.data.linear_task(jax.random.key(0), num_clients=4, dim=3, rank=1)
EXPONENTIAL = srp.clocks.Exponential(1.0)
FIXED = srp.clocks.Fixed(EXPONENTIAL)
RANDOM = srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.25, 1.0)))


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("fixed", FIXED),
        ("Fixed(Exponential(1.0))", FIXED),
        ("fixed:exponential(rate=1)", FIXED),
        ("random", RANDOM),  # SRPFL, section 5
        ("Dynamic(Exponential(Uniform(1 / N, 1)))", RANDOM),
        ("Failing(random, rate=-(1 - N) / 10)", srp.clocks.Failing(RANDOM, 0.3)),
        ("Trace((1, 2.0, N, 4))", srp.clocks.Trace([1.0, 2.0, 4.0, 4.0])),
        ("ordered:fixed + 2 * N", replace(FIXED, ordered=True, communication=8.0)),
        ("ordered:random", replace(RANDOM, ordered=True)),
        ("fixed:uniform(low=N, high=N)", srp.clocks.Fixed(srp.clocks.Uniform(4.0, 4.0))),
        (
            "available(devices(1e9, lognormal(1e6, 1), 1e6), markov(9, off=5))",
            srp.clocks.Available(
                srp.clocks.Devices(1e9, srp.clocks.LogNormal(1e6, 1.0), 1e6),
                srp.clocks.Markov(9.0, 5.0),
            ),
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
    ("make", "texts", "objects"),
    [
        (srp.participation.Deadline, (1.0, None, "oort"), srp.participation.Oort()),
        (
            srp.participation.Deadline,
            (1.0, None, "Uniform(2)"),
            srp.participation.Uniform(2),
        ),
        (srp.clocks.Failing, ("fixed", 0.1), FIXED),
        (srp.clocks.Redrawn, ("fixed:exponential(1)", 3), FIXED),
        (srp.clocks.Fixed, ("exponential(1.0)",), EXPONENTIAL),
        (srp.clocks.Available, (FIXED, "markov(9, off=5)"), srp.clocks.Markov(9.0, 5.0)),
    ],
)
def test_a_part_within_another_may_be_a_text(make, texts, objects):
    is_text = [isinstance(value, str) for value in texts]
    given = [
        objects if each else value for value, each in zip(texts, is_text, strict=True)
    ]
    assert sum(is_text) == 1
    assert make(*texts) == make(*given)


def test_every_policy_of_the_package_has_a_text():
    exported = [getattr(srp.participation, name) for name in srp.participation.__all__]
    policies = {cls for cls in exported if issubclass(cls, srp.ParticipationPolicy)}
    assert {*CLASSES} == policies


def test_a_text_within_a_part_is_refused_under_the_name_of_the_field():
    with refused("^policy='oorrt' is not understood: .*did you mean oort"):
        srp.participation.Deadline(limit=1.0, policy="oorrt")
    with refused("^policy='0.5' must be a ParticipationPolicy"):
        srp.participation.Deadline(limit=1.0, policy="0.5")
    with refused("^clock='random' .* N, .*all as one text"):
        srp.clocks.Failing("random", 0.1)
    with refused("^distribution=.* must be a Distribution"):
        srp.clocks.Fixed("markov(1.0, 1.0)")
    with refused("rate=-1.* must be positive"):
        srp.clocks.Fixed("exponential(-1.0)")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Fastst(3)", r"did you mean Fastest"),
        ("fastest", "missing a required argument: 'k'"),
        ("Fastest(k=)", "not understood"),
        ("Fastest(k=N)", "N, the number of clients, is not known"),
        ("Fastest(k='a' * 9)", "'a' is no number"),
        ("Uniform(k=1, k=2)", "given twice"),
        ("Fastest(k=2)(3)", "not understood"),
        ("Fastest.name", "not understood"),
        ("(lambda: 3)()", "not understood"),
        ("-" * 200 + "1", "nested too deeply"),
        ("Full(\0)", "not understood"),
        ("7", "participation=7 must be a ParticipationPolicy"),
        ("Uniform(0)", "k=0 must be at least 1"),
    ],
)
def test_other_texts_are_refused_in_one_line(text, problem):
    with refused(problem) as caught:
        read_policy(text)
    assert len(str(caught.value)) < 400


def test_nothing_is_evaluated():
    calls = []
    with refused("is unknown"):
        read_part("part", "print(mine())", {"mine": lambda: calls.append(1)}, "give one")
    assert not calls


HEADER = b"{'descr': ('<f8', "  # whose brackets end nowhere
DAMAGED = b"\x93NUMPY\x01\x00" + len(HEADER).to_bytes(2, "little") + HEADER


@pytest.mark.filterwarnings("ignore")  # as outside of pytest, where they are no errors
@pytest.mark.parametrize(
    ("file", "content"), [("times.npy", DAMAGED), ("times.csv", b"")]
)
def test_a_trace_that_is_damaged_or_empty_is_refused_in_one_line(file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    with refused(f"^clock='trace:.*{file}' is not a table of numbers .*numpy.savetxt$"):
        read_clock(f"trace:{tmp_path / file}", 2)


def test_a_trace_is_read_from_a_file(tmp_path):
    table = np.array([[1.0, 2.0], [3.0, 4.0]])
    (tmp_path / "times.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "times.npy", table)
    for name in ("times.csv", "times.npy"):
        assert read_clock(f"trace:{tmp_path / name}", 2) == srp.clocks.Trace(table)
    with refused("clock='ordered:trace:times.csv' .*: a trace says who is slow; sort"):
        read_clock("ordered:trace:times.csv", 2)


def simulated(algorithm, **run):
    options = {"num_rounds": 2, "progress": False, "devices": 1} | run
    return srp.simulate(algorithm, DATA, key=jax.random.key(0), **options)


def test_simulate_takes_the_three_ways():
    algorithm = srp.algorithms.LinearFedRep(DATA, 0.1, 5, start="random")
    policy = srp.participation.Fastest(2)
    one = simulated(algorithm, clock=RANDOM, participation=policy)
    texts = {"clock": "random", "participation": "Fastest(k=N // 2)"}
    other = simulated(algorithm, **texts)
    np.testing.assert_array_equal(one.compute_time, other.compute_time)
    assert one.config["clock"] == other.config["clock"]
    with refused("clock='radnom' .*random"):
        simulated(algorithm, clock="radnom")
    simulation = srp.Simulation(algorithm, DATA, clock="random", participation="full")
    assert jax.eval_shape(simulation.init, jax.random.key(0)).clients is not None


def test_methods_take_texts_and_names_with_options():
    data = srp.data.load("digits", num_clients=6, classes_per_client=4)
    get = functools.partial(srp.methods.get, "fedavg", dataset=data)
    policy = srp.participation.Fastest(3)
    ways = [{"participation": way} for way in (policy, "Fastest(k=N // 2)", "fastest")]
    ways[2] |= {"k": 3}
    for way in ways:
        method = get(**way)
        assert (method.name, method.participation) == ("fedavg + fastest", policy)
    with refused("k: has no effect"):
        get(participation="Fastest(3)", k=3)


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
    run = from_options({"method": "mine", "dataset": "digits", "num_clients": 6})
    assert run.record["method"]["participation"] == describe(read_policy(text))
    with refused("participation=3 must be"):
        srp.methods.register("mine", srp.algorithms.FedAvg, participation=3)


@pytest.mark.usefixtures("no_rounds")
def test_runs_of_the_three_ways_have_one_record(tmp_path):
    options = {"method": "fedavg", "dataset": "digits", "num_clients": 6}
    policy = srp.participation.Fastest(3)
    texts = from_options(options | {"participation": "Fastest(k=N // 2)"})
    objects = from_options(options | {"participation": policy})
    assert texts.record == objects.record
    axes = {"participation": ["Fastest(k=3)", policy, "full"]}
    spec = points.Spec(options=options, axes=axes, variants={}, exclude=[])
    assert len(points.points(spec)) == 2
    words = ("--num-rounds", 1, "--no-progress", "--out", tmp_path)
    words += (
        "--participation",
        "Fastest(k=N // 2)",
        "--clock",
        "Fixed(Exponential(2.0))",
    )
    assert main(*RUN.split(), "--method", "fedavg", *words) == 0
    config = srp.History.load(tmp_path).config
    assert config["method"]["participation"]["k"] == 5
    assert config["clock"]["distribution"]["rate"] == 2.0


def test_codes_of_messages_are_options_of_every_method(tmp_path):
    """As an object, as the text of its constructor, or as a word; in Python, on the command line and in a grid."""
    data = srp.data.load("digits", num_clients=6, classes_per_client=4)
    get = functools.partial(srp.methods.get, "fedrep", dataset=data, hidden=(4,))
    whole = get().algorithm
    sign = srp.messages.Sign()
    coded = srp.messages.Coded(whole, srp.messages.TopK(0.1), sign)
    for up, down in (("TopK(0.1)", "sign"), (coded.up, sign), ("topk(share=0.1)", sign)):
        method = get(up=up, down=down)
        assert method.algorithm == coded
        assert method.name == "fedrep + up TopK(share=0.1) + down Sign()"
    assert srp.methods.label(method.name).startswith("FedRep + up")
    assert get(up=None, down="None").algorithm == whole
    assert get(shared={"up": "half"}).algorithm.up == srp.messages.Half()
    with refused("^up='TopQ.*did you mean TopK"):
        get(up="TopQ(0.1)")
    assert rebuild(describe(coded)) == coded

    private = {"clip": 0.5, "noise_multiplier": 1.0, "denominator": 6}
    private = get(up="TopK(0.1)", unsent="initial", **private).algorithm
    inner = srp.messages.Coded(whole, srp.messages.TopK(0.1))
    assert private == srp.messages.Private(inner, 0.5, 1.0, 6, unsent="initial")
    assert rebuild(describe(private)) == private
    with refused("^noise_multiplier is missing.*'clip'.*give"):
        get(clip=0.5)

    options = {"method": "fedrep", "dataset": "digits", "num_clients": 6}
    texts = from_options(options | {"up": "TopK(0.1)"})
    objects = from_options(options | {"up": coded.up})
    assert identity(texts.record) == identity(objects.record)
    plain = from_options(options)
    assert plain.differing(texts.record)
    assert not texts.differing(texts.record)
    axes = {"up": ["TopK(share=0.1)", "half", "None"], "learning_rate": [0.1]}
    spec = points.Spec(options=options, axes=axes, variants={}, exclude=[])
    assert len(points.points(spec)) == 3

    words = ("--num-rounds", 1, "--no-progress", "--out", tmp_path, "--hidden", 4)
    words += ("--method", "fedrep", "--up", "TopK(0.1)", "--down", "half")
    assert main(*RUN.split(), *words) == 0
    history = srp.History.load(tmp_path)
    assert history.name == "fedrep + up TopK(share=0.1) + down Half()"
    assert 5 * history.bytes_up < 2 * history.bytes_down


def test_an_option_of_this_name_of_a_method_itself_is_its_own():
    def lifted(model, up: float = 0.0):
        return srp.algorithms.FedProx(model, mu=up)

    data = srp.data.load("digits", num_clients=6, classes_per_client=4)
    algorithm = srp.methods.get(lifted, dataset=data, up=0.5).algorithm
    assert (algorithm.name, algorithm.mu) == ("fedprox", 0.5)


# Registries.


@pytest.mark.parametrize(
    "registry", [CLOCKS, POLICIES, FACTORIES, srp.methods.RECIPES, srp.messages.CODECS]
)
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
