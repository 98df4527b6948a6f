"""The command line, `fedjax-srp`: reads arguments, reports errors in one line, leaves the work to `commands`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from fedjax_srp import stored
from fedjax_srp._checks import unknown
from fedjax_srp._version import __version__
from fedjax_srp.commands import demo, interrupt, report, run_options
from fedjax_srp.commands import list as list_command
from fedjax_srp.commands import prepare as prepare_command
from fedjax_srp.commands import run as run_command
from fedjax_srp.commands.errors import is_ours
from fedjax_srp.commands.options import REQUIRED, Option
from fedjax_srp.engine.cores import use_all_cores
from fedjax_srp.report import page

PROG = "fedjax-srp"
_ABOUT = "Straggler-resilient personalized federated learning, simulated on simulated wall-clock time."


class Command(NamedTuple):
    """A subcommand."""

    about: str
    groups: Callable[[], dict[str, list[Option]]]  # "" for options that need no heading
    work: Callable[[dict[str, Any]], object]  # option -> value
    positional: str | None = None
    check: Callable[[dict[str, Any], set[str]], None] | None = None  # of values and of the options that were given
    prepare: Callable[[Sequence[str]], None] | None = None  # of the words, before options are read


def _demo(arguments: dict[str, Any]) -> None:
    plan = demo.QUICK if arguments["quick"] else demo.FULL
    size = f"{plan.federation['num_clients']} clients with {plan.federation['classes_per_client']} classes each"
    print(f"{len(plan.methods)} methods, {arguments['seeds']} seeds, {plan.num_rounds} rounds: digits, {size},")
    print("whose local work takes 1 time unit on average: exponential, drawn once for every client and seed\n")
    found = demo.run(arguments["out"], arguments["seeds"], plan, arguments["progress"])
    print(f"\n{found.text}\n")
    out = Path(arguments["out"])
    print(f"table   {out / 'table.txt'}, {out / 'table.csv'}\nfigure  {out / 'accuracy.png'}")
    print(f"page    {out / page.FILE}, for a browser: any communication cost, any target")
    print(f"runs    {out / '<method>' / 'seed_<seed>'}")


def _report(arguments: dict[str, Any]) -> None:
    del arguments["load"]  # done
    print(report.report(**arguments))


def _grid_options() -> dict[str, list[Option]]:
    from fedjax_srp.grids import command

    return {"": command.OPTIONS}


def _grid(arguments: dict[str, Any]) -> None:
    from fedjax_srp.grids import command

    command.run(arguments)


def _list(arguments: dict[str, Any]) -> None:
    print(list_command.catalogue(**arguments, width=list_command.width_of_stdout()))


def _prepare(arguments: dict[str, Any]) -> None:
    prepare_command.prepare(**arguments)


COMMANDS = {
    "demo": Command(
        "Eight methods of the SRPFL paper on scikit-learn's digits, in a few minutes.",
        lambda: {
            "": [
                Option("out", str, "runs/demo", "folder for table, figure, page and runs"),
                Option("seeds", int, 3, "how many repeats, simulated together"),
                Option("quick", bool, False, "SRPFL and FedRep alone, half the rounds"),
                Option("progress", bool, True, "show a progress bar"),
            ]
        },
        _demo,
    ),
    "run": Command(
        "One method on one data set; the same command continues a run that was interrupted.",
        run_options.groups,
        run_command.run,
        check=run_command.check_given,
        prepare=run_options.prepare,
    ),
    "grid": Command(
        "Every combination of options of run, from a TOML file; the same command goes on where it was.",
        _grid_options,
        _grid,
        positional="file",
    ),
    "report": Command(
        "Table, figure and page of finished runs.",
        lambda: {
            "": [
                Option("folder", str, REQUIRED, "where the run folders are, or folders of them"),
                Option("target", float | None, None, "accuracy to time; 95 % of FedRep's final accuracy when left out"),
                Option("communications", tuple[float, ...], demo.COMMUNICATIONS, "costs of a round's communication"),
                Option("out", str | None, None, "where to write; the folder itself when left out"),
                Option("evaluation", str | None, None, "what judges the runs; each method's default when left out"),
                Option("load", tuple[str, ...], (), "Python files that register methods, for their labels and twins"),
            ]
        },
        _report,
        positional="folder",
        prepare=run_options.prepare,
    ),
    "list": Command(
        "Methods, data sets, models, clocks and policies.",
        lambda: {"": [Option("data_dir", str | None, None, "folder with prepared data sets")]},
        _list,
    ),
    "data prepare": Command(
        "Data sets from their original archives, downloaded or by hand, without TensorFlow.",
        lambda: {"": prepare_command.OPTIONS},
        _prepare,
        positional="names",
    ),
}


def main(argv: Sequence[str] | None = None, set_up_cores: bool = True) -> int:
    """Runs one command and returns its exit code: 0, 2 after an error of use, 130 after Ctrl-C.

    Args:
        argv: the words after `fedjax-srp`; None for those of this process.
        set_up_cores: call `use_all_cores` first; only for a process in which JAX has not run yet.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        warnings.formatwarning = lambda message, *_, **__: f"{PROG}: warning: {message}\n"
        interrupt.watch(_interrupted(words))
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]  # for ± on any terminal
    try:
        if words[:1] in (["--version"], ["-V"]):
            print(f"{PROG} {__version__}")
            return 0
        command, arguments = _parse(words)
        if set_up_cores:
            use_all_cores()
        command.work(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if argv is None:  # threads that were writing a checkpoint would end with tracebacks; what they wrote is ignored
            interrupt.end(_interrupted(words))
        print(_interrupted(words), file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read this has left, as head does
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, FloatingPointError) as error:
        named = getattr(error, "filename", None)
        full = stored.as_full_disk(error, None if named is None else Path(named))
        if full is None and not is_ours(error):
            raise
        text = error if full is None else full.strerror
        print(f"{PROG}: error: {' '.join(str(text).split())}", file=sys.stderr, flush=True)
        if full is not None and argv is None:
            os._exit(2)  # threads that could not write would end with tracebacks
        return 2
    except SystemExit as stop:  # tyro printed help
        return stop.code if isinstance(stop.code, int) else 2
    return 0


def _interrupted(words: Sequence[str]) -> str:
    hint = "; the same command continues from the last checkpoint" if words[:1] in (["run"], ["grid"]) else ""
    return f"{PROG}: interrupted{hint}"


def _parse(words: Sequence[str]) -> tuple[Command, dict[str, Any]]:
    """The command and its arguments.

    Raises:
        ValueError: an error of use, in one line.
        SystemExit: help was asked for and printed.
    """
    if not words:
        words = ["--help"]
    if " ".join(words[:2]) in COMMANDS:  # a command of two words
        words = [" ".join(words[:2]), *words[2:]]
    if words[0] not in (*COMMANDS, "-h", "--help"):
        raise unknown("command", words[0], COMMANDS)
    given: set[str] = set()
    if words[0] in COMMANDS:
        prepare, groups = COMMANDS[words[0]].prepare, COMMANDS[words[0]].groups
        if prepare is not None:
            prepare(words[1:])
        flags = [f"--{o.name.replace('_', '-')}" for group in groups().values() for o in group]
        switches = [f"--{before}{dot}no-{last}" for before, dot, last in (flag[2:].rpartition(".") for flag in flags)]
        for word in words[1:]:
            flag = word.partition("=")[0].replace("_", "-")
            if flag.startswith("--") and flag not in (*flags, *switches, "--help"):
                nearest = difflib.get_close_matches(flag, flags, n=2, cutoff=0.7)
                hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
                raise ValueError(f"unknown argument {flag}; {hint}see {PROG} {words[0]} --help")
            given.add(flag.removeprefix("--").replace("-", "_"))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            parsed = tyro.extras.subcommand_cli_from_dict(
                {name: _dataclass(name, command) for name, command in COMMANDS.items()},
                prog=PROG,
                description=f"{_ABOUT} Version {__version__}.",
                args=words,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
            )
    except SystemExit as stop:
        if stop.code:
            said = _one_line(printed.getvalue(), words[0])
            raise ValueError(_commas(words, said) or said) from None
        raise
    arguments: dict[str, Any] = {}
    for name, value in vars(parsed).items():
        arguments |= vars(value) if dataclasses.is_dataclass(value) else {name: value}
    command = COMMANDS[words[0]]
    names = {_identifier(option): option.name for group in command.groups().values() for option in group}
    arguments = {names[name]: value for name, value in arguments.items()}
    if command.check is not None:
        command.check(arguments, given)
    return command, arguments


def _dataclass(name: str, command: Command) -> type:
    """A command's options as the dataclass that tyro reads, one nested dataclass a group with a heading."""
    fields: list[Any] = []
    for heading, options in command.groups().items():
        members = [_field(option, positional=option.name == command.positional) for option in options]
        if heading:
            group = dataclasses.make_dataclass(heading.capitalize(), members, kw_only=True)
            group.__doc__ = None
            fields.append((heading, group))
        else:
            fields += members
    made = dataclasses.make_dataclass(name.capitalize(), fields, kw_only=True)
    made.__doc__ = command.about
    return made


def _identifier(option: Option) -> str:
    """The name of a field for an option, which may have dots."""
    return option.name.replace(".", "__")


def _field(option: Option, positional: bool) -> tuple[Any, ...]:
    looks: dict[str, Any] = {"help": option.help.rstrip("."), "name": option.name}
    if option.default is None:
        looks["help_behavior_hint"] = ""
    if positional:
        looks["metavar"] = option.name.upper()
    hint = Annotated[option.type, tyro.conf.arg(**looks)]
    if positional:
        hint = tyro.conf.Positional[hint]
    return (
        (_identifier(option), hint)
        if option.default is REQUIRED
        else (_identifier(option), hint, dataclasses.field(default=option.default))
    )


def _commas(words: Sequence[str], said: str) -> str | None:
    """What is wrong where tyro complains of a flag, and values follow each other with commas there."""
    for flag, value in itertools.pairwise(words):
        if flag.startswith("--") and flag in said and "," in value and not value.startswith("--"):
            return f"{flag} {value}: values are separated by spaces, {flag} {' '.join(value.replace(',', ' ').split())}"
    return None


def _one_line(box: str, command: str) -> str:
    """What tyro says in a box, without the box and without repeating the help."""
    text = re.split(r"─{3,}|Got errors:", re.sub(r"╭─[^╮]*╮|[│╰╯]|Error parsing", " ", box))[0]
    return f"{' '.join(text.split())} (see {PROG} {command} --help)"


if __name__ == "__main__":
    sys.exit(main())
