"""`fedjax-srp report`: which runs it averages, what it calls the others, and that it always prints its table."""

import copy
import dataclasses
import math
import re
import shlex
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from reference.histories import made_history, without_figures

import fedjax_srp as srp
from fedjax_srp import storage
from fedjax_srp.commands import cli
from fedjax_srp.commands.report import report
from fedjax_srp.report import panels, repeats, table

DATA = {"num_clients": 4, "classes_per_client": 3, "seed": 0}
METHOD = {"learning_rate": 0.1, "hidden": [8], "participation": "full"}
CLOCK = {
    "part": "fedjax_srp.clocks.fixed.Fixed",
    "distribution": {"part": "fedjax_srp.clocks.distributions.Exponential", "rate": 1.0},
    "work": 1.0,
}
SGD = {"part": "fedjax_srp.algorithms.optimizers.SGD", "learning_rate": 0.1}
DOUBLING = {"initial": 2, "by": "realised"}


def made_by(name="fedrep", key=0, options=None, **config):
    """What a run records."""
    return {
        "name": name,
        "algorithm": "fedrep",
        "participation": "full",
        "clock": "fixed",
        "dataset": "digits",
        "num_clients": 4,
        "options": METHOD | (options or {}),
        "method": {"name": name, "algorithm": {"part": "fedjax_srp.algorithms.fedrep.FedRep", "optimizer": SGD}},
        "clock_options": CLOCK,
        "dataset_options": DATA,
        "data_checksum": "1a2b3c4d",
        "unknown": [],
        "eval_every": 1,
        "evaluations": ["fine_tune"],
        "chunk_size": 4,
        "num_rounds": 3,
        "num_seeds": None,
        "key": [0, key],
    } | config


