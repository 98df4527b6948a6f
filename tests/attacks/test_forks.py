"""A process that was forked from one in which JAX had started: one line, where JAX itself would wait for ever."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, warnings
import jax
import fedjax_srp as srp
from fedjax_srp.driver.prepare import Request, prepare
warnings.simplefilter("ignore")  # JAX warns of every fork
if sys.argv[1] == "started":
    jax.devices()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if not os.fork():  # what holds in a process still holds after it has forked, too
    os._exit(0)
try:
    prepare(Request(None, None))
except ValueError as error:
    print(error, flush=True)
os._exit(0)  # as processes of multiprocessing end
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("state", ["started", "fresh"])
def test_a_forked_process_is_refused_if_jax_had_started(state):
    """Before anything is computed a fork is as good as another process: there the arguments are refused."""
    command = [sys.executable, "-c", PROGRAM, state]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300
    )
    is_refused = "get_context('spawn')" in done.stdout
    assert is_refused == (state == "started")
    assert done.stdout.count("\n") == 1
