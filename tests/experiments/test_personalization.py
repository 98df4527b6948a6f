"""Table of all methods on CIFAR-10: rows, README, and a small run."""

import jax
import numpy as np
import pytest

import fedjax_srp as srp


@pytest.fixture
def modules(import_from):
    """Scripts of the folder; other experiments have modules of the same names."""
    return tuple(map(import_from("personalization"), ("table", "rows", "readme_tables")))


def test_every_method_is_in_the_table_or_left_out_with_a_reason(modules):
    _, rows, _ = modules
    assert rows.ROWS.keys() | rows.LEFT_OUT.keys() == set(srp.methods.names())
    assert not rows.ROWS.keys() & rows.LEFT_OUT.keys()


def test_every_training_can_be_built_and_has_its_evaluations(modules):
    table, rows, _ = modules
    data = table.federation(table.SCALES["smoke"], None)
    for training in rows.TRAININGS:
        method = table.method_of(training, table.SCALES["cpu"], data, table.network(data))
        assert method.participation == srp.participation.Full()
        assert method.algorithm.training.optimizer.learning_rate == 0.05
        judged = {
            row.evaluation for row in rows.ROWS.values() if row.training == training
        }
        assert judged <= method.algorithm.evaluations.keys()


def test_cnn_has_the_layers_of_pfllib(modules):
    table, _, _ = modules
    images = np.zeros((20, 32, 32, 3), np.uint8)
    data = srp.data.from_arrays(
        images,
        np.arange(20) % 10,
        images + 1,
        np.arange(20) % 10,
        train_indices=[[0]],
        test_indices=[[1]],
    )
    params = jax.eval_shape(table.network(data).init, jax.random.key(0))
    layers = {
        name: sum(leaf.size for leaf in jax.tree.leaves(of))
        for part in params
        for name, of in part.items()
    }
    # conv1 3 -> 32 and conv2 32 -> 64 of 5 x 5, fc1 of 64 * 5 * 5 = 1600 features, fc
    assert layers == {"conv1": 2432, "conv2": 51264, "fc1": 819712, "out": 5130}


def test_tables_of_hand_made_rows(modules, tmp_path):
    table, _, readme_tables = modules
    given = {
        "fedavg": [("40.00", 10, "30.00"), ("44.00", 20, "44.00")],
        "fedavg_ft": [("70.00", 20, "70.00"), ("72.00", 20, "72.00")],
        "local_only": [("71.00", 4, "71.00"), ("71.00", 6, "71.00")],
        "fedrep": [("72.00", 8, "70.00"), ("76.00", 20, "76.00")],
        "moon": [("50.00", 20, "50.00")],
    }
    rows = [
        dict(
            zip(
                readme_tables.COLUMNS,
                ("cpu", name, seed, "e", 20, best, at, last, 30),
                strict=True,
            )
        )
        for name, seeds in given.items()
        for seed, (best, at, last) in enumerate(seeds)
    ]
    table.write(tmp_path / "table.csv", rows)
    made = readme_tables.accuracies(
        readme_tables.rows_of_scale(tmp_path / "table.csv", "cpu")
    ).splitlines()
    assert [line.split(" | ")[0][2:] for line in made[2:7]] == [
        "FedRep",
        "FedAvg-FT",
        "Local only",
        "MOON",
        "FedAvg",
    ]
    assert made[6] == "| FedAvg | `e` | 42.0 ± 2.8 | 37.0 ± 9.9 | 10, 20 | 2 |"
    assert made[5] == "| MOON | `e` | 50.0 | 50.0 | 20 | 1 |"
    assert made[8].startswith(
        "7 trainings, 4 minutes of processor time. Not run yet: FedPer, "
    )  # one training of FedAvg for two rows
    found = readme_tables.findings(
        readme_tables.rows_of_scale(tmp_path / "table.csv", "cpu")
    ).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found]
    assert [cell[1] for cell in cells] == ["holds", "fails", "fails", "in part"]
    assert cells[0][2].endswith(
        "last round, with every seed: FedRep, FedAvg-FT; 2 by 3 points or more"
    )
    assert cells[1][2].startswith(
        "0 of 2 above its 71.0 % after the last round, with every seed; 0 by 3"
    )  # 70 and 76
    assert cells[3][2] == "1.5 points in the mean over methods, most for FedAvg: 5.0"
    assert all(cell[3].endswith("1 or 2 seeds") for cell in cells)
    assert readme_tables.accuracies({}) == "Not run yet."


@pytest.mark.long
def test_finished_trainings_are_skipped(modules, tmp_path, capsys):
    table, _, readme_tables = modules
    words = [
        "--scale",
        "smoke",
        "--methods",
        "fedavg",
        "fedrep",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "runs"),
    ]
    words += ["--results", str(tmp_path)]
    table.main(words)
    rows = readme_tables.read(tmp_path / "table.csv")
    assert [row["method"] for row in rows] == ["fedavg", "fedavg_ft", "fedrep"]
    assert all(float(row["best"]) >= float(row["last"]) > 0 for row in rows)
    assert capsys.readouterr().out.count("\n") == 3
    table.main(words)
    assert not capsys.readouterr().out
    table.main([*words[:3], "fedper", *words[5:]])
    assert [row["method"] for row in readme_tables.read(tmp_path / "table.csv")][:3] == [
        row["method"] for row in rows
    ]
