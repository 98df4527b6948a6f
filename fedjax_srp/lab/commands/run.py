"""`fedjax-srp run`: one method on one data set, into one folder, continued after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedjax_srp.lab.runs import folder
from fedjax_srp.lab.runs.loggers import loggers
from fedjax_srp.lab.runs.run import from_options
from fedjax_srp.parts.checks import check_path, printable
from fedjax_srp.results import callbacks as watch


def run(**arguments: Any) -> None:
    """Simulate, or resume, a run with these values for every option of `fedjax_srp.lab.runs.options.groups`."""
    options = from_options(arguments)
    words = f"{options.name.replace(' + ', '_')}_{Path(arguments['dataset']).stem}"
    default = f"runs/{printable(words, instead='_')}_seed{options.seed}"
    out = Path(arguments["out"] or default)
    check_path("out", out)
    overwrite = arguments["overwrite"]
    log = []
    if arguments["log"] is not None:
        log = [watch.json_lines(arguments["log"])]
    with loggers(options, out, overwrite=overwrite) as callbacks:
        folder.execute(
            options,
            out,
            overwrite=overwrite,
            progress=arguments["progress"],
            callback=watch.all_of(*log, *callbacks),
        )
