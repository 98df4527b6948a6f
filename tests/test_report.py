"""`fedjax-srp report`: the runs that make a row of its table, and the names of the rows."""

import shlex

import jax
import pandas as pd
import pytest
from reference.histories import made_history

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli
from fedjax_srp.lab.commands.report import report
from fedjax_srp.lab.report import repeats
from fedjax_srp.results import json_files

DATA = {"num_clients": 4, "classes_per_client": 3, "seed": 0}
FEDREP = {
    "part": "fedjax_srp.algorithms.fedrep.FedRep",
    "learning_rate": 0.1,
    "hidden": [8],
}
CLOCK = {
    "part": "fedjax_srp.clocks.fixed.Fixed",
    "distribution": {"part": "fedjax_srp.clocks.distributions.Exponential", "rate": 1.0},
    "work": 1.0,
}
SGD = {"part": "fedjax_srp.algorithms.optimizers.SGD", "learning_rate": 0.1}
FULL = {"part": "fedjax_srp.participation.full.Full"}
DOUBLING = {
    "part": "fedjax_srp.participation.doubling.Doubling",
    "initial": 2,
    "by": "realised",
}


def made_by(
    name="fedrep",
    key=0,
    options=None,
    policy=FULL,
    data=None,
    schedule=None,
    machine=None,
    **record,
):
    """Return the record of a run."""
    return {
        "method": {
            "name": name,
            "algorithm": FEDREP | (options or {}),
            "participation": policy,
        },
        "clock": CLOCK,
        "data": {
            "name": "digits",
            "num_clients": 4,
            "checksum": "1a2b3c4d",
            "options": DATA,
        }
        | (data or {}),
        "schedule": {"num_rounds": 3, "eval_every": 1} | (schedule or {}),
        "evaluations": ["fine_tune"],
        "key": [0, key],
        "program": None,
        "machine": {"chunk_size": 4, "num_seeds": None} | (machine or {}),
    } | record


def run(scores=(0.3, 0.6, 0.9), times=1.0, config=None, **fields):
    """Four clients with one accuracy, evaluated after every round; rounds of equal length."""
    config = config or made_by()
    given = {
        "name": config["method"]["name"],
        "cohort_size": [4] * len(scores),
        "host_seconds": 1.0,
        "config": config,
    }
    return made_history(scores, [times] * len(scores), clients=4, **given | fields)


def rows(folder, communications=(0,), target=None):
    """Return the written table, by name of the row, and the printed text."""
    text = report(str(folder), target, communications, None)
    return pd.read_csv(folder / "table.csv", keep_default_na=False).set_index(
        "method"
    ), text


def test_facts_in_the_names_of_rows_have_one_order_for_all_methods(save, tmp_path):
    """First those of the method, then those of data and schedule."""
    for name in ("fedavg", "fedrep"):
        for rate, share, checksum in ((0.1, 0.2, "a"), (0.5, 0.2, "a"), (0.1, 0.4, "b")):
            data = {"options": DATA | {"validation": share}, "checksum": checksum}
            options = {"learning_rate": rate}
            save(run(config=made_by(name, options=options, data=data)))
    found, _ = rows(tmp_path)
    names = [name.partition(", ")[2] for name in found.index]
    assert names[:3] == names[3:]
    assert all(name.startswith("learning_rate=") for name in names)
    assert all(", validation=" in name for name in names)


TINY = (
    "--dataset digits --num-clients 5 --classes-per-client 3 --max-examples 10 --hidden 8 --head-epochs 1 "
    "--fine-tune-epochs 1 --num-rounds 2 --eval-every 1 --no-progress --no-checkpoint"
)


