"""Linear speed-up of SRPFL: the first cohort of appendix A, and results that are kept."""

import json
import sys

import numpy as np

import fedjax_srp as srp


def test_first_cohort_and_stages_of_the_linear_speed_up(import_from):
    """Appendix A's 2 d / (log(N) sigma_max), with the singular value of all heads."""
    speed_up = import_from("srpfl")("linear_speedup")
    task = speed_up.draw_task(256, 0)
    sigma_max = np.linalg.norm(np.asarray(task.heads), 2) / 16
    assert speed_up.first_cohort(task) == np.ceil(200 / (8 * np.log(2) * sigma_max))
    assert speed_up.plain_stages(256, 34, "random") == [
        90,
        30,
        30,
    ]  # 34, 68, 136, then all
    assert speed_up.plain_stages(256, 256, "moments") == []


def test_the_half_of_fedrep_is_kept(import_from, monkeypatch):
    """It does not depend on n0, so a result for another n0 gives the same as a whole measurement."""
    speed_up = import_from("srpfl")("linear_speedup")
    monkeypatch.setattr(speed_up, "FEDREP_ROUNDS", 25)
    monkeypatch.setattr(speed_up, "LAST_STAGE", 2)
    monkeypatch.setattr(speed_up, "STAGE", 3)
    whole = speed_up.measure(64, 2, 0, "moments", "plain")
    assert whole["initial"] == 42
    assert whole["rounds_per_stage"] == [3]
    monkeypatch.setattr(speed_up, "fedrep_half", None)
    known = whole | {"initial": 16, "times": {"fedrep": whole["times"]["fedrep"]}}
    assert speed_up.measure(64, 2, 0, "moments", "plain", known) == whole


def test_the_step_is_too_large_for_nearly_every_first_cohort(import_from):
    """Theorem 4.5 allows 1 / (8 sigma_max^2) for the largest sigma_max of any set, see `linear_speedup.md`."""
    speed_up = import_from("srpfl")("linear_speedup")
    task, _ = speed_up.contest(256, 1, 0, "random")
    heads, rng = np.asarray(task.heads), np.random.default_rng(0)
    initial = speed_up.first_cohort(task)
    largest = lambda rows: srp.theory.max_step_size(
        np.linalg.norm(rows, 2) / np.sqrt(len(rows))
    )
    assert largest(heads) >= speed_up.STEP
    allowed = [
        largest(heads[rng.choice(256, initial, replace=False)]) >= speed_up.STEP
        for _ in range(1000)
    ]
    assert np.mean(allowed) < 0.02


def test_numbers_of_clients_are_measured_once(import_from, monkeypatch, tmp_path):
    linear_speedup = import_from("srpfl")("linear_speedup")
    measured, initial = [], 42

    def measure(num_clients, repeats, seed, init, stages, known):
        measured.append((num_clients, known and known["initial"]))
        both = {name: [[1.0] * repeats] * 3 for name in ("fedrep", "srpfl")}
        found = {
            "num_clients": num_clients,
            "initial": initial,
            "floors": [0.1] * repeats,
            "times": both,
        }
        return found | {"longest": {"fedrep": 2.0, "srpfl": 2.0}}

    monkeypatch.setattr(linear_speedup, "measure", measure)
    monkeypatch.setattr(linear_speedup, "first_cohort", lambda task: initial)

    def call(options):
        command = f"linear_speedup --scale smoke --out {tmp_path} {options}"
        monkeypatch.setattr(sys, "argv", command.split())
        linear_speedup.main()

    call("--clients 128 64")
    call("--clients 64 256")
    initial = 30  # another n0: SRPFL is measured anew
    call("--clients 64")
    call("--seed 1 --clients 256")
    facts = json.loads((tmp_path / "linear_speedup_moments.json").read_text())
    assert measured == [(128, None), (64, None), (256, None), (64, 42), (256, None)]
    assert [result["num_clients"] for result in facts["results"]] == [256]  # seed 1 only
