"""FedRep's table 1 and table of doubling: averages, comparison with the paper, options and stored runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from reference.histories import made_history

import fedjax_srp as srp


@pytest.fixture
def table(import_from):
    """Modules of the experiment."""
    get = import_from("fedrep")
    return get("table1"), get("rivals"), get("rivals_table")


def history(scores, eval_round, count):
    """A finished run with these scores."""
    given = {
        "accuracies": {"own_head": np.asarray(scores)},
        "eval_round": eval_round,
        "test_count": count,
    }
    return made_history([], np.ones(int(eval_round[-1])), clients=len(count), **given)


def test_an_accuracy_is_the_mean_over_clients_and_the_last_ten_rounds(
    table, tmp_path, monkeypatch
):
    _, rivals, rivals_table = table
    rng = np.random.default_rng(0)
    scores, count = (
        rng.uniform(size=(12, 20)),
        np.array([0, *rng.integers(1, 9, 19)]),
    )  # one client has no test examples
    runs = {"run": history(scores, [10, *range(20, 31)], count)}
    monkeypatch.setattr(rivals_table.History, "load", lambda folder: runs[folder.name])
    found = rivals_table.measure(tmp_path / "run", rivals.Row("fedrep", "own_head"))
    by_round = 100 * np.array(
        [
            sum(s * n for s, n in zip(row, count, strict=True)) / sum(count)
            for row in scores[2:]
        ]
    )
    assert found["accuracy"] == pytest.approx(by_round.mean(), abs=1e-3)
    assert list(found["by_round"]) == ["10", *map(str, range(20, 31))]
    np.testing.assert_allclose(list(found["by_round"].values())[2:], by_round, atol=6e-3)
    assert found["std_of_rounds"] == pytest.approx(by_round.std(), abs=1e-3)
    assert found["worst_tenth"] == pytest.approx(
        100 * scores[2:, 1:].min(1).mean(), abs=1e-3
    )  # 1 of 19
    # A row evaluated after training has one evaluation, stored in its own file.
    (tmp_path / "run").mkdir()
    later = rng.uniform(size=20)
    (tmp_path / "run" / rivals_table.AFTER_TRAINING).write_text(
        json.dumps({"fine_tune": later.tolist()})
    )
    found = rivals_table.measure(
        tmp_path / "run", rivals.Row("fedavg", "fine_tune", after=True)
    )
    assert found["accuracy"] == pytest.approx(100 * later @ count / count.sum(), abs=1e-3)
    assert "by_round" not in found
    runs["run"] = history(
        scores, range(2, 25, 2), count
    )  # rounds between the evaluations
    with pytest.raises(ValueError, match="each of its last 10 rounds"):
        rivals_table.measure(tmp_path / "run", rivals.Row("fedrep", "own_head"))


def test_tables_compare_with_the_paper(table):
    _, rivals, rivals_table = table
    column = rivals.COLUMNS["cpu"]["cifar10_100x2"]
    ours = {"FedAvg": 40.0, "FedProx": 30.0, "FedPer": 88.0, "Ditto": 86.0, "L2GD": 81.0}
    found = {
        "cifar10_100x2": {
            n: {"0": {"accuracy": a, "worst_tenth": a / 2}} for n, a in ours.items()
        }
    }
    found["cifar10_100x2"]["FedPer"]["1"] = {"accuracy": 90.0, "worst_tenth": 45.0}
    rows = {
        row[0]: row[1:]
        for row in rivals_table.main_table(found, {"cifar10_100x2": column})
    }
    assert rows["FedPer"] == ["89.0 ± 1.4 (2)", "87.1"]
    assert rows["Local only"] == ["", "lost"]
    assert rows["FedAvg"] == ["40.0", "42.6"]
    (_, order) = rivals_table.order_table(found, {"cifar10_100x2": column})
    # Ours: FedProx, FedAvg, L2GD, FedPer; the paper's: the same. Where Ditto's number stands was inferred.
    assert order[1:3] == ["4", "1.00"]
    swapped = {
        "cifar10_100x2": found["cifar10_100x2"]
        | {"L2GD": {"0": {"accuracy": 99.0, "worst_tenth": 9.0}}}
    }
    (_, order) = rivals_table.order_table(swapped, {"cifar10_100x2": column})
    assert order[2] == f"{1 - 6 * (1 + 1) / (4 * 15):.2f}"  # Spearman's formula
    gone = {
        "cifar10_100x2": found["cifar10_100x2"]
        | {"L2GD": {"0": {"accuracy": 0.0, "diverged": 3}}}
    }
    assert ["L2GD", "diverged", "81.0"] in rivals_table.main_table(
        gone, {"cifar10_100x2": column}
    )
    assert rivals_table.order_table(gone, {"cifar10_100x2": column})[1][1:3] == [
        "3",
        "1.00",
    ]
    # Without FedAvg and FedProx two rows are left, in the same order.
    assert rivals_table.order_table(found, {"cifar10_100x2": column})[1][3] == "1.00"


def test_large_differences_are_measured_in_one_setting(table):
    _, rivals, rivals_table = table
    run = lambda accuracy: {"0": {"accuracy": accuracy}}
    found = {
        "cifar10_100x2": {"FedAvg": run(40.0), "FedProx": run(30.0), "L2GD": run(70.0)},
        "cifar10_100x2_cropped": {
            "FedProx": run(39.9)
        },  # alone it is nearer than all options together
        "cifar10_100x2_authors": {"FedProx": run(35.0)},
    }
    _, *rows = rivals_table.far_table(found, rivals.COLUMNS["ablation"])
    assert [row[1:] for row in rows] == [
        ["FedProx", "30.0", "39.9", "-9.9", "35.0", "-4.9", "crop and flip 39.9"],
        ["L2GD", "70.0", "81.0", "-11.0", "", "", ""],
    ]


def test_every_training_has_the_options_of_the_paper(table):
    _, rivals, _ = table
    data = srp.data.load("digits", num_clients=20, classes_per_client=2)
    column = rivals.COLUMNS["smoke"]["digits"]._replace(local_epochs=5)
    for training in rivals.TRAININGS:
        given = rivals.method_options(column, training, 20)
        model = given["shared"].pop("model")
        method = srp.methods.get(training, dataset=data, model=model, **given)
        made = method.algorithm
        epochs = (
            made.representation_epochs if training == "fedrep" else made.training.epochs
        )
        assert (made.training.optimizer.momentum, made.training.batch_size, epochs) == (
            0.5,
            10,
            5,
        )
        assert method.participation.name == ("full" if training == "l2gd" else "uniform")
        rows = [row for row in rivals.ROWS.values() if row.training == training]
        assert all(row.evaluation in method.algorithm.evaluations for row in rows)
    assert made.head_epochs == 10  # FedRep's is the last
    assert made.training.epochs == 1
    assert set(rivals.PAPER) == set(rivals.ROWS)
    assert {len(row) for row in rivals.PAPER.values()} == {7}


def test_a_summary_keeps_results_of_other_runs(table, tmp_path, monkeypatch):
    _, rivals, rivals_table = table
    columns = rivals.COLUMNS["cpu"]
    first, second = list(columns)[:2]
    file = tmp_path / "table1.json"
    rows = list(rivals.ROWS)
    of_another_scale = {"digits": {rows[2]: {"0": {"accuracy": 6.0}}}}
    file.write_text(json.dumps({"runs": of_another_scale}))
    for found, given in (
        ({second: {rows[3]: {"10": {"accuracy": 1.0}, "9": {"accuracy": 2.0}}}}, 2),
        (
            {
                first: {rows[1]: {"0": {"accuracy": 3.0}}},
                second: {rows[0]: {"0": {"accuracy": 4.0}}},
            },
            2,
        ),
        ({second: {rows[3]: {"9": {"accuracy": 5.0}}}}, 1),
        ({}, 0),
    ):
        monkeypatch.setattr(rivals_table, "collect", lambda *_, found=found: found)
        assert rivals_table.summarize(columns, tmp_path, file) == given
    runs = json.loads(file.read_text())["runs"]
    assert runs == {
        first: {rows[1]: {"0": {"accuracy": 3.0}}},
        second: {
            rows[0]: {"0": {"accuracy": 4.0}},
            rows[3]: {"9": {"accuracy": 5.0}, "10": {"accuracy": 1.0}},
        },
        **of_another_scale,
    }
    orders = [list(runs), list(runs[second]), list(runs[second][rows[3]])]
    assert orders == [[first, second, "digits"], [rows[0], rows[3]], ["9", "10"]]


@pytest.mark.long
def test_finished_runs_are_skipped_and_summarized(table, tmp_path, capsys):
    table1, _, _ = table
    words = [
        "--scale",
        "smoke",
        "--methods",
        "fedavg",
        "--devices",
        "1",
        "--out",
        str(tmp_path / "runs"),
    ]
    words += ["--results", str(tmp_path)]
    table1.main(words)
    made = {
        file: file.stat().st_mtime_ns
        for file in (tmp_path / "runs").rglob("*")
        if file.is_file()
    }
    assert any(file.name == "summary.json" for file in made)
    table1.main(words)
    assert {file: file.stat().st_mtime_ns for file in made} == made
    table1.main([*words, "--summarize"])
    runs = json.loads((tmp_path / "table1.json").read_text())["runs"]["digits"]
    assert set(runs) == {"FedAvg", "FedAvg+FT"}
    assert runs["FedAvg+FT"]["0"]["accuracy"] > runs["FedAvg"]["0"]["accuracy"]
    assert "| FedAvg+FT |" in capsys.readouterr().out


def test_ablations_change_one_option_except_where_their_name_says_more(table):
    _, rivals, _ = table
    changed = {
        "torch": {"method"}, "cropped": {"method"}, "shards": {"federation"}, "everybody": {"own"}, "share": {"own"},
        "step": {"own"}, "variates": {"own"}, "epochs": {"local_epochs"}, "batches": {"method"},
        "authors": {"federation", "method", "own"},
    }  # fmt: skip
    changed |= {
        f"{key}_epochs": {*changed[key], "local_epochs"}
        for key in ("cropped", "shards", "authors")
    }
    for name in ("cifar10_100x2", "cifar10_100x5"):
        base = rivals.COLUMNS["cpu"][name]
        variants = {
            key.removeprefix(f"{name}_"): c
            for key, c in rivals.COLUMNS["ablation"].items()
            if name in key
        }
        assert variants.pop(name) is base
        for key, column in variants.items():
            assert {f for f in base._fields if getattr(column, f) != getattr(base, f)} - {
                "title"
            } == changed[key]
        methods = {key: column.method for key, column in variants.items()}
        assert methods["authors"] == methods["cropped"] | methods["torch"] | {
            "weight_decay": 1e-4
        }


def test_doubling_is_compared_in_simulated_time(import_from):
    doubling_table = import_from("fedrep")("doubling_table")
    ends, clients = np.arange(12) + 1, np.ones(2)
    slow = history(np.full((12, 2), 0.8), ends, clients)
    scores = np.full((12, 2), 0.8)
    scores[:3] = 0.5  # reached after the fourth round
    fast = history(scores, ends, clients)
    object.__setattr__(fast, "compute_time", np.full(12, 0.1))
    found = doubling_table.compare(slow, fast, "own_head")
    assert found["0.95 C=0"] == pytest.approx(
        {"everybody": 1.0, "doubling": 0.4, "factor": 2.5}
    )
    assert found["0.99 C=10"]["factor"] == pytest.approx((1 + 10) / (4 * 10.1))
    never = doubling_table.compare(slow, history(scores - 0.4, ends, clients), "own_head")
    assert never["0.95 C=0"]["factor"] == 0
    kept = json.loads(
        json.dumps(doubling_table.to_json({"ditto": {"own_model": [never, never]}}))
    )
    assert "| never (never to never) |" in doubling_table.table(kept)
    assert (
        doubling_table.format_factors([0.0, 0.00499, 0.6, 0.096, 2.5])
        == "0.10 (never to 2.50)"
    )
    assert doubling_table.format_factors([0.00499, 0.6, 0.0701]) == "0.07 (0.005 to 0.60)"


def test_a_run_that_diverged_has_no_accuracy_in_figure_5(
    import_from, tmp_path, monkeypatch
):
    get = import_from("fedrep")
    figure5, tables = get("figure5"), get("readme_tables")
    runs = [
        SimpleNamespace(diverged=end, mean_scores=lambda _: np.full(12, 0.5))
        for end in (None, 99)
    ]
    monkeypatch.setattr(figure5.srp, "simulate_seeds", lambda *_, **__: runs)
    data = srp.data.load("digits", num_clients=10, classes_per_client=2)
    found = figure5.accuracies(
        "fedrep", 2, figure5.SCALES["smoke"], data, None, None, tmp_path
    )["own_head"]
    np.testing.assert_equal(found, [50.0, np.nan])
    curve = {
        "x": [1.0, 2.0],
        "mean": [50.0, "nan"],
        "lowest": [50.0, "nan"],
        "highest": [50.0, "nan"],
    }
    assert (
        tables.by_epochs({"FedRep": curve}).splitlines()[-1]
        == "| FedRep | 50.0 | diverged |"
    )