@pytest.mark.long
def test_a_sweep_from_python_and_from_the_command_line_has_the_same_table(tmp_path, save):
    data = srp.data.load("digits", num_clients=5, classes_per_client=3, max_examples=10)
    for rate in (0.1, 0.02):
        options = {
            "hidden": (8,),
            "head_epochs": 1,
            "fine_tune_epochs": 1,
            "learning_rate": rate,
        }
        method = srp.methods.get("fedrep", dataset=data, **options)
        for seed in (2, 0, 1):
            key = jax.random.key(seed)
            history = srp.simulate(
                method, data, num_rounds=2, eval_every=1, key=key, progress=False
            )
            history.save(tmp_path / "python" / f"{rate}_{seed}")
            words = [
                "run",
                "--method",
                "fedrep",
                *shlex.split(TINY),
                "--learning-rate",
                str(rate),
                "--seed",
                str(seed),
            ]
            assert (
                cli.main(
                    [*words, "--out", str(tmp_path / "shell" / f"{seed}_{rate}")],
                    set_up_cores=False,
                )
                == 0
            )
    tables = {}
    for where in ("python", "shell"):
        report(str(tmp_path / where), None, (0, 10), None)
        tables[where] = pd.read_csv(tmp_path / where / "table.csv").drop(
            columns=["compile_seconds", "host_seconds"]
        )
    pd.testing.assert_frame_equal(tables["python"], tables["shell"], check_exact=True)
    assert tables["shell"]["method"].tolist() == [
        "FedRep, learning_rate=0.02",
        "FedRep, learning_rate=0.1",
    ]
    assert tables["shell"]["runs"].tolist() == [3, 3]
    text = report(str(tmp_path), None, (0,), None)  # each of them twice
    assert pd.read_csv(tmp_path / "table.csv")["runs"].tolist() == [3, 3]
    assert text.count(" (as ") == 6


def test_runs_that_differ_only_in_the_seed_are_repeats(save, tmp_path):
    save(
        *(
            run(config=made_by(key=key, machine={"chunk_size": key + 1}))
            for key in range(2)
        ),
        run(
            config=made_by(
                key=2,
                evaluations=["fine_tune", "own_head"],
                record_loss=True,
                machine={"num_seeds": 3, "num_devices": 2, "shard_data": True},
                version={"jax": "2"},
                model={"name": "mlp"},
            )
        ),
    )
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 3}
    assert "not recorded" not in text


def test_rows_of_srpfl_have_speed_ups_over_their_twins(save, tmp_path):
    for rate in (0.1, 0.2):
        for key in range(2):
            options = {"learning_rate": rate}
            save(run(times=4.0, config=made_by(key=key, options=options)))
            for initial in (1, 2):
                policy = DOUBLING | {"initial": initial}
                save(
                    run(
                        times=rate * initial,
                        config=made_by("srpfl", key, options, policy),
                    )
                )
    found, _ = rows(tmp_path)
    twins = {
        f"SRPFL, learning_rate={r}, initial={n}": f"FedRep, learning_rate={r}"
        for r in (0.1, 0.2)
        for n in (1, 2)
    }
    assert found["twin"].to_dict() == twins | dict.fromkeys(twins.values(), "")
    assert list(found.index) == [*twins, *dict.fromkeys(twins.values())]
    factors = [float(found.loc[row, "speed_up_0"]) for row in twins]
    assert factors == pytest.approx([4 / 0.1, 4 / 0.2, 4 / 0.2, 4 / 0.4])


def test_a_twin_may_run_longer(save, tmp_path):
    """It does at equal simulated time; of several, the one of equal length is the twin."""
    limits = {"num_rounds": 500, "time_limit": 40.0}
    save(run(times=0.5, config=made_by("srpfl", policy=DOUBLING, schedule=limits)))
    shorter = {"num_rounds": 100, "time_limit": 40.0, "target": 0.8}
    save(run(times=2.0, config=made_by(schedule=shorter)))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 4
    save(run(times=2.5, config=made_by(schedule=limits | {"num_rounds": 700})))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 5
    save(run(times=3.0, config=made_by(schedule=limits)))
    found, _ = rows(tmp_path)
    assert float(found.loc["SRPFL, num_rounds=500", "speed_up_0"]) == 6
    save(run(times=9.0, config=made_by("lg_srpfl", policy=DOUBLING, schedule=limits)))
    less_often = limits | {"eval_every": 3}
    save(run(times=9.0, config=made_by("lg_fedavg", schedule=less_often)))
    found, _ = rows(tmp_path)
    (twin,) = [
        row["twin"] for name, row in found.iterrows() if str(name).startswith("LG-SRPFL")
    ]
    assert not twin  # it is evaluated less often


def test_a_twin_has_no_other_options(save, tmp_path):
    save(run(config=made_by("srpfl", policy=DOUBLING, options={"momentum": 0.5})))
    save(run(config=made_by(options={"momentum": None})))
    found, _ = rows(tmp_path)
    assert found["twin"].to_dict() == {"srpfl": "", "fedrep": ""}


