"""`fedjax-srp benchmark`: what the simulator costs on this machine, beside rivals."""

from __future__ import annotations

from fedjax_srp.benchmark import suite
from fedjax_srp.commands.options import Option
from fedjax_srp.report.run_folder import writable

OPTIONS = [
    Option("out", str, "runs/benchmark", "folder for table, figure and numbers"),
    Option("quick", bool, False, "toy sizes, some seconds: whether it runs, not how fast"),
    Option("torch", bool, True, "the PyTorch rival too, where it is installed"),
]


def benchmark(out: str, quick: bool, torch: bool) -> None:
    """Measures and writes the folder."""
    writable(out)
    suite.run(out, quick, torch)
