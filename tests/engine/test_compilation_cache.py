"""JAX's persistent compilation cache: a second process with the same programs compiles none of them."""

import os
import subprocess
import sys

from engine import cache_job


def test_a_second_process_compiles_nothing(tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    options = {
        "env": environment,
        "capture_output": True,
        "text": True,
        "check": True,
        "timeout": 300,
    }
    command = [sys.executable, cache_job.__file__]
    first, second = (subprocess.run(command, **options).stdout.split() for _ in range(2))
    hits, misses = map(int, first)  # small programs may be equal
    assert misses > 2
    assert second == [str(hits + misses), "0"]