def test_custom_combinations_of_parts_have_twins(save, tmp_path):
    save(run(config=made_by("fedrep + doubling", policy=DOUBLING)))
    save(run(times=2.0, config=made_by()))
    found, _ = rows(tmp_path)
    assert float(found.loc["fedrep + doubling", "speed_up_0"]) == 2
    save(run(times=3.0, config=made_by(options={"hidden": [16]})))
    found, _ = rows(tmp_path)
    assert set(found.index) == {
        "fedrep + doubling",
        "FedRep, hidden=[8]",
        "FedRep, hidden=[16]",
    }
    assert found.loc["fedrep + doubling", "twin"] == "FedRep, hidden=[8]"


OTHER_DATA = {"checksum": "5e6f7a8b"}
EXPONENTIAL, PARETO = CLOCK["distribution"], {"part": "mine.Pareto", "rate": 1.0}
DYNAMIC = CLOCK | {"part": "fedjax_srp.clocks.dynamic.Dynamic"}
UNIFORM = {"part": "fedjax_srp.participation.uniform.Uniform", "k": 2}
DIFFERENCES = [  # change, name of the option, its value without and with the change
    ({"options": {"hidden": [16]}}, "hidden=", "[8]", "[16]"),
    ({"clock": CLOCK | {"work": 2.0}}, "work=", "1.0", "2.0"),
    (
        {"clock": CLOCK | {"distribution": EXPONENTIAL | {"rate": 0.5}}},
        "rate=",
        "1.0",
        "0.5",
    ),
    ({"clock": DYNAMIC}, "clock=", "Fixed", "Dynamic"),
    (
        {"clock": CLOCK | {"distribution": PARETO}},
        "distribution=",
        "Exponential",
        "mine.Pareto",
    ),
    ({"options": {"part": "mine.FedRep"}}, "algorithm=", "FedRep", "mine.FedRep"),
    ({"data": OTHER_DATA | {"options": DATA | {"seed": 7}}}, "partition_seed=", "0", "7"),
    ({"data": OTHER_DATA | {"options": None}}, "data=", "1a2b3c4d", "5e6f7a8b"),
    ({"data": OTHER_DATA}, "data=", "1a2b3c4d", "5e6f7a8b"),  # behind one name
    ({"schedule": {"num_rounds": 4}}, "num_rounds=", "3", "4"),
    ({"schedule": {"eval_every": 2}}, "eval_every=", "1", "2"),
    ({"policy": UNIFORM}, "participation=", "Full", "Uniform, k=2"),
]


@pytest.mark.parametrize(("change", "option", "one", "other"), DIFFERENCES)
def test_any_other_difference_makes_a_row(change, option, one, other, save, tmp_path):
    save(*(run(config=made_by(key=key)) for key in range(2)))
    save(
        *(run(config=made_by(key=key, **change)) for key in range(2))
    )  # under equal keys
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {
        f"FedRep, {option}{one}": 2,
        f"FedRep, {option}{other}": 2,
    }
    assert "not recorded" not in text


def test_data_with_equal_checksums_are_equal(save, tmp_path):
    elsewhere = {"options": DATA | {"data_dir": "elsewhere"}}
    save(run(), run(config=made_by(key=1, data=elsewhere)))
    assert rows(tmp_path)[0]["runs"].to_dict() == {"fedrep": 2}
    other_seed = {"options": DATA | {"seed": 5}}
    save(run(config=made_by(options={"learning_rate": 0.2}, data=other_seed)))
    assert list(rows(tmp_path)[0].index) == [
        "FedRep, learning_rate=0.1",
        "FedRep, learning_rate=0.2",
    ]


def test_rows_of_one_training_are_noted_and_options_that_are_none_left_out():
    def judged(name, evaluation, seconds, **more):
        options = {"evaluation": evaluation, **more}
        return run(config=made_by(name, options=options), host_seconds=seconds)

    made = [
        judged("fedavg", "global", 3.5),
        judged("fedavg_ft", "fine_tune", 3.5),
        judged("fedavg", "global", 4.5, momentum=0.5),
        judged("fedavg_ft", "fine_tune", 4.5, momentum=0.5),
        judged("fedavg", "global", 1.0, momentum=None, epochs=5),
    ]
    found = repeats.rows(
        [repeats.of(each, f"folder{place}") for place, each in enumerate(made)]
    )
    (note,) = [note for note in found.notes if "training" in note]
    assert note.count(" and FedAvg-FT") == 2
    assert not [name for name in found.runs if "None" in name]
    assert len(found.runs) == 5


