"""Points of a grid: combinations, exclusions, names, and errors, which are reported all at once."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.driver import record
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids.execute import plan
from fedjax_srp.lab.grids.points import (
    Point,
    Spec,
    at_scale,
    coerce,
    points,
    read,
    rerun_of,
)
from fedjax_srp.lab.runs import run
from fedjax_srp.parts.options import Option

EXAMPLES = Path(__file__).parents[2] / "experiments" / "grids"
BASE = {"dataset": "digits", "num_clients": 10, "classes_per_client": 3, "hidden": [8]}


RATE = "training.optimizer.learning_rate"


def points_of(axes=None, variants=None, exclude=(), **options):
    return points(Spec(BASE | options, axes or {}, variants or {}, exclude))


def names(found):
    return [point.name for point in found]


def test_a_grid_is_the_product_of_its_axes_in_their_order():
    found = points_of(
        {"method": ["srpfl", "fedrep"], "learning_rate": [0.01, 1], "seed": range(2)}
    )
    wanted = itertools.product(("srpfl", "fedrep"), (0.01, 1.0), (0, 1))
    assert [tuple(point.values.values()) for point in found] == list(wanted)
    assert found[2].name == "srpfl, learning_rate=1, seed=0"
    assert found[2].run.options["learning_rate"] == 1.0
    assert found[2].run.options["hidden"] == (8,)
    assert (
        len({point.id for point in found}) == len({point.folder for point in found}) == 8
    )


def test_a_point_is_the_run_of_the_command_line():
    (point,) = points_of({"seed": [3]}, method="fedprox", mu=0.2)
    assert point.run == run.from_options(
        BASE | {"hidden": (8,), "seed": 3, "method": "fedprox", "mu": 0.2}
    )
    algorithm = point.run.record["method"]["algorithm"]
    assert algorithm["mu"] == 0.2
    assert algorithm["training"]["optimizer"]["learning_rate"] == 0.01  # a default
    assert point.run.floats["mu"] == 0.2


def test_options_of_an_optimizer_within_have_dots(tmp_path):
    file = tmp_path / "grid.toml"
    lines = [
        "[options]",
        'dataset = "digits"',
        "num_clients = 10",
        'method = "fedavg_ft"',
    ]
    lines += [
        "fine_tune_optimizer.weight_decay = 0.5",
        "[axes]",
        '"fine_tune_optimizer.momentum" = [0.5, 0]',
    ]
    lines += [
        "fine_tune_optimizer.learning_rate = [1, 0.5]",
        "[[exclude]]",
        "fine_tune_optimizer.learning_rate = 1",
    ]
    file.write_text("\n".join([*lines, "fine_tune_optimizer.momentum = 0"]))
    found = points(read(file)[0])
    assert names(found)[:2] == [
        "fine_tune_optimizer.momentum=0.5, fine_tune_optimizer.learning_rate=1",
        "fine_tune_optimizer.momentum=0.5, fine_tune_optimizer.learning_rate=0.5",
    ]
    assert len(found) == 3
    of_optimizer = {"momentum": 0.5, "weight_decay": 0.5, "learning_rate": 1.0}
    within = {
        f"fine_tune_optimizer.{name}": value for name, value in of_optimizer.items()
    }
    assert found[0].run.floats == {RATE: 0.01} | within
    with pytest.raises(
        ValueError, match=r"fine_tune_optimizer\.momentum='a' must be a number"
    ):
        points_of(method="fedavg", **{"fine_tune_optimizer.momentum": "a"})


@pytest.fixture
def mine():
    """Method with options whose names the data and the run also use."""

    @srp.part
    class Mine(srp.algorithms.FedAvg):
        """FedAvg with options whose names are taken.

        Args:
            alpha: of mine.
            seed: of mine.
        """

        alpha: float = 0.5
        seed: int = 0

    srp.methods.register("mine", Mine)
    return "mine"


def test_an_option_whose_name_is_taken_is_written_with_its_part(mine):
    axes = {
        "method.alpha": [0.1, 0.2],
        "alpha": [5.0, 6.0],
        "method": ["fedavg", mine],
        "seed": [0, 1],
    }
    found = points_of(
        axes, partition="dirichlet", classes_per_client=None, **{"method.seed": 3}
    )
    assert len(found) == 2 * 2 * (1 + 2)
    point = found[-1]
    assert point.name == "method.alpha=0.2, alpha=6, mine, seed=1"
    asked = point.run.record
    algorithm = asked["method"]["algorithm"]
    assert (algorithm["alpha"], algorithm["seed"]) == (0.2, 3)
    assert (asked["data"]["options"]["alpha"], asked["key"]) == (6.0, [0, 1])
    assert point.run.floats == {RATE: 0.01, "alpha": 0.2}
    together = [
        [point.name for point in alike] for alike in units.group_by_program(found)
    ]
    assert sorted(map(len, together)) == [
        2,
        2,
        4,
        4,
    ]  # of fedavg, whose runs are one with another `method.alpha`


def test_seeds_share_what_does_not_depend_on_them(mine, monkeypatch):
    prepared = []

    def prepare(request):
        prepared.append(request)
        return prepare_once(request)

    prepare_once = record.prepare
    monkeypatch.setattr(record, "prepare", prepare)
    found = points_of({"seed": range(20)}, method=mine)
    assert len(prepared) == 1
    assert len({point.id for point in found}) == 20
    given = BASE | {"hidden": (8,), "seed": 7, "method": mine}
    assert found[7].run.record == run.from_options(given).record
    assert found[7].run.training != found[8].run.training


def test_unread_options_are_left_out_and_equal_runs_are_merged():
    found = points_of(
        {"method": ["fedavg", "fedprox"], "mu": [0.1, 1.0]},
        initial=5,
        participation="doubling",
    )
    assert names(found) == ["fedavg", "fedprox, mu=0.1", "fedprox, mu=1"]
    policies = [point.run.record["method"]["participation"] for point in found]
    assert [policy["initial"] for policy in policies] == [5, 5, 5]


def test_different_runs_of_one_id_are_refused(monkeypatch):
    """Eight digits of a hash name a folder: among 100,000 runs two have the same ones."""
    monkeypatch.setattr(Point, "id", "dd14b602")
    words = "seed=1 and 1 more runs: two runs have the id dd14b602, by chance; put them into two grids"
    with pytest.raises(ValueError, match=words):
        points_of({"seed": [1, 2]}, method="fedavg")


def test_a_run_is_the_same_run_in_a_larger_grid_and_when_it_is_made_longer():
    (alone,) = points_of(method="fedrep", num_rounds=3)
    larger = points_of(
        {"learning_rate": [0.01, 0.1], "seed": [0, 1]}, method="fedrep", num_rounds=5
    )
    assert [point.id == alone.id for point in larger] == [True, False, False, False]
    limits = points_of({"num_rounds": [3, 5]}, method="fedrep")
    assert len({point.id for point in limits}) == 2


@pytest.mark.parametrize("changed", [{"communication": 10.0}, {"data_dir": "elsewhere"}])
def test_a_run_is_the_same_run_at_another_cost_and_with_its_data_elsewhere(changed):
    (plain,), (other,) = points_of(method="fedrep"), points_of(method="fedrep", **changed)
    assert other.id == plain.id
    axes = {
        name: [value, 0.0 if name == "communication" else "here"]
        for name, value in changed.items()
    }
    assert len({point.id for point in points_of(axes, method="fedrep")}) == 2
    assert (
        len(
            {
                point.id
                for point in points_of({}, {"a": changed, "b": {}}, method="fedrep")
            }
        )
        == 2
    )


def test_variants_may_differ_in_a_limit():
    variants = {"short": {"num_rounds": 2}, "long": {"num_rounds": 4}}
    found = points_of({}, variants, method="fedrep", validation=0.2)
    assert [(point.name, point.run.settings.num_rounds) for point in found] == [
        ("short", 2),
        ("long", 4),
    ]
    assert (
        len({point.id for point in found})
        == len({rerun_of(point).id for point in found})
        == 2
    )


def test_limits_of_other_variants_and_rules_change_no_id():
    base = {"options": BASE | {"num_rounds": 5, "validation": 0.2}}
    base["axes"] = {"method": ["fedavg", "fedrep"], "seed": [0, 1]}
    base["variants"] = {"a": {}, "b": {"clock": "random"}}
    plain = points(at_scale(base, None, "grid"))
    over = {"variants": {"b": {"num_rounds": 9}}}
    over["where"] = [{"method": "fedrep", "seed": 1, "set": {"target": 0.5}}]
    scaled = points(at_scale(base | {"scales": {"cpu": over}}, "cpu", "grid"))
    for same in (lambda point: point.id, lambda point: rerun_of(point).id):
        kept = [
            point.name
            for point, again in zip(plain, scaled, strict=True)
            if same(point) == same(again)
        ]
        assert kept == ["a, fedavg, seed=0", "a, fedavg, seed=1", "a, fedrep, seed=0"]
    assert len({point.id for point in scaled}) == 8


def test_options_that_no_method_reads_are_refused_for_each_variant_and_rule():
    variants = {"few": {"initial": 2}, "many": {"initial": 5}}
    rules = [{"variant": "few", "method": "srpfl"}]
    with refused("variant 'few': initial: no method of its runs reads it.*; remove it"):
        points_of({"method": ["srpfl", "fedrep"]}, variants, rules)
    axes = {"method": ["fedprox", "fedavg"]}
    useless = {"method": "fedavg", "set": {"mu": 0.5}}
    spec = Spec(BASE, axes, {}, where=[useless])
    with refused("where: method=fedavg: mu: no method of its runs reads it.*; remove"):
        points(spec)


@pytest.mark.parametrize("option", ["num_rounds", "communication"])
def test_a_rerun_is_the_same_run_unless_the_option_distinguishes_runs(option):
    given = {"method": "fedrep", "validation": 0.2}
    (one,), (other,) = (points_of(**given, **{option: value}) for value in (3, 5))
    assert one.id == other.id
    assert rerun_of(one).id == rerun_of(other).id
    assert (
        len({rerun_of(point).id for point in points_of({option: [3, 5]}, **given)}) == 2
    )


def test_a_run_judged_by_validation_data_is_another_run():
    found = points_of(
        {"validation": [0.1, 0.2], "learning_rate": [0.1, 1]}, method="fedavg"
    )
    (plain,) = points_of(method="fedavg", learning_rate=0.1)
    assert names(found)[0] == "validation=0.1, learning_rate=0.1"
    assert len({plain.id, *(point.id for point in found)}) == 5
    assert [point.run.record["data"]["options"]["validation"] for point in found] == [
        0.1,
        0.1,
        0.2,
        0.2,
    ]
    (of_variant,) = points_of(
        variants={"tuned": {"validation": 0.2, "learning_rate": 1}}, method="fedavg"
    )
    for point, shown in (
        (found[0], {"learning_rate": 0.1}),
        (of_variant, {"variant": "tuned", "learning_rate": 1}),
    ):
        again = rerun_of(point)
        assert again.run.record["data"]["options"]["validation"] is None
        assert again.values | again.of_variant == shown


def test_variants_are_options_that_go_together():
    variants = {
        "slow": {"clock": "random"},
        "many": {"num_clients": 20, "learning_rate": 0.3},
    }
    found = points_of({"seed": [0, 1]}, variants, method="fedavg", learning_rate=0.1)
    assert names(found) == [
        "slow, seed=0",
        "slow, seed=1",
        "many, seed=0",
        "many, seed=1",
    ]
    of_both = [
        [p.run.clock, p.run.data["num_clients"], p.run.options["learning_rate"]]
        for p in found[::2]
    ]
    assert of_both == [["random", 10, 0.1], ["fixed", 20, 0.3]]


def test_a_variant_that_makes_no_difference_is_not_named():
    variants = {"few": {"initial": 2}, "many": {"initial": 5}}
    found = points_of({"method": ["srpfl", "fedrep"]}, variants)
    assert names(found) == ["few, srpfl", "fedrep", "many, srpfl"]


def test_different_runs_have_different_names():
    few, many = {"initial": 5}, {"initial": 10}
    variants = {
        "a": few,
        "b": many,
        "c": few | {"momentum": 0.5},
        "d": many | {"momentum": 0.5},
    }
    found = points_of({"method": ["srpfl", "fedrep"]}, variants)
    assert names(found) == [
        "a, srpfl",
        "a+b, fedrep",
        "b, srpfl",
        "c, srpfl",
        "c+d, fedrep",
        "d, srpfl",
    ]
    assert [point.values["variant"] for point in found] == [
        "a",
        ("a", "b"),
        "b",
        "c",
        ("c", "d"),
        "d",
    ]
    written_alike = points_of({"rounds_per_stage": [10, [10]]}, method="srpfl")
    assert names(written_alike) == [
        f"rounds_per_stage=10 ({point.id})" for point in written_alike
    ]
    assert len(set(names(written_alike))) == 2


def test_rules_exclude_runs_with_all_of_their_values():
    axes = {
        "method": ["fedavg", "fedrep", "fedsgd"],
        "hidden": [[8], [4, 4]],
        "seed": [0, 1],
    }
    rules = [
        {"method": ["fedavg", "fedsgd"], "seed": 1},
        {"hidden": [4, 4], "method": "fedrep"},
    ]
    options = {name: value for name, value in BASE.items() if name != "hidden"}
    found = points(Spec(options, axes, {}, rules))
    left = {
        (p.values["method"], p.run.options["hidden"], p.values["seed"]) for p in found
    }
    whole = set(itertools.product(("fedavg", "fedrep", "fedsgd"), ((8,), (4, 4)), (0, 1)))
    without = {
        (m, h, s)
        for m, h, s in whole
        if (m != "fedrep" and s == 1) or (m == "fedrep" and h == (4, 4))
    }
    assert left == whole - without
    variants = {"a": {"clock": "random"}, "b": {}}
    assert names(points_of({}, variants, [{"variant": "b"}], method="fedavg")) == ["a"]
    assert names(
        points_of(
            {}, variants, [{"clock": "random", "method": "fedavg"}], method="fedavg"
        )
    ) == ["b"]


def test_rules_may_overlap():
    rules = [{"method": "fedavg"}, {"method": "fedavg", "seed": 1}]
    assert (
        len(points_of({"method": ["fedavg", "fedrep"], "seed": [0, 1]}, exclude=rules))
        == 2
    )


def test_a_file_equals_the_same_grid_in_python(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(
        'out = "there"\n[options]\ndataset = "digits"\nnum_clients = 10\n[axes]\nmethod = ["srpfl", "fedavg"]\n'
        'learning_rate = [1, 0.5]\n[variants.x]\nclock = "random"\n[[exclude]]\nmethod = "fedavg"\n'
        "[slurm]\ntimeout_min = 3\n"
    )
    spec, others = read(file)
    assert others == {"out": "there", "slurm": {"timeout_min": 3}}
    wanted = Spec(
        {"dataset": "digits", "num_clients": 10},
        {"method": ["srpfl", "fedavg"], "learning_rate": [1.0, 0.5]},
        {"x": {"clock": "random"}},
        [{"method": "fedavg"}],
    )
    assert points(spec) == points(wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes", "invalid TOML"),
        ("methods = 3", "unknown entry 'methods'; options belong under"),
        ("axis = {}", "did you mean axes"),
        ("[exclude]\nseed = 1", r"exclude=.* must be a list of tables, \[\[exclude\]\]"),
        ("where = [3]", "where: 3 must be a table with values and `set`"),
        ("exclude = [3]", "exclude: 3 must be a table of options"),
        ("variants.a = 3", "variant 'a': 3 must be a table of options"),
        ("out = 3", "out=3 must be a string"),
        ("options = 3", r"options=3 must be a table, \[options\]"),
    ],
)
def test_invalid_files_are_refused(text, message, tmp_path):
    (tmp_path / "grid.toml").write_text(text)
    with refused(message):
        points(read(tmp_path / "grid.toml")[0])
    with pytest.raises(ValueError, match="No such file"):
        read(tmp_path / "nothing.toml")


def test_all_errors_are_reported_at_once():
    axes = {
        "method": ["srpfl"],
        "learning_rat": [1],
        "seed": [],
        "hidden": [8],
        "out": ["a"],
    }
    with pytest.raises(ValueError, match=r"^grid: ") as caught:
        points(
            Spec(
                {"dataset": 3, "log": "x"},
                axes,
                {"v": {"seed": "a", "method": "fedavg"}},
                [{"variant": "w"}, {}],
            )
        )
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "10 problems",
        "dataset=3 must be a string",
        "log is not an option of a grid",
        "'learning_rat' is not an option of fedjax-srp run (did you mean learning_rate?)",
        "seed=[] must be a list with at least one value",
        "hidden=8 must be a sequence, e.g. (8,)",
        "out is not an option of a grid: the grid names the folders",
        "variant 'v': seed='a' must be an integer",
        "variant 'v': method is also an axis",
        "exclude: unknown variant 'w'",
        "exclude: {} must be a table",
    ):
        assert part in text, (part, text)


@pytest.mark.parametrize(
    ("option", "word", "same", "other"),
    [
        (
            "clock",
            "fixed",
            srp.clocks.Fixed(srp.clocks.Exponential(1.0)),
            srp.clocks.Fixed(srp.clocks.Uniform(1.0, 2.0)),
        ),
        (
            "participation",
            "oort",
            srp.participation.Oort(10),
            srp.participation.Oort(5),
        ),
    ],
)
def test_a_part_as_a_word_and_as_an_object_is_one_run(option, word, same, other):
    found = points_of({option: [word, same, other]}, method="fedavg")
    assert len(found) == 2
    assert len({*names(found)}) == 2
    (of_word,) = points_of(method="fedavg", **{option: word})
    (of_object,) = points_of(method="fedavg", **{option: same})
    assert of_word.digest == of_object.digest == found[0].digest
    assert found[1].digest != found[0].digest


def test_arguments_of_simulate_are_refused_with_the_way_to_do_it():
    for given in ({"random": "init", "trained": {}}, ["init"]):
        with refused("^grid: axes: start is not an option of a grid: call srp.simulate"):
            points_of({"start": given}, method="fedavg")
    with refused("^grid: keep_clients is not an option of a grid: give models"):
        points_of(method="fedavg", keep_clients=True)
    with refused("^grid: axes: 'mu_' is not an option of fedjax-srp run"):
        points_of({"mu_": {"a": 1.0}}, method="fedprox")


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (float, 1, 1.0),
        (tuple[str, ...] | None, "all", ("all",)),
        (int, np.int64(3), 3),
        (int, 2**32 - 1, 2**32 - 1),
    ],
)
def test_values_are_converted_to_the_type_of_the_option(kind, value, wanted):
    found = coerce("x", Option("x", kind, None, ""), value)
    assert (found, type(found)) == (wanted, type(wanted))
    with refused("x=True must be "):
        coerce("x", Option("x", kind, None, ""), True)


COUNTS = {"demo": 24, "learning_rates": 16, "clocks": 2 * 2 * 2 + 2 * 2 + 2}


def test_every_example_is_read():
    assert {file.stem for file in EXAMPLES.glob("*.toml")} == COUNTS.keys()
    for name, count in COUNTS.items():
        spec, others = read(EXAMPLES / f"{name}.toml")
        assert others == {"out": f"runs/grids/{name}"}
        assert len(points(spec)) == count, name


def test_a_thousand_points_are_planned_in_seconds(tmp_path):
    """Loading the data and tracing a program of each method take most of the time."""
    axes = {
        "method": ["srpfl", "fedrep", "fedavg", "ditto"],
        "learning_rate": np.geomspace(0.01, 1, 10).tolist(),
    }
    plan(
        points_of(axes | {"seed": [0]}, num_rounds=2),
        tmp_path,
        None,
        workers=2,
        sharers=2,
        devices=1,
    )
    begin = time.process_time()
    found = points_of(axes | {"seed": range(25)}, num_rounds=2)
    planned = plan(found, tmp_path, None, workers=2, sharers=2, devices=1)
    assert len(found) == sum(len(unit.members) for unit in planned) == 1000
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("option", "values"),
    [("models", [False, True]), ("checkpoint", [True, False]), ("chunk_size", [2, 3])],
)
def test_options_that_change_no_simulation_distinguish_runs_as_axes(option, values):
    found = points_of({option: values}, method="fedavg")
    assert [point.values[option] for point in found] == values
    assert len({point.id for point in found}) == 2
