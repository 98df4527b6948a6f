"""`run --method M --help` shows what that method reads, and lines in files have no carriage returns."""

import pytest
from command_line import main


def help_of(capsys, *words):
    assert main("run", *words, "--help") == 0
    return capsys.readouterr().out


def flags(text):
    words = text.replace("│", " ").split()
    return {word.rstrip(",") for word in words if word.startswith("--")}


def test_the_help_of_a_method_is_short_and_its_own(capsys):
    whole = help_of(capsys)
    of_srpfl = help_of(capsys, "--method", "srpfl")
    assert len(of_srpfl.splitlines()) < len(whole.splitlines()) / 2
    for flag in ("--head-epochs", "--initial", "--learning-rate", "--hidden", "--method"):
        assert flag in flags(of_srpfl)
    for flag in ("--mu", "--dataset", "--num-rounds"):
        assert flag not in flags(of_srpfl)
        assert flag in flags(whole)
    other = help_of(capsys, "--method=fedprox", "--participation", "fastest")
    assert {"--mu", "--k"} <= flags(other)
    assert "--head-epochs" not in flags(other)


def test_an_unknown_method_is_refused_as_in_a_run(capsys):
    assert main("run", "--method", "srpfI", "--help") == 2
    error = capsys.readouterr().err
    assert "srpfl" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["--dataset", "digits"], ["--participation", "oort"]])
def test_without_a_method_the_help_is_whole(words, capsys):
    assert "--dataset" in flags(help_of(capsys, *words))