BIASED = {"part": "Dense", "bias": False}
NAMES = {  # case -> {name of a row: configuration}, in the order of the table
    "nested options of one name": {
        f"FedRep, algorithm.learning_rate={a}, optimizer.learning_rate={b}": made_by(
            options={"learning_rate": a, "optimizer": SGD | {"learning_rate": b}}
        )
        for a, b in ((1, 2), (2, 1))
    },
    "options of method and data of one name": {
        f"FedRep, algorithm.alpha={a}, options.alpha={b}": made_by(
            options={"alpha": a},
            data={"options": {**DATA, "alpha": b}, "checksum": str(b)},
        )
        for a, b in ((0.1, 5), (0.1, 6), (0.9, 5))
    },
    "a huge number": {
        f"FedRep, learning_rate={n}": made_by(options={"learning_rate": n})
        for n in (2.0, 1e30)
    },
    "the place of a value in a list": {
        f"FedRep, {place}.bias=False": made_by(options={"layers": layers})
        for place, layers in (
            (1, [{"part": "Dense"}, BIASED]),
            (0, [BIASED, {"part": "Dense"}]),
        )
    },
}


@pytest.mark.parametrize("made", NAMES.values(), ids=NAMES)
def test_rows_are_named_by_their_differences(made, save, tmp_path):
    save(*(run(config=config) for config in made.values()))
    assert list(rows(tmp_path)[0].index) == list(made)


def test_an_optimizer_is_named_by_its_difference_from_none_and_from_others(
    save, tmp_path
):
    def config(momentum, key):
        optimizer = SGD | {"momentum": momentum} if momentum else None
        return made_by(key=key, options={"fine_tune_optimizer": optimizer})

    save(
        *(
            run(config=config(momentum, key))
            for momentum in (None, 0.5)
            for key in range(2)
        )
    )
    found, _ = rows(tmp_path)
    assert found["runs"].to_dict() == {
        "fedrep": 2,
        "FedRep, fine_tune_optimizer=SGD, momentum=0.5": 2,
    }
    save(run(config=config(0.9, 0)))
    assert set(rows(tmp_path)[0].index) == {
        "fedrep",
        "FedRep, fine_tune_optimizer=SGD, momentum=0.5",
        "FedRep, fine_tune_optimizer=SGD, momentum=0.9",
    }


def test_rows_of_own_code_are_named_by_their_programs_if_nothing_else_differs(
    save, tmp_path
):
    def config(rounds, key=0, **options):
        program = {"rounds": rounds, "fine_tune": f"of_{rounds}", "own_head": str(key)}
        return made_by("mine", key, options, program=program)

    made = [config("aa"), config("aa", 1), config("bb"), config("cc", width=5)]
    save(*(run(config=each) for each in made))
    found, _ = rows(tmp_path)
    assert found["runs"].to_dict() == {
        "mine, program=aa-of_aa": 2,
        "mine, program=bb-of_bb": 1,
        "mine, width=5": 1,
    }


def test_the_same_run_twice_is_taken_once(save, tmp_path):
    """Two runs of a grid may differ only in their cost of communication."""
    first, second, third = save(run(), run(), run())
    save(run(scores=(0.1, 0.2, 0.3), config=made_by(key=1)))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 2}
    names = f"{second} (as {first}), {third} (as {first})"
    assert f"left out, duplicates of other runs: {names}" in text.splitlines()


@pytest.mark.parametrize("other", [{"scores": (0.1, 0.2, 0.3)}, {"times": 2.0}])
def test_one_run_with_two_results_is_refused(other, save, tmp_path):
    first, second = save(run(), run(config=made_by(machine={"num_devices": 2}), **other))
    with pytest.raises(ValueError, match=f"{first} and {second} .*; remove one of them"):
        report(str(tmp_path), None, (0,), None)
    loaded = {
        name: srp.History.load(folder)
        for name, folder in {"old": first, "new": second}.items()
    }
    assert (
        len(srp.plots.accuracy_over_time(loaded).axes[0].get_legend().texts) == 2
    )  # as the message says


HOST = {"unknown": "it calls the host", "code": ["mine"]}


