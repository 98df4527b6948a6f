"""Scales, rules that set options, chosen variants, and arguments beside a file."""

import json

import pytest
from command_line import main
from reference.small import refused
from small_grid import DATA, OPTIONS, grid

import fedjax_srp as srp
from fedjax_srp.lab.grids.points import at_scale, overlaid, points, read

FILE = """
[options]
num_clients = 10
hidden = [8]
[axes]
method = ["srpfl", "fedrep", "fedavg"]
seed = [0, 1, 2]
[variants.digits]
dataset = "digits"
num_rounds = 100
[variants.mnist]
dataset = "mnist"
[[where]]
method = ["srpfl", "fedrep"]
set = {evaluations = ["fine_tune", "own_head"]}
[[exclude]]
variant = "mnist"
seed = 2
[scales.smoke.options]
num_clients = 5
[scales.smoke.axes]
seed = [0]
variant = ["digits"]
[scales.smoke.variants.digits]
num_rounds = 4
[[scales.smoke.where]]
method = "fedavg"
set.evaluations = ["global", "fine_tune"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    return path


def evaluations_of(found):
    return {p.run.method: p.run.settings.evaluations for p in found}


def test_a_scale_lies_over_the_other_tables(file):
    whole = points(read(file)[0])
    assert len(whole) == 3 * 3 + 3 * 2
    found = points(read(file, "smoke")[0])
    assert [point.name for point in found] == [
        f"digits, {method}, seed=0" for method in ("srpfl", "fedrep", "fedavg")
    ]
    assert {point.run.settings.num_rounds for point in found} == {4}
    assert {point.run.data["num_clients"] for point in found} == {5}
    own = ("fine_tune", "own_head")
    expected = {"srpfl": own, "fedrep": own, "fedavg": ("global", "fine_tune")}
    assert evaluations_of(found) == expected
    assert evaluations_of(whole) == expected | {"fedavg": None}


def test_a_rule_sets_options_of_the_runs_that_it_matches_alone(file):
    spec = at_scale(
        {
            "options": OPTIONS,
            "axes": {"method": ["fedavg_ft", "fedavg"]},
            "where": [
                {"method": "fedavg_ft", "set": {"fine_tune_optimizer.momentum": 0.5}},
                {"num_clients": 6, "set": {"epochs": 3}},
            ],
        },
        None,
        "grid",
    )
    tuned, plain = points(spec)
    assert tuned.run.floats["fine_tune_optimizer.momentum"] == 0.5
    assert "fine_tune_optimizer.momentum" not in plain.run.floats
    assert [point.run.options["epochs"] for point in (tuned, plain)] == [3, 3]
    assert tuned.of_variant == {"fine_tune_optimizer.momentum": 0.5, "epochs": 3}


def test_a_rule_overrides_options_and_earlier_rules():
    rules = [
        {"method": "fedavg", "set": {"epochs": 2}},
        {"method": "fedavg", "seed": 1, "set": {"epochs": 3}},
    ]
    axes = {"method": ["fedavg", "fedrep"], "seed": [0, 1]}
    tables = {"options": OPTIONS | {"epochs": 1}, "axes": axes, "where": rules}
    found = points(at_scale(tables, None, "grid"))
    epochs = {point.name: point.run.options["epochs"] for point in found}
    assert epochs == {
        "fedavg, seed=0": 2,
        "fedavg, seed=1": 3,
        "fedrep, seed=0": 1,
        "fedrep, seed=1": 1,
    }


def test_rules_of_a_layer_are_added_to_those_below():
    tables = {
        "options": OPTIONS,
        "axes": {"method": ["fedavg", "fedrep"], "seed": [0, 1]},
        "exclude": [{"method": "fedrep", "seed": 1}],
    }
    over = at_scale({"exclude": [{"method": "fedavg", "seed": 0}]}, None, "grid")
    found = points(overlaid(at_scale(tables, None, "grid"), over))
    assert [point.name for point in found] == ["fedavg, seed=1", "fedrep, seed=0"]


def test_arguments_beside_a_file_replace_and_choose(file):
    spec, _ = read(file)
    over = {"axes": {"method": ["fedavg"], "variant": ["digits"]}}
    over |= {"options": {"seed": 7, "clock": "random"}}
    (point,) = points(overlaid(spec, at_scale(over, None, "grid")))
    assert (point.run.seed, point.run.clock) == (7, "random")
    (same,) = points(overlaid(spec, at_scale({"axes": {"seed": [7]}}, None, "grid")))[4:5]
    assert (same.run.method, same.values["variant"]) == ("fedrep", "mnist")
    chosen = points(overlaid(spec, at_scale({"axes": over["axes"]}, None, "grid")))
    by_name = {other.name: other.id for other in points(spec)}
    assert {point.name: point.id for point in chosen} == {
        name: id for name, id in by_name.items() if name.startswith("digits, fedavg")
    }  # the same runs as in the whole grid


def laid_over(file, **over):
    return points(overlaid(read(file)[0], at_scale(over, None, "grid")))


def test_arguments_without_effect_are_refused_as_those_of_the_file_are(file):
    """What the file needs for the runs that arguments leave out is none of these."""
    assert len(laid_over(file, axes={"method": ["fedavg"]})) == 5
    with refused("initial: no method of the grid reads it.* remove it"):
        laid_over(file, axes={"method": ["fedavg"]}, options={"initial": 3})
    with refused("variant 'digits': initial: no method of its runs reads"):
        variants = {"digits": {"initial": 3}}
        laid_over(file, axes={"method": ["fedavg"]}, variants=variants)
    with refused("where: num_clients=9 matches no run; correct or remove"):
        laid_over(file, where=[{"num_clients": 9, "set": {"epochs": 2}}])
    many = [{"num_clients": 10, "set": {"epochs": 2}}]  # as without a scale
    small = overlaid(read(file, "smoke")[0], at_scale({"where": many}, None, "grid"))
    assert {point.run.options.get("epochs") for point in points(small)} == {None}
    few = [{"variant": "mnist", "num_clients": 10, "set": {"epochs": 2}}]
    assert len(laid_over(file, axes={"variant": ["digits"]}, where=few)) == 9
    file.write_text(FILE.replace("hidden = [8]", "hidden = [8]\nmu = 0.1"))
    with refused("mu: no method of the grid reads it.* remove it"):
        laid_over(file, axes={"method": ["fedavg"]})
    assert laid_over(file, axes={"method": ["fedprox"]})
    with refused("mu: no method of the grid reads it"):
        points(read(file, "smoke")[0])


def test_rules_for_methods_and_seeds_that_no_run_has_are_noted(file):
    """As in a copy of a file with fewer methods and seeds; an object's name is known too."""
    axes = 'method = ["srpfl", "fedrep", "fedavg"]\nseed = [0, 1, 2]'
    file.write_text(FILE.replace(axes, 'method = ["fedavg"]\nseed = [0, 1, 2]'))
    with pytest.warns(UserWarning, match="where: method=srpfl or fedrep .*this method"):
        found = points(read(file)[0])
    assert evaluations_of(found) == {"fedavg": None}
    file.write_text(FILE.replace(axes, 'method = ["fedrep"]\nseed = [0, 1]'))
    with pytest.warns(UserWarning, match="exclude: variant=mnist, seed=2 .*this seed"):
        assert len(points(read(file)[0])) == 2 * 2
    file.write_text(FILE)
    mine = srp.algorithms.FedAvg(srp.models.MLP((8, 8), 10, hidden=(4,)))
    (point,) = laid_over(
        file,
        axes={"method": {"mine": mine}, "variant": ["digits"], "seed": [0]},
        where=[{"method": "mine", "set": {"eval_every": 2}}],
    )
    assert point.run.settings.eval_every == 2


