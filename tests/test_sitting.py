"""The list of measurements at an accelerator: every item exists, runs, is not repeated, and is compared."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import gpu_parts
import sitting

ROOT = Path(__file__).parents[1]
SCRIPTS = [item for item in sitting.ITEMS if item.command]


def test_the_list_has_every_item_with_its_seconds(capsys):
    assert sitting.main(["--list"]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [item.name for item in sitting.ITEMS]
    assert float(total.split()[1]) == sum(item.expected for item in sitting.ITEMS)
    for item in SCRIPTS:
        assert (ROOT / item.command.split()[0]).is_file()
        assert 0 < item.expected <= item.limit


@pytest.mark.parametrize(
    "item",
    [item for item in SCRIPTS if "gpu.py" in item.command],
    ids=lambda item: item.name,
)
def test_an_item_of_a_part_selects_cases_that_exist(item):
    words = shlex.split(item.command)
    part, cases = (words[words.index(word) + 1] for word in ("--part", "--cases"))
    names = [case.name for case in gpu_parts.cases(part) if re.search(cases, case.name)]
    assert names
    assert {predicted.where[2] for predicted in item.predicted} <= set(names)


SCRIPT = """
import json, pathlib, sys, time
out = pathlib.Path(sys.argv[1])
tries = json.loads(out.read_text())["tries"] + 1 if out.exists() else 1
out.write_text(json.dumps({"tries": tries}))
if sys.argv[2] == "hang":
    time.sleep(60)
sys.exit(sys.argv[2] == "fail")
"""


def test_finished_items_are_skipped_and_others_tried_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "script.py").write_text(SCRIPT)
    tries = sitting.Predicted("tries", 1, "the test", ("{out}", "tries"))
    items = [sitting.ITEMS[0]]
    for how in ("fail", "well", "hang"):
        command = f"{tmp_path}/script.py {{out}} {how}"
        items.append(sitting.Item(how, command, "", 0.5, 1, (tries,)))
    monkeypatch.setattr(sitting, "ITEMS", tuple(items))
    device = dict.fromkeys(("device", "driver", "jax", "fedjax_srp"), "any")
    monkeypatch.setattr(sitting, "machine", lambda work: device)
    out = tmp_path / "out"
    for again in (1, 2):
        words = ["--out", str(out), "--items", "fail|well|hang"]
        assert sitting.main(words) == 1
        index = json.loads((out / "index.json").read_text())["items"]
        status = {name: one["status"] for name, one in index.items()}
        assert status == {"fail": "failed", "well": "done", "hang": "stopped"}
        measured = {name: one["numbers"][0]["measured"] for name, one in index.items()}
        assert measured == {"fail": again, "well": 1, "hang": again}
    assert "predicted 1 (the test), measured 2" in capsys.readouterr().out
    assert json.loads((out / "well.json").read_text())["status"] == "done"


@pytest.mark.long
@pytest.mark.parametrize("item", SCRIPTS, ids=lambda item: item.name)
def test_a_dry_run(item, tmp_path, monkeypatch, capsys):
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    words = ["--quick", "--seconds", "1e6", "--out", str(tmp_path)]
    words += ["--items", f"^{re.escape(item.name)}$"]
    assert sitting.main(words) == 0, capsys.readouterr().out
    assert json.loads((tmp_path / f"{item.name}.json").read_text())["status"] == "done"
