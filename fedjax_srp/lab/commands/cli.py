"""The command line, `fedjax-srp`: arguments, one-line errors, and dispatch to `commands`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import jax

from fedjax_srp._version import __version__
from fedjax_srp.data import archives
from fedjax_srp.lab.commands import demo, interrupt, report
from fedjax_srp.lab.commands import grid as grid_command
from fedjax_srp.lab.commands import list as list_command
from fedjax_srp.lab.commands import run as run_command
from fedjax_srp.lab.runs.options import LOAD, groups, groups_read, load
from fedjax_srp.parts.checks import (
    ArgumentError,
    check_known,
    is_ours,
    nearest,
    printable,
    short,
    types_of,
)
from fedjax_srp.parts.libraries import LAB, needed_by
from fedjax_srp.parts.options import REQUIRED, Option, written
from fedjax_srp.results import errors
from fedjax_srp.xla.cores import use_all_cores
from fedjax_srp.xla.disk_cache import cache_programs

with needed_by("the command line", LAB):
    import tyro
    from tyro import _errors as tyro_errors

PROG = "fedjax-srp"
_ABOUT = "Straggler-resilient personalized federated learning, simulated on simulated wall-clock time."


class Command(NamedTuple):
    """A subcommand."""

    about: str
    # heading -> options; "" for those without
    groups: Callable[[], dict[str, dict[str, Option]]]
    # gets the options; a text that it returns is printed
    run: Callable[..., object]
    positional: str | None = None
    compiles: bool = False


COMMANDS = {
    "demo": Command(
        "Eight methods of the SRPFL paper on scikit-learn's digits, in a few minutes.",
        lambda: {"": written(demo.run)},
        lambda **arguments: demo.run(**arguments),
        compiles=True,
    ),
    "run": Command(
        "One method on one data set; the same command continues a run that was interrupted.",
        groups,
        run_command.run,
        compiles=True,
    ),
    "grid": Command(
        "Every combination of options of run, from a TOML file; the same command resumes it.",
        lambda: {"": grid_command.OPTIONS},
        grid_command.run,
        positional="file",
        compiles=True,
    ),
    "report": Command(
        "Table, figure and page of finished runs.",
        lambda: {"": written(report.report) | {"load": LOAD}},
        report.report,
        positional="folder",
    ),
    "list": Command(
        "Methods, data sets, models, clocks and policies.",
        lambda: {"": written(list_command.catalogue) | {"load": LOAD}},
        list_command.catalogue,
    ),
    "data prepare": Command(
        "Data sets from their original archives, downloaded or by hand, without TensorFlow.",
        lambda: {"": written(archives.prepare)},
        lambda **arguments: archives.prepare(**arguments),
        positional="names",
    ),
}


def main(argv: Sequence[str] | None = None, set_up_cores: bool = True) -> int:
    """Run one command and return its exit code: 0, 2 after a usage error, 130 after Ctrl-C.

    If nobody reads its output any more, a list ends with 0, as under `head`, and work with 141, as
    under SIGPIPE.

    Args:
        argv: arguments after `fedjax-srp`; None for those of this process.
        set_up_cores: call `use_all_cores` and cache compiled programs; only in a process in which
            JAX has not run yet.
    """
    is_process = argv is None
    words = list(sys.argv[1:] if argv is None else argv)
    if is_process:
        warnings.formatwarning = _warning_line
        interrupt.watch(_interrupted(words))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with contextlib.suppress(AttributeError, ValueError):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]  # for ± on any terminal
    is_at_work = False
    try:
        if words[:1] in (["--version"], ["-V"]):
            print(f"{PROG} {__version__}")
            return 0
        command, arguments = _parse(words)
        if set_up_cores:
            use_all_cores()
            if command.compiles:
                cache_programs()
                _check_devices()
        is_at_work = True
        text = command.run(**arguments)
        is_at_work = False
        if isinstance(text, str):
            print(text)
        sys.stdout.flush()
    except KeyboardInterrupt:
        # threads writing a checkpoint would end with tracebacks; their files are ignored
        if is_process:
            interrupt.end(_interrupted(words))
        print(_interrupted(words), file=sys.stderr)
        return 130
    except BrokenPipeError as error:
        if _reader_has_gone():
            return _end_without_reader(words, is_at_work)
        # a connection of a logger broke
        return _refuse(
            f"a connection broke ({error}), not that of this terminal; without --wandb nothing but "
            f"the folder is written{_continues(words)}"
        )
    except MemoryError as error:
        reason = str(error) or "the data or the run are too large"
        return _refuse(f"out of memory: {reason}")
    except (ValueError, OSError, FloatingPointError) as error:
        path = getattr(error, "filename", None)
        if path is not None:
            path = Path(os.fsdecode(path))
        of_system = errors.as_system_error(error, path)
        if of_system is not None:
            _refuse(of_system.strerror)
            if is_process:
                os._exit(2)  # failed writer threads would end with tracebacks
            return 2
        # of a path: too long, a folder, not readable, ...
        is_of_a_path = path is not None or "embedded null" in str(error)
        if not is_of_a_path and not is_ours(error):
            raise
        return _refuse(str(error))
    except SystemExit as stop:  # tyro printed help
        return stop.code if isinstance(stop.code, int) else 2
    return 0


def _refuse(text: object) -> int:
    """Print an error of one line, and return the exit code."""
    line = printable(" ".join(str(text).split()))
    print(f"{PROG}: error: {line}", file=sys.stderr, flush=True)
    return 2


def _warning_line(message: object, *_: object, **__: object) -> str:
    return f"{PROG}: warning: {printable(str(message))}\n"


def _check_devices() -> None:
    """Raise a ValueError of one line if JAX lacks the devices that it is told to use."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if not platforms:
        return
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:
        reason = f" ({short(str(error))})" if str(error) else ""
        raise ValueError(
            f"JAX_PLATFORMS={platforms!r}: JAX finds no such device{reason}; unset it, set it to "
            "cpu, or install JAX for the accelerator, e.g. jax[cuda12]"
        ) from None