def test_options_of_a_scale_must_have_an_effect_at_that_scale(file):
    file.write_text(FILE.replace("num_clients = 5", "num_clients = 5\nmu = 0.1"))
    assert points(read(file)[0])
    with refused("mu: no method of the grid reads it.* remove it"):
        points(read(file, "smoke")[0])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"where": [3]}, "where: 3 must be a table with values and"),
        ({"exclude": [3]}, "exclude: 3 must be a table of options"),
        ({"axes": {"variant": [["a"]]}}, r"axes: unknown variant \['a'\]; choose from a"),
        ({"where": [{"method": "fedavg"}]}, "where: .* must be a table with values and"),
        ({"where": [{"set": {"epochs": 1}}]}, "where: .* must be a table of options"),
        (
            {"where": [{"seed": 0, "set": {"epoch": 1}}]},
            "where: 'epoch' is not an option .*epochs",
        ),
        (
            {"where": [{"seed": 0, "set": {"method": "fedsgd"}}]},
            "where: method is also an axis; remove",
        ),
        (
            {"where": [{"num_clients": 9, "set": {"epochs": 1}}]},
            "where: num_clients=9 matches no run; correct",
        ),
        (
            {"exclude": [{"method": ["fedavg", "fedrap"], "seed": 1}]},
            "exclude: method=fedavg or fedrap, seed=1: method='fedrap' is unknown.*fedrep",
        ),
        ({"axes": {"variant": ["z"]}}, "axes: unknown variant 'z'; choose from a, b"),
        ({"axes": {"variant": []}}, r"axes: variant=\[\] must be a list of variants"),
    ],
)
def test_wrong_rules_and_variants_are_refused(tables, message):
    base = {"options": OPTIONS, "variants": {"a": {}, "b": {"epochs": 2}}}
    axes = {"axes": {"method": ["fedavg"], "seed": [0, 1]} | tables.pop("axes", {})}
    with refused(f"^grid: .*{message}"):
        points(at_scale(base | axes | tables, None, "grid"))


