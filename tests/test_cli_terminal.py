"""Command line: lists and help, pipes and closed streams, Ctrl-C, and progress bars."""

import io
import os
import shlex
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from command_line import RUN, main
from reference.small import refused

import fedjax_srp as srp
from fedjax_srp.lab.commands import cli
from fedjax_srp.results import json_files
from fedjax_srp.results.bars import tqdm
from fedjax_srp.results.sealed_folders import SEAL


@pytest.mark.short("10")
@pytest.mark.parametrize("length", [10, 10**6])  # within a buffer, and beyond it
def test_a_closed_pipe_is_no_error(length):
    """As in `fedjax-srp list | head`."""
    read, write = os.pipe()
    os.close(read)
    code = f"from fedjax_srp.lab.commands import cli, list; list.catalogue = lambda **_: 'x' * {length}; "
    words = [sys.executable, "-c", code + "raise SystemExit(cli.main(['list']))"]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        words, stdout=write, stderr=subprocess.PIPE, check=False, env=environment
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("has_gone", "code", "words"),
    [
        (True, 141, "interrupted; the same command continues from the last checkpoint"),
        (False, 2, "a connection broke"),  # as that of W&B: the output is still read
    ],
)
def test_work_that_ends_with_its_reader_is_not_finished(
    has_gone, code, words, monkeypatch, capfd
):
    """As in `fedjax-srp run ... 2>&1 | head -1`."""

    def fail(**arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli, "_reader_has_gone", lambda: has_gone)
    monkeypatch.setitem(cli.COMMANDS, "run", cli.COMMANDS["run"]._replace(run=fail))
    assert main(*RUN.split(), "--method", "fedavg") == code
    error = capfd.readouterr().err
    assert words in error
    assert "the same command continues" in error


@pytest.mark.parametrize("where", ["running", "swallowed", "compiled"])
def test_ctrl_c_ends_the_program_in_a_second_with_one_line(where):
    """Also if a library swallows the interrupt, or while Python waits for compiled code."""
    code = "import hashlib, os, signal, sys, time; from fedjax_srp.lab.commands import interrupt; "
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); interrupt.watch('it ends'); "
    code += "print(flush=True); sys.stdin.readline()\n"
    code += {
        "running": "time.sleep(99)",
        "swallowed": "while True:\n try: time.sleep(99)\n except KeyboardInterrupt: pass",
        "compiled": "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",  # lets other threads run, and takes minutes
    }[where]
    environment = os.environ | {"XLA_FLAGS": ""}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, **streams
    ) as process:
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "\nit ends\n"


def test_list_knows_everything(capsys, tmp_path):
    np.savez(tmp_path / "arrays_of_a_user.npz", x_train=np.zeros(1))
    assert main("list", "--data-dir", tmp_path) == 0
    text = capsys.readouterr().out
    names = {*srp.methods.names(), *srp.data.names(), *srp.models.names(), "own_head"}
    names |= {row.source for row in srp.methods.RECIPES.values()}
    for name in names | srp.methods.POLICIES.keys():
        assert name in text
    lines = [line.split()[:2] for line in text.splitlines() if line]
    found = [line for line in lines if line[0] in ("arrays_of_a_user", "digits", "mnist")]
    assert found == [
        ["arrays_of_a_user", "ready"],
        ["digits", "ready"],
        ["mnist", "-"],
    ]


@pytest.mark.parametrize("width", [60, 120, 400])
def test_list_fits_the_terminal_and_says_the_same(width, capsys, monkeypatch):
    main("list")
    whole = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    main("list")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert (text == whole) == (width >= max(map(len, whole.splitlines())))
    assert sorted(text.replace(";", "").split()) == sorted(whole.replace(";", "").split())


@pytest.mark.parametrize("name", ["jax", "tyro"])
def test_ctrl_c_while_the_program_is_imported_is_one_line(name, tmp_path):
    """From the first line of the package on; C extensions turn the exception into an ImportError."""
    (tmp_path / f"{name}.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ImportError('of C') from None\n"
    )
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    )
    program += f"sys.path.insert(0, {str(tmp_path)!r}); "
    program += "from fedjax_srp.__main__ import main; sys.exit(main())"
    words = [sys.executable, "-c", program, "list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "\nfedjax-srp: interrupted\n")


def test_closed_streams_are_no_error():
    command = f"{shlex.quote(sys.executable)} -m fedjax_srp list >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_files_do_not_take_the_place_of_closed_streams():
    """Else what libraries print would end in them, and workers would lose their pipes."""
    code = "import os, sys; from fedjax_srp.__main__ import main; from fedjax_srp.lab.commands import list; "
    code += (
        "is_null = lambda file: os.path.samestat(os.fstat(file), os.stat(os.devnull)) "
    )
    code += "and os.get_inheritable(file); "
    code += "list.catalogue = lambda **_: sys.exit(7 if all(map(is_null, range(3))) else 8); sys.argv[1:] = ['list']; "
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code + 'sys.exit(main())')} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 7


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("file", "lines"), [(io.StringIO, range(8, 13)), (Terminal, range(590, 610))]
)
def test_a_bar_in_a_file_is_written_once_a_minute(file, lines):
    written = file()
    bar = tqdm(total=600, file=written)
    start = bar.start_t
    for second in range(600):
        bar._time = lambda second=second: start + second
        bar.update()
    bar.close()
    assert written.getvalue().count("%|") in lines
    assert "100%" in written.getvalue()
    assert ("\r" in written.getvalue()) == (file is Terminal)
    if file is io.StringIO:
        assert written.getvalue().count("\n") == written.getvalue().count("%|")


def test_version_and_help(capsys):
    assert main("--version") == 0
    assert capsys.readouterr().out == f"fedjax-srp {srp.__version__}\n"
    assert main() == 0
    for command in cli.COMMANDS:
        assert main(command, "--help") == 0
        assert cli.COMMANDS[command].about[:20] in capsys.readouterr().out


def test_the_installed_program_uses_every_core_and_stops_at_ctrl_c(tmp_path):
    # What runs in the background of a shell is started with SIGINT ignored; a user's program is not.
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    )
    code += "runpy.run_module('fedjax_srp.lab.commands.cli', run_name='__main__')"
    command = f"{RUN} --method fedavg --hidden 4 --num-rounds 1000000 --eval-every 2 --no-progress"
    words = [sys.executable, "-c", code, *command.split(), "--out", str(tmp_path)]
    snapshots = lambda: [*tmp_path.glob("checkpoint/[0-9]*")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and not snapshots() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.strip().splitlines()[-1].startswith("fedjax-srp: interrupted")
    snapshot = max(snapshots(), key=lambda path: int(path.name))
    fingerprint = json_files.read_json(snapshot / SEAL)["facts"]["fingerprint"]
    assert fingerprint["machine"]["num_devices"] == min(len(os.sched_getaffinity(0)), 10)


def test_a_missing_accelerator_is_said_in_one_line(monkeypatch, capfd):
    def none(*_):
        raise AssertionError

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", none)
    with refused("JAX_PLATFORMS='cuda': JAX finds no such device; unset it.*jax.cuda12"):
        cli._check_devices()


def test_compiling_is_left_out_of_the_rate():
    """Ten of a hundred steps in 90 s, 80 of them compiling: the rest takes 90 s, not 810."""
    written = io.StringIO()
    bar = tqdm(total=100, file=written, bar_format="{elapsed}<{remaining}")
    bar._time = lambda: bar.start_t + 90
    bar.waited += 80
    bar.update(10)
    assert written.getvalue().rstrip().endswith("01:30<01:30")
    bar.close()
