"""Two processes of two devices each against one process of four, under the same key."""

import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from engine import processes_job
from engine.processes_job import NUM_PROCESSES, numbers, runs

import fedjax_srp as srp

TIMEOUT = 300  # seconds; a quiet machine needs 10


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run two processes, and return the folder with their results."""
    folder, port = tmp_path_factory.mktemp("processes"), str(free_port())
    logs = [open(folder / f"log_{i}", "w+") for i in range(NUM_PROCESSES)]  # noqa: SIM115 (closed below)
    command = [sys.executable, processes_job.__file__, port]
    environment = os.environ | {
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    processes = [
        subprocess.Popen(
            [*command, str(i), str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        for i, log in enumerate(logs)
    ]
    end = time.monotonic() + TIMEOUT
    try:
        codes = [process.wait(end - time.monotonic()) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for log in logs:
            log.close()
    said = "\n".join(
        (folder / f"log_{i}").read_text()[-3000:] for i in range(NUM_PROCESSES)
    )
    assert codes == [0] * NUM_PROCESSES, said
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """Return the results of each process."""
    return [dict(np.load(folder / f"process_{i}.npz")) for i in range(NUM_PROCESSES)]


def test_every_process_gets_the_whole_result(found):
    first, second = found
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_processes_change_nothing(found, tmp_path):
    histories, scores = runs(tmp_path, shard_data=False)
    np.testing.assert_allclose(
        found[0]["scores"], scores, rtol=1e-5, atol=1e-6 * np.abs(scores).max()
    )
    for run, history in histories.items():
        for name, expected in numbers(history).items():
            got = found[0][f"{run}/{name}"]
            if name.startswith("server"):  # the sum over devices may add in another order
                np.testing.assert_allclose(
                    got, expected, rtol=1e-5, atol=1e-6, err_msg=f"{run}/{name}"
                )
            elif name in history.accuracies:
                atol = (
                    1e-6 * np.abs(expected).max()
                )  # a score is a sum whose parts may cancel
                np.testing.assert_allclose(
                    got, expected, rtol=1e-5, atol=atol, err_msg=f"{run}/{name}"
                )
            else:
                np.testing.assert_array_equal(got, expected, err_msg=f"{run}/{name}")


def test_a_continued_run_changes_no_bit(found):
    for name, value in found[0].items():
        run, _, what = name.partition("/")
        if run == "continued":
            np.testing.assert_array_equal(value, found[0][f"whole/{what}"], err_msg=name)


def test_only_one_process_shows_progress(folder):
    assert "4/4" in (folder / "log_0").read_text()
    assert "round/s" not in (folder / "log_1").read_text()
    history = srp.History.load(folder / "saved")
    assert history.num_rounds == 4
    assert history.config["machine"]["num_devices"] == 4
