"""The recipe of docs/reproduce.md, followed to the letter; runs have random scores, and Slurm is imitated."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import fake_slurm
import pandas as pd
import pytest

import fedjax_srp as srp

ROOT = Path(__file__).parents[2]
_, _, RECIPE = (ROOT / "docs/reproduce.md").read_text().partition("## The same figure")
RECIPE, _, _ = RECIPE.partition("\n## ")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", RECIPE, re.DOTALL | re.MULTILINE)


def tables_of(text):
    """Return the tables of a TOML file as (header, text), the lines above the first one as out."""
    tables = []
    for table in re.split(r"^(?=\[|out =)", text, flags=re.MULTILINE):
        header = re.match(r"\[+[\w.]+\]+|out", table)
        tables.append((header and header.group(), table))
    return tables


def copy_of_the_figure():
    """Return figure3.toml with the parts of the recipe in place of its own, or after them."""
    tables = tables_of((ROOT / "experiments/srpfl/figure3.toml").read_text())
    (given,) = blocks("toml")
    for header, table in tables_of(given):
        if header is None:
            continue
        places = [i for i, (known, _) in enumerate(tables) if known == header]
        if not places:
            tables.append((header, table))
        else:
            tables[places[0]] = header, table
    return "\n".join(table for _, table in tables)


@pytest.fixture
def follow(tmp_path, monkeypatch, capsys):
    """Return a function that executes a command of the page, and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(copy_of_the_figure())
    data = srp.data.load("digits", num_clients=20, classes_per_client=4)
    srp.data.save(data, "mine.npz")

    def call(command):
        python, script, *words = shlex.split(command, comments=True)
        assert python == "python"
        monkeypatch.setattr(sys, "argv", [script, *words])
        code = None
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as stop:  # of a plan
            code = stop.code
        printed = capsys.readouterr()
        assert not code, printed.err
        return printed

    return call


COMMANDS = [line for block in blocks("console") for line in block.splitlines()]


@pytest.mark.long
@pytest.mark.usefixtures("no_rounds")
@pytest.mark.filterwarnings("ignore:grid.*matches no run, since none has this method")
@pytest.mark.filterwarnings("ignore:.*is an upper bound")
def test_the_recipe_is_what_its_reader_can_do(follow, tmp_path, monkeypatch):
    cluster = fake_slurm.Cluster(tmp_path / "cluster", monkeypatch, room=4)
    cluster.jobs = tmp_path / "runs/mine/.together/slurm"
    three, smoke, plan, jobs, run = map(follow, COMMANDS)
    assert "method: fedrep, ditto, fedper" in three.err
    for printed in (smoke, plan, jobs, run):
        assert "variant: mine" in printed.err
    assert "about" in plan.out
    assert "jobs: 24; partition: gpu; [slurm]: slurm_partition='gpu'" in jobs.err
    assert "not estimated: jobs wait in a queue" in jobs.out
    assert len(cluster.ran) == 24
    for folder in ("runs/mine-smoke", "runs/mine"):
        table = pd.read_csv(Path(folder, "figure3_mine.csv"))
        assert table["method"].nunique() == 6
        own = table[table["evaluation"].str.startswith("own_")]["method"]
        assert {"fedrep", "srpfl", "fedper", "ditto"} == {*own}


@pytest.mark.usefixtures("no_rounds")
@pytest.mark.filterwarnings("ignore:grid.*matches no run, since none has this method")
@pytest.mark.parametrize("figure", [3, 5, 6])
def test_the_copy_is_a_plan_of_the_figures_with_a_pool_too(figure, follow):
    command = COMMANDS[2].replace("figure3.py", f"figure{figure}.py")
    assert "--dry-run" in command
    assert "variant: mine" in follow(command).err