def _reader_has_gone() -> bool:
    """Return True if nobody reads the output or the errors any more, as after `head`."""
    try:
        readers = select.poll()
        for stream in (sys.stdout, sys.stderr):
            readers.register(stream.fileno(), select.POLLERR)
        return bool(readers.poll(0))
    # no poll on this system, or no file: replaced or closed
    except (AttributeError, OSError, ValueError):
        return True


def _end_without_reader(words: Sequence[str], is_at_work: bool) -> int:
    # else the interpreter would flush its buffer into the closed pipe
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not is_at_work:
        return 0
    with contextlib.suppress(OSError):
        print(_interrupted(words), file=sys.stderr, flush=True)
    return 141  # 128 + SIGPIPE, as in shells


def _interrupted(words: Sequence[str]) -> str:
    return f"{PROG}: interrupted{_continues(words)}"


def _continues(words: Sequence[str]) -> str:
    if words[:1] in (["run"], ["grid"]):
        return "; the same command continues from the last checkpoint"
    return ""


def _parse(words: Sequence[str]) -> tuple[Command, dict[str, Any]]:
    """Return the command and its arguments; for `run`, the files of --load come first, since they add options."""
    if not words or words[0] in ("-h", "--help"):
        print(
            f"{_ABOUT} Version {__version__}.\n\nusage: {PROG} COMMAND ..., {PROG} COMMAND --help for its options\n"
        )
        print(
            "\n".join(
                f"  {name:<14}{command.about}" for name, command in COMMANDS.items()
            )
        )
        raise SystemExit(0)
    if " ".join(words[:2]) in COMMANDS:  # a command of two words
        words = [" ".join(words[:2]), *words[2:]]
    name, *words = words
    check_known("command", [name], COMMANDS)
    command = COMMANDS[name]
    for i, word in enumerate(words):
        if word.partition("=")[0] == "--load" and name == "run":
            values = itertools.takewhile(
                lambda value: not value.startswith("-"), words[i + 1 :]
            )
            load([word.partition("=")[2]] if "=" in word else [*values])
    of_heading = command.groups()
    known: dict[str, Option] = {}
    for options in of_heading.values():
        known |= options
    _check_flags(name, words, list(known))
    _check_commas(words, known)
    about = command.about
    method = _method_in(words) if name == "run" else {}
    if method and {"-h", "--help"} & {*words}:
        of_heading = groups_read(method)
        words = ["--help"]
        about = f"Options of this method; {PROG} run --help has those of data and simulation too."
    with tyro_errors.on_parse_error(_refuse_words):
        parsed = tyro.cli(
            _dataclass(command, of_heading),
            prog=f"{PROG} {name}",
            description=about,
            args=words,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
        )
    values = {}
    for field, value in vars(parsed).items():
        values |= vars(value) if dataclasses.is_dataclass(value) else {field: value}
    return command, {each: values[_identifier(each)] for each in known}