def test_unknown_scales_and_entries_of_scales_are_refused(file, tmp_path):
    with refused("scale='smok' is unknown .*smoke"):
        read(file, "smok")
    file.write_text("[options]\n[axes]")
    with refused("scale='cpu': the grid has no scales; leave it out"):
        read(file, "cpu")
    file.write_text("[scales.cpu]\nnum_rounds = 3")
    with refused(r"file=.*: scales.cpu: unknown entry 'num_rounds'.*under \[options\]"):
        read(file)
    with refused("file=.*scales stand in the file; give them there"):
        srp.grid(file, scales={"cpu": {}}, out=tmp_path)


@pytest.mark.usefixtures("no_rounds")
def test_a_training_judged_several_times_has_a_row_for_each(tmp_path):
    """In Python, at a scale; the run has one folder, the first row its default evaluation."""
    judged = {"method": "fedavg", "set": {"evaluations": ["global", "fine_tune"]}}
    found = grid(
        tmp_path,
        {"method": ["fedavg", "fedrep"], "seed": [0, 1]},
        scales={"small": {"where": [judged]}},
        scale="small",
    )
    rows = found.summary()
    of_fedavg = rows[rows["method"] == "fedavg"]
    assert of_fedavg["evaluation"].tolist() == ["global", "fine_tune"] * 2
    assert rows["id"].nunique() == len(found.folders) == 4
    ids = {name: folder.name.rpartition("-")[2] for name, folder in found.folders.items()}
    assert dict(zip(rows["run"], rows["id"], strict=True)) == ids
    groups = found.histories_by("method")
    assert list(groups) == ["fedavg", "fedrep"]
    for history, final in zip(
        groups["fedavg"], of_fedavg["final_accuracy"][1::2], strict=True
    ):
        judged = history.judged_by("fine_tune")
        assert judged.final_accuracy == final
        assert list(judged.accuracies) == ["fine_tune", "global"]
    assert next(iter(found.histories_by("method", "seed"))) == ("fedavg", 0)
    best = found.best(judged_on="test")  # by the default evaluation
    numbers = {name: run.final_accuracy for name, run in found.histories.items()}
    means = {
        method: sum(numbers[f"{method}, seed={seed}"] for seed in (0, 1))
        for method in ("fedavg", "fedrep")
    }
    assert best[0].startswith(max(means, key=means.__getitem__))
    with refused("axes='metod' is unknown"):
        found.histories_by("metod")
    with refused("evaluation='nope' is unknown"):
        groups["fedavg"][0].judged_by("nope")


@pytest.mark.usefixtures("no_rounds")
def test_the_command_takes_a_scale(tmp_path, capsys):
    file = tmp_path / "grid.toml"
    options = DATA | {"hidden": [4], "method": "fedavg", "num_rounds": 2}
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    file.write_text(
        "\n".join(["[options]", *lines, "[scales.two.axes]", "seed = [0, 1]"])
    )
    words = ("--out", tmp_path / "out", "--workers", 0, "--no-progress")
    assert main("grid", file, "--scale", "two", *words) == 0
    assert "2 of 2 runs finished" in capsys.readouterr().out