def test_averages_over_unrecorded_parts_are_noted(save, tmp_path):
    save(run(config=made_by("mine", program=HOST)))
    assert "not recorded" not in rows(tmp_path)[1]  # a single run
    save(run(config=made_by("mine", 1, program=HOST)))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"mine": 2}
    assert "not recorded" in text
    assert "not recorded" in (tmp_path / "table.txt").read_text()


def test_runs_with_unrecorded_parts_and_unequal_results_are_not_averaged(save, tmp_path):
    config = [made_by("mine", key, program=HOST) for key in range(2)]
    save(*(run(scores=(0.1, 0.2, top), config=c) for top in (0.5, 0.9) for c in config))
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {f"mine, folder=run{i}": 1 for i in range(4)}
    assert "not recorded" in text
    save(run(scores=(0.1, 0.2, 0.5), config=config[0]))
    found, text = rows(tmp_path)
    assert len(found) == 4
    assert f"{tmp_path / 'run4'} (as {tmp_path / 'run0'})" in text
    with pytest.raises(ValueError, match=r"run0 and .*run4 .*; remove one of them$"):
        repeats.rows([repeats.read(tmp_path / name) for name in ("run0", "run4")])


def test_unfinished_runs_and_errors_are_left_out_by_name(save, tmp_path):
    (finished,) = save(run())
    (linear,) = save(
        run(config=made_by(key=1), score_name="squared error", smaller_is_better=True)
    )
    (unjudged,) = save(run(config=made_by(key=2), accuracies={}, eval_round=[]))
    killed = finished / ".1a2b.writing"
    killed.mkdir()
    (killed / "summary.json").write_bytes(
        (finished / "summary.json").read_bytes()
    )  # by `atomic.replace`
    for folder in (tmp_path / "begun", finished):
        (folder / "checkpoint").mkdir(parents=True)
        (folder / "checkpoint" / "arguments.json").write_text("{}")
    found, text = rows(tmp_path)
    assert found["runs"].to_dict() == {"fedrep": 1}
    assert f"left out, not finished: {tmp_path / 'begun'}" in text.splitlines()
    remark = "left out, their scores are errors; plot them with srp.plots"
    assert f"{remark}: {linear}" in text.splitlines()
    assert f"left out, not evaluated: {unjudged}" in text.splitlines()


def test_other_scores_have_their_own_table(save, tmp_path):
    save(
        run(),
        run(
            scores=(3.0, 6.0, 9.0),
            config=made_by(data=OTHER_DATA),
            score_name="mean gain",
        ),
    )
    report(str(tmp_path), None, (0,), None)
    found = {
        path.name: pd.read_csv(path)["final_accuracy"].tolist()
        for path in tmp_path.glob("table_*.csv")
    }
    assert found == {
        "table_digits_4_clients.csv": [0.9],
        "table_digits_4_clients_mean_gain.csv": [9.0],
    }


def test_unfinished_runs_of_a_grid_are_named(tmp_path, save):
    book = {
        "1a": {"2b": "run0", "3c": "b"},
        "4d": {f"{i}e": f"c{i:02}" for i in range(12)},
    }
    json_files.write_json(tmp_path / "grid.json", book)
    with pytest.raises(
        ValueError,
        match=r"holds no finished run; 14 are started or planned; the command that started",
    ):
        report(str(tmp_path), None, (0,), None)
    save(run())
    names = [str(tmp_path / name) for name in ("b", *(f"c{i:02}" for i in range(11)))]
    assert (
        f"left out, not finished: {', '.join(names)}, 1 more"
        in rows(tmp_path)[1].splitlines()
    )
    (tmp_path / "grid.json").write_text("{}")
    assert "not finished" not in rows(tmp_path)[1]


@pytest.mark.parametrize("pool", [None, 3])
def test_the_twin_of_flanp_may_have_one_option_more(pool, save, tmp_path):
    """`fedgate` may have a pool, which is a difference; stages that end on a criterion have none."""
    stages = DOUBLING | {"part": "fedjax_srp.participation.StatisticalAccuracy"}
    save(run(config=made_by("flanp", policy=stages)))
    policy = UNIFORM | {"k": pool} if pool else FULL
    save(run(times=2.0, config=made_by("fedgate", policy=policy)))
    row = rows(tmp_path)[0].loc["flanp"]
    assert not row["twin"] if pool else float(row["speed_up_0"]) == 2
