"""A sample of the random files and command lines of `fuzz_files.py` and `fuzz_commands.py`."""

import warnings

import fuzz_commands
import fuzz_files
import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock


@pytest.fixture
def lenient_warnings():
    """Warnings about odd data are not errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def test_files_are_refused_in_one_line_or_loaded_correctly(lenient_warnings):
    found = list(fuzz_files.attacks(100, seed=0))
    assert not [(trial, kind, finding) for trial, kind, _, finding in found if finding]
    assert {outcome for _, _, outcome, _ in found} == {"accepted", "refused"}


def test_the_file_without_damage_loads(tmp_path):
    arrays = fuzz_files.columns(np.random.default_rng(0))
    np.savez(tmp_path / "data.npz", **arrays)
    data = srp.data.load(tmp_path / "data.npz")
    assert data.num_clients == 2
    np.testing.assert_array_equal(data.x_train, arrays["x_train"])


def test_wrong_contents_are_a_finding():
    class Found:
        x_train, y_train, num_classes = np.array([[np.nan]]), np.array([0]), 1

    with pytest.raises(AssertionError):
        fuzz_files.check_same(Found)


def test_command_lines_are_refused_in_one_line_or_accepted(lenient_warnings):
    found = list(fuzz_commands.attacks(40, seed=0))
    assert not [(trial, words, finding) for trial, words, _, finding in found if finding]
    assert {"accepted", "refused"} <= {outcome for _, _, outcome, _ in found}


def answer(words):
    """The clock, or the error of parsing it."""
    try:
        return read_clock(words, 4)
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "words", fuzz_commands.CLOCKS, ids=range(len(fuzz_commands.CLOCKS))
)
def test_clocks_are_refused_in_one_line_or_accepted(words):
    found = answer(words)
    assert isinstance(found, srp.Clock) or (
        len(str(found)) < 400 and "\n" not in str(found)
    )


def test_a_clock_name_without_arguments_is_refused_with_arguments():
    assert "clock='random:2' is not understood: random takes no arguments" in str(
        answer("random:2")
    )


def test_a_traceback_is_a_finding(tmp_path, monkeypatch):
    def broken(*args):
        raise TypeError("broken")

    monkeypatch.setattr(fuzz_commands.cli, "_parse", broken)
    assert fuzz_commands.attack(["run"], tmp_path) == ("failed", "TypeError: broken")
