"""A sample of `failing_disk.py`."""

import failing_disk as attack
import pytest

OFTEN = {
    "first": 15,
    "extended": 3,
    "models": 15,
    "other": 17,
    "less": 5,
}  # every so many calls; arrays take long


@pytest.mark.parametrize("name", attack.SCENARIOS)
def test_readers_find_the_old_result_or_the_new_one_before_every_call(name):
    states, count = attack.seen(attack.SCENARIOS[name])
    assert states == {"old", "new"}
    assert count > 30


@pytest.mark.short(
    "first-killed", "extended-once", "models-once", "other-killed", "less-full"
)
@pytest.mark.parametrize("kind", attack.FAILURES)
@pytest.mark.parametrize("name", attack.SCENARIOS)
def test_a_save_that_fails_leaves_the_old_result_or_the_new_one(name, kind):
    found = list(attack.failures(attack.SCENARIOS[name], kind, OFTEN[name]))
    assert len(found) > 2
    assert not [(at, problem) for at, problem in found if problem]


@pytest.mark.parametrize("size", [3_000, 20_000, 60_000])
def test_a_file_that_is_cut_leaves_the_old_result(size):
    assert not attack.cut(attack.SCENARIOS["models"], size)


def test_a_result_without_its_seal_is_a_finding(tmp_path):
    scenario = attack.SCENARIOS["extended"]
    scenario.prepare(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert scenario.found(tmp_path) not in ("old", "new")
