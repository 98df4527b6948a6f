"""Random wrong command lines: words, numbers and clocks that no option expects.

    .venv/bin/python tests/attacks/fuzz_commands.py [NUMBER] [SEED]

gives NUMBER of them (200) to `main` in this process: everything is checked, nothing is simulated, downloaded or timed.
The expected answer is exit code 0, or 2 with one line; anything else is a finding, with which this script exits with 1.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzz_files import main

from fedjax_srp import methods
from fedjax_srp.data import archives
from fedjax_srp.lab.commands import cli, demo
from fedjax_srp.lab.runs import options as run_options

simulation = importlib.import_module(
    "fedjax_srp.driver.simulate"
)  # srp.simulate is the function

GOOD = [
    "run",
    "--method",
    "fedavg",
    "--dataset",
    "digits",
    "--num-clients",
    "6",
    "--hidden",
    "4",
    "--no-progress",
]
HUGE = (str(2**31), str(2**32), str(10**23))
NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "0.5",
    "1e23",
    "-1e400",
    "nan",
    "inf",
    "1_0",
    "0x3",
    *HUGE,
)
TEXTS = (
    "",
    " ",
    "digit",
    "srpfl",
    "full",
    "--",
    "-",
    "None",
    "é\U0001f600",
    "a\nb",
    "\x00",
    "../..",
    "[]",
    "x" * 300,
)
CLOCKS = (
    "fixed",
    "random:2",
    "fixed:",
    "fixed:exponential(0)",
    "fixed:exponential(1e-50)",
    "fixed:constant(-1)",
    "dynamic:uniform(2, 1)",
    "fixed:uniform(1, 2) + nan",
    "dynamic:exponential(uniform(1/N, 1))",
    "dynamic:exponential(__import__('os'))",
    "fixed:exponential(9**9**9)",
    "fixed:exponential(" + "-" * 5000 + "1)",
    "fixed:" + "(" * 500 + "1" + ")" * 500,
    "fixed:exponential(1)+",
    "fixed:exponential(rate=[1])",
    "fixed:exponential(1, 2, 3)",
    "fixed:constant(1/0)",
    "fixed:constant(10**400)",
    "fixed:constant(1" + "0" * 400 + ")",
    "fixed:constant(1" + "0" * 5000 + ")",
    "ordered:random:3",
    "trace:",
    "trace:/",
    "trace:nowhere.csv",
    "fixed:exponential(True)",
    "fixed:constant(\x00)",
    "fixed:exponential('1')",
)


def options():
    """Every option of `run`, as on the command line."""
    return [
        f"--{option.replace('_', '-')}"
        for group in run_options.groups().values()
        for option in group
    ]


def command(rng, folder):
    """A random command line."""
    kind = int(rng.integers(10))
    value = lambda: str(rng.choice(NUMBERS if rng.integers(2) else TEXTS))
    words = [*GOOD, "--out", str(folder / "run")]
    known = [
        option for option in options() if option not in ("--out", "--load", "--progress")
    ]
    if kind < 4:  # a value for an option, or several
        flag = str(rng.choice(known))
        return [
            *words,
            flag,
            *(
                value()
                for _ in range(int(rng.integers(1, 4)) if rng.integers(4) == 0 else 1)
            ),
        ]
    if kind == 4:
        return [*words, f"{rng.choice(known)}={value()}"]
    if kind == 5:
        return [*words, "--clock", str(rng.choice(CLOCKS))]
    if kind == 6:  # two methods, policies, models, data sets
        names = [
            *methods.names(),
            *methods.POLICIES,
            "mlp",
            "lenet5",
            "lstm",
            "mnist",
            "nothing",
        ]
        flag = str(
            rng.choice(
                [
                    "--method",
                    "--algorithm",
                    "--participation",
                    "--model",
                    "--dataset",
                    "--partition",
                ]
            )
        )
        return [*words, flag, str(rng.choice(names))]
    if kind == 7:  # words left out, doubled, or in another order
        words = [word for word in words if rng.integers(6)]
        return (
            [str(word) for word in rng.permutation(words)]
            if rng.integers(2)
            else words + words[1:3]
        )
    if kind == 8:  # an option misspelt
        flag = str(rng.choice(known))
        place = int(rng.integers(2, len(flag)))
        return [*words, flag[:place] + flag[place + 1 :], value()]
    other = str(
        rng.choice(["demo", "report", "list", "data prepare", "nothing", "", "data"])
    )
    flags = [
        "--out",
        "--seeds",
        "--target",
        "--communications",
        "--data-dir",
        "--names",
        "-h",
        "--quick",
        "mnist",
    ]
    return [
        *other.split(" "),
        *(str(rng.choice([*flags, value()])) for _ in range(int(rng.integers(4)))),
    ]


def accepted(*args, **kwargs):
    """Replace a function that would simulate, download or time."""
    raise AcceptedError


class AcceptedError(Exception):
    """The command line passed all checks."""


@contextlib.contextmanager
def without_effects(folder):
    """Work in this folder, without simulations and downloads."""
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        for module, name in ((simulation, "_run"), (demo, "run"), (archives, "prepare")):
            patch.setattr(module, name, accepted)
        yield


def attack(words, folder):
    """Run a command line; return (outcome, finding or None)."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            without_effects(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)
            code = cli.main(words, set_up_cores=False)
    except AcceptedError:
        return "accepted", None
    except Exception as error:
        return "failed", f"{type(error).__name__}: {str(error)[:200]}"
    said = err.getvalue()
    if code == 0:
        return "done", None
    if (
        code == 2
        and said.startswith("fedjax-srp: error: ")
        and said.count("\n") == 1
        and len(said) > 25
    ):
        return "refused", None
    return "failed", f"exit code {code} with {said[:300]!r}"


def attacks(number, seed):
    """Attack with `number` command lines."""
    for trial in range(number):
        rng = np.random.default_rng([seed, trial])
        with tempfile.TemporaryDirectory() as folder:
            words = command(rng, Path(folder))
            yield (
                trial,
                [word[:60] for word in words if word not in GOOD],
                *attack(words, Path(folder)),
            )


if __name__ == "__main__":
    sys.exit(main(attacks, *map(int, sys.argv[1:] or [200])))