def _method_in(words: Sequence[str]) -> dict[str, str]:
    """Return the method or algorithm, and with it the policy and model, that the arguments name."""
    named = {}
    for word, value in itertools.pairwise([*words, "--"]):
        flag, is_joined, rest = word.partition("=")
        if flag in ("--method", "--algorithm", "--participation", "--model"):
            named[flag[2:]] = rest if is_joined else value
    return named if {"method", "algorithm"} & named.keys() else {}


def _check_flags(command: str, words: Sequence[str], options: Sequence[str]) -> None:
    """Refuse unknown flags and suggest the nearest ones; tyro would read them as values of the flag before."""
    flags = [f"--{name.replace('_', '-')}" for name in options]
    known = {*flags, "--help"}
    for flag in flags:
        before, dot, last = flag[2:].rpartition(".")
        known.add(f"--{before}{dot}no-{last}")
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            hint = nearest(flag, flags, cutoff=0.7)  # all begin with --
            raise ValueError(
                f"unknown argument {flag}{hint}; see {PROG} {command} --help"
            )


def _dataclass(command: Command, of_heading: dict[str, dict[str, Option]]) -> type:
    """Make the dataclass that tyro reads, with a nested dataclass for each heading."""
    fields: list[Any] = []
    for heading, options in of_heading.items():
        members = [
            _field(name, each, name == command.positional)
            for name, each in options.items()
        ]
        if heading:
            group = dataclasses.make_dataclass(
                heading.capitalize(), members, kw_only=True
            )
            group.__doc__ = None
            fields.append((heading, group))
        else:
            fields += members
    return dataclasses.make_dataclass("Arguments", fields, kw_only=True)


def _identifier(name: str) -> str:
    return name.replace(".", "__")


def _field(name: str, option: Option, positional: bool) -> tuple[str, Any, Any]:
    settings: dict[str, Any] = {"help": option.help.rstrip("."), "name": name}
    if option.default is None:
        settings["help_behavior_hint"] = ""
    if positional:
        settings["metavar"] = name.upper()
    hint = Annotated[option.type, tyro.conf.arg(**settings)]
    if positional:
        hint = tyro.conf.Positional[hint]
    default = dataclasses.MISSING if option.default is REQUIRED else option.default
    return _identifier(name), hint, dataclasses.field(default=default)


def _refuse_words(event: tyro_errors.ParseErrorEvent) -> None:
    """Raise an error of one line for what tyro refuses; it prints a box for kinds not listed here."""
    remedy = f"see {event.prog} --help"
    argument = _name_in_help(getattr(event, "argument", None))
    match event:
        case tyro_errors.InvalidChoice(value=value, choices=choices):
            problem = f"is unknown{nearest(value, choices)}"
            remedy = f"choose from {', '.join(choices)}"
            raise ArgumentError(argument, value, problem, remedy)
        case tyro_errors.InstantiationFailure(message=message):
            first = message.partition("\n")[0]  # the others are of each type
            raise ValueError(f"{argument}: {first} ({remedy})")
        case tyro_errors.BadValue():
            raise ValueError(f"{argument}: a value is missing ({remedy})")
        case tyro_errors.MissingArgs(missing_arguments=missing):
            names = ", ".join(_name_in_help(each.arg) for each in missing)
            raise ValueError(f"{names}: missing ({remedy})")
        case tyro_errors.UnrecognizedArgs(tokens=tokens):
            raise ValueError(f"{' '.join(tokens)}: not understood ({remedy})")


def _name_in_help(argument: Any) -> str:
    """Return the flag of an argument of tyro, or the word for a positional one."""
    if argument is None:
        return PROG
    if argument.is_positional():
        return str(argument.lowered.metavar)
    return str(argument.lowered.name_or_flags[0])


def _check_commas(words: Sequence[str], options: Mapping[str, Option]) -> None:
    """Refuse comma-separated values of a flag that takes several numbers."""
    for word, value in itertools.pairwise(words):
        name = word.lstrip("-").replace("-", "_")
        if not word.startswith("--") or name not in options or "," not in value:
            continue
        kinds = [kind for kind, _ in types_of(options[name].type)]
        takes_text = any(str in (kind, *get_args(kind)) for kind in kinds)
        if not takes_text and any(get_origin(kind) is tuple for kind in kinds):
            values = " ".join(value.replace(",", " ").split())
            raise ValueError(
                f"{word} {value}: values are separated by spaces, {word} {values}"
            )


if __name__ == "__main__":
    sys.exit(main())