def run(scores=(0.3, 0.6, 0.9), times=1.0, config=None, **fields):
    """Four clients with one accuracy, evaluated after every round; rounds of equal length."""
    config = config or made_by()
    given = {"name": config["name"], "cohort_size": [4] * len(scores), "host_seconds": 1.0, "config": config}
    return made_history(scores, [times] * len(scores), clients=4, **given | fields)


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Saves runs in numbered folders; figures are left out."""
    without_figures(monkeypatch)
    count = iter(range(100))

    def put(*histories):
        return [history.save(tmp_path / f"run{next(count)}") for history in histories]

    return put


def rows(folder, communications=(0,), target=None):
    """The table that is written, by name of the row, and the text that is printed."""
    text = report(str(folder), target, communications, None)
    return pd.read_csv(folder / "table.csv", keep_default_na=False).set_index("method"), text


TINY = (
    "--dataset digits --num-clients 5 --classes-per-client 3 --max-examples 10 --hidden 8 --head-epochs 1 "
    "--fine-tune-epochs 1 --num-rounds 2 --eval-every 1 --no-progress --no-checkpoint"
)


@pytest.mark.long
def test_a_sweep_from_python_and_from_the_command_line_has_the_same_table(tmp_path, save):
    data = srp.data.load("digits", num_clients=5, classes_per_client=3, max_examples=10)
    for rate in (0.1, 0.02):
        options = {"hidden": (8,), "head_epochs": 1, "fine_tune_epochs": 1, "learning_rate": rate}
        method = srp.methods.get("fedrep", dataset=data, **options)
        for seed in (2, 0, 1):
            key = jax.random.key(seed)
            history = srp.simulate(method, data, num_rounds=2, eval_every=1, key=key, progress=False)
            history.save(tmp_path / "python" / f"{rate}_{seed}")
            words = ["run", "--method", "fedrep", *shlex.split(TINY), "--learning-rate", str(rate), "--seed", str(seed)]
            assert cli.main([*words, "--out", str(tmp_path / "shell" / f"{seed}_{rate}")], set_up_cores=False) == 0
    tables = {}
    for where in ("python", "shell"):
        report(str(tmp_path / where), None, (0, 10), None)
        tables[where] = pd.read_csv(tmp_path / where / "table.csv").drop(columns=["compile_seconds", "host_seconds"])
    pd.testing.assert_frame_equal(tables["python"], tables["shell"], check_exact=True)
    assert tables["shell"]["method"].tolist() == ["FedRep, learning_rate=0.02", "FedRep, learning_rate=0.1"]
    assert tables["shell"]["runs"].tolist() == [3, 3]
    text = report(str(tmp_path), None, (0,), None)  # each of them twice
    assert pd.read_csv(tmp_path / "table.csv")["runs"].tolist() == [3, 3]
    assert text.count(" (as ") == 6


def test_runs_that_differ_in_the_seed_alone_are_repeats(save, tmp_path):
    save(
        *(run(config=made_by(key=key, chunk_size=key + 1, seed=key)) for key in range(2)),
        run(config=made_by(key=2, evaluations=["fine_tune", "own_head"], num_seeds=3)),
        run(config=made_by(key=3, options={"learning_rate": float(np.float32(0.1))})),  # from simulate_seeds' values
    )
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 4}
    assert "not recorded" not in text


def test_runs_of_srpfl_keep_their_factor(save, tmp_path):
    doubling = {"participation": "doubling", **DOUBLING}
    for rate in (0.1, 0.2):
        for key in range(2):
            options = {"learning_rate": rate}
            save(run(times=4.0, config=made_by(key=key, options=options)))
            for initial in (1, 2):
                more = {**options, **doubling, "initial": initial}
                save(run(times=rate * initial, config=made_by("srpfl", key, more, participation="doubling")))
    found, _ = rows(tmp_path)
    twins = {f"SRPFL, learning_rate={r}, initial={n}": f"FedRep, learning_rate={r}" for r in (0.1, 0.2) for n in (1, 2)}
    assert found["twin"].to_dict() == twins | dict.fromkeys(twins.values(), "")
    assert list(found.index) == [*twins, *dict.fromkeys(twins.values())]
    factors = [float(found.loc[row, "speed_up_0"]) for row in twins]
    assert factors == pytest.approx([4 / 0.1, 4 / 0.2, 4 / 0.2, 4 / 0.4])


def test_a_twin_may_go_on_for_longer(save, tmp_path):
    """As it does at equal simulated time; of several, the one of equal length is the twin."""
    doubling = {"participation": "doubling", **DOUBLING}
    config = {"num_rounds": 500, "time_limit": 40.0}
    save(run(times=0.5, config=made_by("srpfl", options=doubling, participation="doubling") | config))
    save(run(times=2.0, config=made_by() | {"num_rounds": 100, "time_limit": 40.0}))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 4
    save(run(times=2.5, config=made_by() | config | {"num_rounds": 700}))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 5
    save(run(times=3.0, config=made_by() | config))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 6
    save(run(times=9.0, config=made_by("lg_srpfl", options=doubling, participation="doubling") | config))
    save(run(times=9.0, config=made_by("lg_fedavg") | config | {"eval_every": 3}))
    found, _ = rows(tmp_path)
    (twin,) = [row["twin"] for name, row in found.iterrows() if str(name).startswith("LG-SRPFL")]
    assert not twin  # its times are known less precisely


def test_parts_put_together_by_hand_have_twins_too(save, tmp_path):
    without = {"model": "mlp", "hidden": [8], "learning_rate": 0.1}
    parts = {"participation": "doubling", **without}
    config = made_by("fedrep + doubling", participation="doubling") | {"options": parts | DOUBLING}
    save(run(config=config), run(times=2.0, config=made_by() | {"options": without}))
    wider = {**without, "hidden": [16]}
    found, _ = rows(tmp_path)
    assert float(found.loc["fedrep + doubling", "speed_up_0"]) == 2
    save(run(times=3.0, config=made_by() | {"options": wider}))
    found, _ = rows(tmp_path)
    assert set(found.index) == {"FedRep + doubling, hidden=[8]", "FedRep, hidden=[8]", "FedRep, hidden=[16]"}
    assert found.loc["FedRep + doubling, hidden=[8]", "twin"] == "FedRep, hidden=[8]"


DIFFERENCES = {
    "an option": ({"options": METHOD | {"hidden": [16]}}, "hidden=[8]", "hidden=[16]"),
    "the clock": ({"clock_options": {**CLOCK, "work": 2.0}}, "clock.work=1", "clock.work=2"),
    "the rate of the clock": (
        {"clock_options": {**CLOCK, "distribution": {**CLOCK["distribution"], "rate": 0.5}}},
        "clock.rate=1",
        "clock.rate=0.5",
    ),
    "the kind of clock": (
        {"clock": "dynamic", "clock_options": {**CLOCK, "part": "fedjax_srp.clocks.dynamic.Dynamic"}},
        "clock=fixed",
        "clock=dynamic",
    ),
    "the distribution, of equal parameters": (
        {"clock_options": {**CLOCK, "distribution": {"part": "mine.Pareto", "rate": 1.0}}},
        "clock.distribution=Exponential",
        "clock.distribution=mine.Pareto",
    ),
    "the optimizer, of equal options": (
        {"method": {"algorithm": {"part": "fedjax_srp.algorithms.fedrep.FedRep", "optimizer": {"part": "mine.SGD"}}}},
        "optimizer=SGD",
        "optimizer=mine.SGD",
    ),
    "the division": (
        {"dataset_options": DATA | {"seed": 7}, "data_checksum": "5e6f7a8b"},
        "partition_seed=0",
        "partition_seed=7",
    ),
    "the arrays": ({"dataset_options": None, "data_checksum": "5e6f7a8b"}, "data 1a2b3c4d", "data 5e6f7a8b"),
    "the data behind one name": ({"data_checksum": "5e6f7a8b"}, "data 1a2b3c4d", "data 5e6f7a8b"),
    "rounds": ({"num_rounds": 4}, "num_rounds=3", "num_rounds=4"),
    "the grid": ({"eval_every": 2}, "eval_every=1", "eval_every=2"),
    "participation": ({"participation": "uniform"}, "participation=full", "participation=uniform"),
}


@pytest.mark.parametrize(("change", "one", "other"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_whatever_else_differs_makes_a_row(change, one, other, save, tmp_path):
    save(*(run(config=made_by(key=key)) for key in range(2)))
    save(*(run(config=made_by(key=key) | change) for key in range(2)))  # under equal keys
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {f"FedRep, {one}": 2, f"FedRep, {other}": 2}
    assert "not recorded" not in text


def test_data_of_one_checksum_are_the_same_however_they_were_named(save, tmp_path):
    save(run(), run(config=made_by(key=1, dataset_options=DATA | {"data_dir": "elsewhere"})))
    assert rows(tmp_path)[0]["runs"].to_dict() == {"fedrep": 2}
    save(run(config=made_by(options={"learning_rate": 0.2}, dataset_options=DATA | {"seed": 5})))
    assert list(rows(tmp_path)[0].index) == ["FedRep, learning_rate=0.1", "FedRep, learning_rate=0.2"]


def test_seeds_are_shown_as_they_were_given():
    for key, shown in [([0, 5], "seed 5"), ([0, 5, 0, 5], "seed 5"), ([7, 5], "key [7, 5]")]:
        assert repeats.of(run(config=made_by() | {"key": key}), "folder").called == shown
    assert repeats.of(run(config=made_by(seed=3)), "folder").called == "seed 3"


def test_rows_of_one_training_say_so_and_options_that_are_none_are_left_out():
    made = [
        run(config=made_by("fedavg", options={"evaluation": "global"}), host_seconds=3.5),
        run(config=made_by("fedavg_ft", options={"evaluation": "fine_tune"}), host_seconds=3.5),
        run(config=made_by("fedavg", options={"evaluation": "global", "momentum": 0.5}), host_seconds=4.5),
        run(config=made_by("fedavg", options={"evaluation": "global", "momentum": None}, num_rounds=5)),
    ]
    found = repeats.rows([repeats.of(each, f"folder{place}") for place, each in enumerate(made)])
    assert [note for note in found.notes if "training" in note] == [
        "rows of one training, each with all of its seconds: FedAvg, num_rounds=3; FedAvg-FT, num_rounds=3"
    ]
    assert not [name for name in found.runs if "None" in name]


OTHER_RATE, OTHER_DATA = "fine_tune_optimizer.learning_rate", {"data_checksum": "5e6f7a8b"}
NAMES = {  # of several rows: what made them -> their names, in the order of the table
    "nested options of one name": {
        f"FedRep, learning_rate={a}, {OTHER_RATE}={b}": made_by(options={"learning_rate": a, OTHER_RATE: b})
        for a, b in ((1, 2), (2, 1))
    },
    "options of method and data of one name": {
        f"FedRep, method.alpha={a}, data.alpha={b}": made_by(
            options={"alpha": a}, dataset_options={**DATA, "alpha": float(b)}, **(OTHER_DATA if b == 6 else {})
        )
        for a, b in ((0.1, 5), (0.1, 6), (0.9, 5))
    },
    "a huge number": {f"FedRep, learning_rate={n:g}": made_by(options={"learning_rate": n}) for n in (2.0, 1e30)},
}


@pytest.mark.parametrize("made", NAMES.values(), ids=NAMES)
def test_rows_are_called_by_what_tells_them_apart(made, save, tmp_path):
    save(*(run(config=config) for config in made.values()))
    assert list(rows(tmp_path)[0].index) == list(made)


def test_an_optimizer_beside_that_of_training_is_named_by_what_it_has_of_its_own(save, tmp_path):
    def config(rate, momentum, key, **more):
        options = {"learning_rate": rate, "momentum": None, "fine_tune_optimizer": None, **more}
        if momentum is not None:
            del options["fine_tune_optimizer"]
            options |= {"fine_tune_optimizer.learning_rate": rate, "fine_tune_optimizer.momentum": momentum}
        made = made_by(key=key, options=options)
        made["method"]["algorithm"] |= {"fine_tune_optimizer": momentum and SGD}
        return made

    save(*(run(config=config(0.1, momentum, key)) for momentum in (None, 0.5) for key in range(2)))
    found, _ = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 2, "FedRep, fine_tune_optimizer.momentum=0.5": 2}
    save(run(config=config(0.2, 0.5, 0)), run(config=config(0.2, 0.9, 0)))
    assert set(rows(tmp_path)[0].index) == {
        "FedRep, learning_rate=0.1",
        "FedRep, learning_rate=0.1, fine_tune_optimizer.momentum=0.5",
        "FedRep, learning_rate=0.2, fine_tune_optimizer.momentum=0.5",
        "FedRep, learning_rate=0.2, fine_tune_optimizer.momentum=0.9",
    }


def test_a_long_value_is_shortened_and_still_told_apart(save, tmp_path):
    times = [list(range(30)), [*range(29), 0]]
    save(*(run(config=made_by(clock="trace", clock_options={"times": values})) for values in times))
    names = list(rows(tmp_path)[0].index)
    assert len(set(names)) == 2
    assert max(map(len, names)) < 70


def test_methods_differ_in_their_own_nature_without_a_word(save, tmp_path):
    fedavg = made_by("fedavg", algorithm="fedavg", evaluations=["global"])
    save(run(), run(config=fedavg, accuracies={"global": np.full((3, 4), 0.5)}))
    assert list(rows(tmp_path)[0].index) == ["fedrep", "fedavg"]


def test_the_same_run_twice_is_taken_once(save, tmp_path):
    """As where two runs of a grid differ in their cost of communication alone."""
    costs = [made_by(arguments={"command": "run", "communication": cost}) for cost in (0, 10, 20)]
    first, second, third = save(*(run(config=config) for config in costs))
    save(run(scores=(0.1, 0.2, 0.3), config=made_by(key=1)))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 2}
    names = f"{second} (as {first}), {third} (as {first})"
    assert f"left out, duplicates of other runs: {names}" in text.splitlines()


def test_one_run_with_two_results_is_refused(save, tmp_path):
    first, second = save(run(config=made_by(seed=3)), run(scores=(0.1, 0.2, 0.3), config=made_by(num_devices=2)))
    with pytest.raises(ValueError, match=f"{first} and {second} hold the same run, fedrep with seed .*; remove one of"):
        report(str(tmp_path), None, (0,), None)


def test_what_is_not_recorded_is_said(save, tmp_path):
    save(run(config=made_by("mine", unknown=["mine"])))
    assert "not recorded" not in rows(tmp_path)[1]  # nothing is averaged
    save(run(config=made_by("mine", 1, unknown=["mine"])))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"mine": 2}
    (note,) = (line for line in text.splitlines() if "not recorded" in line)
    assert "the definition of mine is not recorded; make it of numbers, texts, named functions and parts" in note
    assert note in (tmp_path / "table.txt").read_text()


def test_runs_that_prove_to_differ_are_not_averaged_though_nobody_said_why(save, tmp_path):
    config = [made_by("mine", key, unknown=["mine"]) for key in range(2)]
    save(*(run(scores=(0.1, 0.2, top), config=c) for top in (0.5, 0.9) for c in config))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {f"mine, folder=run{i}": 1 for i in range(4)}
    assert "one row per folder: runs with equal seeds differ, and the definition of mine is not recorded" in text
    save(run(scores=(0.1, 0.2, 0.5), config=config[0]))
    found, text = rows(tmp_path)
    assert len(found) == 4
    assert f"{tmp_path / 'run4'} (as {tmp_path / 'run0'})" in text


def test_unfinished_runs_and_errors_are_left_out_by_name(save, tmp_path):
    (finished,) = save(run())
    (linear,) = save(run(config=made_by(key=1), score_name="squared error", smaller_is_better=True))
    for folder in (tmp_path / "begun", finished):
        (folder / "checkpoint").mkdir(parents=True)
        (folder / "checkpoint" / "arguments.json").write_text("{}")
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 1}
    assert f"left out, not finished: {tmp_path / 'begun'}" in text.splitlines()
    assert f"left out, their scores are errors: {linear}" in text


def test_files_of_an_earlier_report_with_other_names_are_removed(save, tmp_path):
    def of_task(dataset, key=0):
        return run(config=made_by(dataset=dataset, key=key))

    def written():
        return {path.name for path in tmp_path.iterdir() if path.is_file()}

    (tmp_path / "table.csv").write_text("not of a report")
    (first,) = save(of_task("a/b"))
    (other,) = save(of_task("a_b"))
    text = report(str(tmp_path), None, (0,), None)
    several = {f"{name.format('_a_b_4_clients' + number)}" for name in panels.FILES for number in ("", "_1")}
    assert written() == several | {"report.html", "table.csv"}
    assert "removed" not in text
    assert "removed" not in report(str(tmp_path), None, (0,), None)
    assert (tmp_path / "table.csv").read_text() == "not of a report"
    shutil.rmtree(other)
    text = report(str(tmp_path), None, (0,), None)
    assert "removed files of an earlier report: table_a_b_4_clients.txt, table_a_b_4_clients.csv, accuracy_a" in text
    assert written() == {name.format("") for name in panels.FILES} | {"report.html"} | {n for n in several if "_1" in n}
    save(of_task("c"))
    text = report(str(tmp_path), None, (0,), None)
    assert "removed files of an earlier report: table.txt, table.csv, accuracy.png, accuracy.pdf" in text
    assert not written() & {name.format("") for name in panels.FILES}
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)  # a run with others below it: the figure is that of the run
    for path in first.iterdir():
        path.unlink()
    (tmp_path / "accuracy.png").write_bytes(b"of the run")
    report(str(tmp_path), None, (0,), None)
    assert (tmp_path / "accuracy.png").read_bytes() == b"of the run"


def test_a_full_disk_leaves_the_report_as_it_was(save, tmp_path, monkeypatch, capsys):
    save(run())
    report(str(tmp_path), None, (0,), None)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert len(before) == 5
    save(run(config=made_by(key=1)))

    def full(text, path, *_, **__):
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pandas.DataFrame.to_csv", full)
    assert cli.main(["report", str(tmp_path)], set_up_cores=False) == 2
    assert f"error: No space left on device: '{tmp_path}'; what was written" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_host_seconds_that_are_not_known_are_a_stroke(save, tmp_path):
    save(run(host_seconds=math.nan))
    _, text = rows(tmp_path)
    assert text.splitlines()[4].endswith("  -")


def test_unfinished_runs_of_a_grid_are_named(tmp_path, save):
    book = {"1a": {"2b": "run0", "3c": "b"}, "4d": {f"{i}e": f"c{i:02}" for i in range(12)}}
    storage.write_json(tmp_path / "grid.json", book)
    with pytest.raises(ValueError, match=r"holds no finished run; 14 are started or planned; the command that started"):
        report(str(tmp_path), None, (0,), None)
    save(run())
    names = [str(tmp_path / name) for name in ("b", *(f"c{i:02}" for i in range(11)))]
    assert f"left out, not finished: {', '.join(names)} and 1 more" in rows(tmp_path)[1].splitlines()
    (tmp_path / "grid.json").write_text("{}")
    assert "not finished" not in rows(tmp_path)[1]


def test_repeats_without_a_common_time_have_table_and_figure(save, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_srp.commands.report.figure", panels.figure)
    save(*(run(times=times, config=made_by(key=key)) for key, times in enumerate((1.0, 1000.0))))
    found, text = rows(tmp_path, (0, 10, 1e6))
    assert float(found.loc["fedrep", "time_0"]) == (3 + 3000) / 2
    assert text.splitlines()[2] == (tmp_path / "table.txt").read_text().splitlines()[0]
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_all_diverged_have_a_table(save, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_srp.commands.report.figure", panels.figure)
    save(run(scores=(math.nan, math.nan, math.nan)))
    found, text = rows(tmp_path, (0, 10))
    assert "not reached" in text
    assert found.loc["fedrep", "reached"] == 0


def test_the_table_says_what_judged_what_diverged_and_what_the_clock_has(save, tmp_path):
    own = {"own_head": np.full((3, 4), 0.5)}
    broken = run(scores=(0.3, 0.6, math.nan), finite=np.array([True, False, False]), config=made_by(key=1))
    save(run(), broken, run(accuracies=own, config=made_by("ditto", algorithm="ditto", evaluations=["own_head"])))
    found, text = rows(tmp_path, (0, 10))
    assert found["evaluation"].to_dict() == {"fedrep": "fine_tune", "ditto": "own_head"}
    assert found["diverged"].to_dict() == {"fedrep": 1, "ditto": 0}
    assert "judged by: fine_tune (FedRep); own_head (Ditto)\n" in text
    assert "FedRep: 1 of 2 runs diverged" in text
    assert "on top of" not in text
    save(run(config=made_by("fedavg", algorithm="fedavg", clock_options=CLOCK | {"communication": 5.0})))
    found, text = rows(tmp_path, (0, 10))
    (dear,) = (name for name in found.index if "fedavg" in name.lower())
    assert found["clock_communication"].astype(float).to_dict()[dear] == 5
    assert re.search(r"C comes on top of the communication that a clock has already: FedAvg.* 5\n", text)


def test_what_judged_is_said_of_methods_where_their_options_change_nothing_in_it():
    own = {"own_head": np.full((3, 4), 0.5)}
    histories = {"fedrep, epochs=1": [run()], "fedrep, epochs=2": [run()], "ditto, epochs=1": [run(accuracies=own)]}

    def text():
        return table.render(table.comparison(histories, 0.8, (0,)), table.Target(0.8, "as asked"))

    assert "judged by: fine_tune (fedrep); own_head (ditto)\n" in text()
    histories["fedrep, epochs=2"] = [run(accuracies=own)]
    assert "judged by: fine_tune (fedrep, epochs=1); own_head (fedrep, epochs=2, ditto, epochs=1)\n" in text()


def test_a_clock_that_does_not_say_what_it_has_is_not_known_to_have_nothing():
    own = run(config=made_by(clock="mine", clock_options=None))
    frame = table.comparison({"fedrep": [own], "fedavg": [run()]}, 0.8, (0,)).set_index("method")
    assert math.isnan(frame.loc["fedrep", "clock_communication"])
    assert frame.loc["fedavg", "clock_communication"] == 0


def test_an_evaluation_that_all_runs_have_may_judge_them(save, tmp_path):
    own = {"own_head": np.array([[0.1] * 4, [0.85] * 4, [0.95] * 4])}
    both = run().accuracies | own
    save(run(accuracies=both), run(accuracies=both, config=made_by(key=1)))
    save(run(accuracies={}, eval_round=[], config=made_by(key=5)))  # left out as ever
    report(str(tmp_path), 0.8, (0,), None, "own_head")
    found = pd.read_csv(tmp_path / "table.csv").set_index("method")
    assert found.loc["fedrep", ["evaluation", "runs", "time_0", "final_accuracy"]].tolist() == ["own_head", 2, 2, 0.95]
    save(run(config=made_by("fedavg", algorithm="fedavg")))
    with pytest.raises(ValueError, match=r"evaluation='own_head': .*run3 has fine_tune; choose one that all runs have"):
        report(str(tmp_path), 0.8, (0,), None, "own_head")


def test_repeats_with_other_default_evaluations_are_one_row_by_a_given_one(save, tmp_path):
    own = {"own_head": np.full((3, 4), 0.5)}
    save(run(accuracies=run().accuracies | own), run(accuracies=own | run().accuracies, config=made_by(key=1)))
    found, _ = rows(tmp_path)
    assert found["runs"].tolist() == [1, 1]
    report(str(tmp_path), 0.8, (0,), None, "fine_tune")
    found = pd.read_csv(tmp_path / "table.csv").set_index("method")
    assert found["runs"].to_dict() == {"fedrep": 2}


def test_the_figure_says_who_diverged():
    broken = run(scores=(0.3, math.nan, math.nan), finite=[True, False, False])
    other = run(config=made_by("fedavg"), accuracies={"global": np.full((3, 4), 0.5)})
    mixed = {"fedrep": [broken, run()], "fedavg + uniform": [other]}
    for histories, expected in (
        ({"fedrep": [broken]}, ["FedRep (diverged in round 2)"]),
        (mixed, ["FedRep (2 runs, fine_tune, 1 diverged)", "FedAvg + uniform (global)"]),
    ):
        drawn = panels.figure(histories, table.Target(0.6, "as asked"), (0, 10))
        assert [text.get_text() for text in drawn.legends[0].get_texts()] == expected
    (ax,) = panels.figure({"fedrep": [run()]}, table.Target(0.6, "as asked"), (0,)).axes
    assert ax.get_ylabel() == "mean test accuracy\n(fine_tune)"


def test_panels_end_soon_after_the_target_where_that_leaves_out_less_than_most_of_a_run():
    runs = {"fedrep": [run(scores=np.linspace(0.1, 0.9, 10))], "fedavg": [run(scores=np.linspace(0.1, 0.8, 20))]}

    def ends(target, histories=runs):
        drawn = panels.figure(histories, table.Target(target, "as asked"), (0, 10))
        drawn.draw_without_rendering()
        return [ax.get_xlim()[1] for ax in drawn.axes]

    at_target = [max(run.time_to(0.3, cost) for (run,) in runs.values()) for cost in (0, 10)]
    assert ends(0.3) == [1.25 * time for time in at_target]
    assert all(end >= 20 for end in ends(0.85))  # one never reaches it
    one = {"fedrep": [run(scores=[0.5] + [0.6] * 9)]}
    assert all(end >= 10 for end in ends(0.4, one))  # reached at time 1: all of 10 time units are shown
    assert ends(0.55, one) == [2.5, 27.5]


def test_an_error_of_the_figure_leaves_no_table_behind(save, tmp_path, monkeypatch):
    save(run())

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedjax_srp.commands.report.figure", fail)
    with pytest.raises(KeyboardInterrupt):
        report(str(tmp_path), None, (0,), None)
    assert [path.name for path in tmp_path.iterdir()] == ["run0"]


def test_a_figure_that_fails_costs_no_table(save, tmp_path, monkeypatch):
    save(run())
    monkeypatch.setattr("fedjax_srp.commands.report.figure", lambda *_: 1 // 0)
    with pytest.warns(UserWarning, match=r"accuracy.png is left out, it cannot be drawn \(ZeroDivisionError"):
        found, text = rows(tmp_path)
    assert len(found) == 1
    assert "written to " + f"{tmp_path}: table.txt, table.csv\n" in text
    assert (tmp_path / "report.html").exists()
    assert not (tmp_path / "accuracy.png").exists()


@pytest.mark.parametrize("name", [r"$\frac{1}{$", "$$", "=1+1", "@a", "-x"])
def test_hostile_names_have_table_figure_and_page(name, save, tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_srp.commands.report.figure", panels.figure)
    save(run(config=made_by(name, dataset=name)), run(config=made_by(dataset=name)))
    found, text = rows(tmp_path)
    assert storage.as_cell(name) in found.index
    assert name in text
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        *(file.format("") for file in panels.FILES),
        "report.html",
    }


def test_the_table_says_which_data_judged(save, tmp_path):
    save(run(config=made_by(dataset_options=DATA | {"validation": 0.2}, data_checksum="5e6f7a8b")))
    found, text = rows(tmp_path)
    assert found["judged_on"].tolist() == ["validation"]
    assert "accuracy: of every client on its own validation data, after the last round; one seed" in text
    assert "judged by training data that were held out, not by test data: all rows" in text
    save(run())
    found, text = rows(tmp_path)
    assert sorted(found["judged_on"]) == ["test", "validation"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nan", "-5"), "communications[0] must be finite and >= 0, got nan"),
        (("0", "-5"), "communications[1]=-5.0 must be at least 0"),
        (("inf",), "communications[0] must be finite and >= 0, got inf"),
        ((), "communications is empty: give at least one"),
    ],
)
def test_costs_that_are_none_are_refused(words, message, tmp_path, capsys):
    assert cli.main(["report", str(tmp_path), "--communications", *words], set_up_cores=False) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_cost_is_told_from_its_neighbour():
    histories = {"fedrep": [run()]}
    frame = table.comparison(histories, 0.9, (1e6, 1e6 + 1))
    assert frame["time_1e+06"].item() == 3 + 3e6
    assert frame["time_1000001.0"].item() == 3 + 3e6 + 3


@pytest.mark.parametrize("censored", ["srpfl", "fedrep"])
def test_a_censored_time_gives_no_ratio(censored):
    reached, not_reached = (0.3, 0.9, 0.9), (0.3, 0.4, 0.5)
    histories = {
        name: [run(), run(scores=not_reached if name == censored else reached)] for name in ("srpfl", "fedrep")
    }
    frame = table.comparison(histories, 0.8, (0, 10))
    assert frame[["speed_up_0", "speed_up_10"]].isna().to_numpy().all()
    text = table.render(frame, table.Target(0.8, "as asked"))
    assert "1 of 2 seeds" in text
    assert "x)" not in text


def test_a_target_that_is_printed_is_the_one_that_is_timed():
    target = table.common_target({"fedrep": [run(scores=(0.5, 0.8, 0.9123))]})  # 95 %: 0.866685
    assert target.accuracy == 0.867
    assert table.shown(target) == "86.7 %"
    assert table.shown(table.Target(0.8667, "as asked")) == "86.67 %"
    equal = {"fedavg": [run(scores=(0.90001,))], "fedbuff": [run(scores=(0.90002,))], "other": [run(scores=(0.8,))]}
    equal = {name: [dataclasses.replace(h, name=name) for h in runs] for name, runs in equal.items()}
    assert table.common_target(equal).reason == "95 % of the final accuracy of FedAvg"


def test_of_a_sweep_the_best_row_of_fedrep_sets_the_target():
    histories = {"SRPFL, x=1": [run(scores=(0.99,))], "FedRep, x=1": [run(scores=(0.8,))], "FedRep, x=2": [run()]}
    named = copy.copy(histories)
    named["SRPFL, x=1"] = [dataclasses.replace(named["SRPFL, x=1"][0], name="srpfl")]
    target = table.common_target(named)
    assert target == (0.855, "95 % of the final accuracy of FedRep, x=2")


def test_an_evaluation_before_training_reaches_at_once_only_what_it_reached():
    late = run(eval_round=[0, 1, 2])
    frame = table.comparison({"fedrep": [late]}, 0.6, (0,))
    assert (frame["reached_at_once"].item(), frame["time_0"].item()) == (0, 1)


@pytest.mark.parametrize("pool", [None, 3])
def test_flanp_has_its_twin_though_that_has_an_option_more(pool, save, tmp_path):
    """`fedgate` may have a pool, which is a difference, and stages that end on a criterion have none."""
    stages = {"options": METHOD | DOUBLING | {"participation": "statistical_accuracy"}}
    flanp = run(config=made_by("flanp", participation="statistical_accuracy") | stages)
    save(flanp, run(times=2.0, config=made_by("fedgate", options={"pool": pool})))
    row = rows(tmp_path)[0].loc["flanp"]
    assert not row["twin"] if pool else float(row["speed_up_0"]) == 2


def test_the_table_says_who_did_the_work():
    one = run(metrics={"wasted_time": [1.0, 2.0, 0.5], "staleness": [0.0, 1.0, 2.0]})
    one = dataclasses.replace(one, rounds_taken=[3] + [0] * (one.num_clients - 1))
    row = table.comparison({"fedbuff": [one]}, 0.9, (0,)).iloc[0]
    assert row["wasted_time"] == 3.5
    assert row["staleness"] == 1.0
    assert row["never"] == pytest.approx(1 - 1 / one.num_clients)
    assert row["gini"] == pytest.approx(1 - 1 / one.num_clients)
    assert row["slowest_tenth"] == one.slowest_scores()[-1]
    assert row["bytes_to_target"] == one.bytes_to(0.9)
    unknown = table.comparison({"fedavg": [run()]}, 0.99999, (0,)).iloc[0]
    assert np.isnan([unknown["wasted_time"], unknown["gini"]]).all()
    assert unknown["bytes_to_target"] == np.inf
