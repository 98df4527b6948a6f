"""Grids of small runs on digits, and what they leave behind."""

import json
from pathlib import Path

import fedjax_srp as srp
from fedjax_srp.lab.grids import batches as units
from fedjax_srp.lab.grids.points import Spec, points
from fedjax_srp.results import json_files

RATES, SEEDS = (0.05, 0.2), (0, 2**32 - 1)
DATA = {"dataset": "digits", "num_clients": 6, "classes_per_client": 3, "max_examples": 8}
OPTIONS = DATA | {
    "hidden": [4],
    "num_rounds": 2,
    "eval_every": 1,
    "devices": 1,
    "clock": "random",
}
AXES = {"method": ["fedavg"], "learning_rate": RATES, "seed": SEEDS}


def grid(out, axes=None, **given):
    given = {"batch": 16} | given
    return srp.grid(
        axes=axes or AXES,
        options=OPTIONS | given.pop("options", {}),
        out=out,
        progress=False,
        **given,
    )


def members_of(out):
    return [
        len(members)
        for members in json_files.read_json(Path(out) / units.GRID_INDEX).values()
    ]


def planned(out, axes, **options):
    found = points(Spec(OPTIONS | options, axes, {}, ()))
    return units.assign_units(
        [(alike, 2) for alike in units.group_by_program(found)], out
    )


def toml(file, options, **axes):
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    lines += [
        "[axes]",
        *(f"{name} = {json.dumps(value)}" for name, value in axes.items()),
    ]
    file.write_text("\n".join(["[options]", *lines]))
    return str(file)
