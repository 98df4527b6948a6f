"""Seconds of a round under phones, and bytes of a message, of all methods of the table, without training.

    python experiments/personalization/costs.py [--data-dir DIR] [--traces DIR] [--scale cpu|full|smoke]
        [--methods NAME ...] [--out runs/personalization]

Everybody takes part in every round, and the phones of a seed are the same in all rounds: a round lasts as long as the
slowest phone takes. Without --traces there are bytes alone. Rows are added to `costs.csv` in --results, which keeps its
other rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import fedjax_srp as srp
from experiments import scripts
from experiments.personalization.rows import TRAININGS
from experiments.personalization.table import (
    HERE,
    SCALES,
    UNTIMED,
    federation,
    method_of,
    network,
)
from experiments.stragglers.phone_traces import phones, seconds_of_clients

SEEDS = (0, 1)
FAST = 1e30  # a second, so that its part takes no time


def costs(
    training: str, scale_name: str, data_dir: str | None, traces: str | None
) -> dict[str, Any]:
    """Return the seconds of a round for the phones of each seed, and the bytes of a client's messages."""
    scale = SCALES[scale_name]
    data = federation(scale, data_dir)
    method = method_of(training, scale, data, network(data))

    def times(clock: srp.clocks.Devices) -> np.ndarray:
        simulation = srp.Simulation(method.algorithm, data, method.participation, clock)
        return np.asarray(seconds_of_clients(simulation))

    ones = np.ones(data.num_clients)
    seconds = []
    if traces is not None:
        folder = Path(traces)
        for seed in SEEDS:
            clock = phones(folder, data.num_clients, seed, model_ratio=1.0)
            seconds.append(times(clock).max())
    up = times(srp.clocks.Devices(FAST * ones, FAST * ones, ones))[0]
    down = times(srp.clocks.Devices(FAST * ones, ones, FAST * ones))[0]
    return {
        "scale": scale_name,
        "method": training,
        "seconds": " ".join(f"{each:.2f}" for each in seconds),
        "bytes_up": round(float(up)),
        "bytes_down": round(float(down)),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.measurement_parser(
        __doc__, SCALES, "runs/personalization", "data-dir"
    )
    timed = [name for name in TRAININGS if name not in UNTIMED]
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", choices=timed, default=timed
    )
    parser.add_argument(
        "--traces",
        metavar="DIR",
        help="folder with the traces of phones and networks",
    )
    args = parser.parse_args(arguments)
    options = {"scale_name": args.scale, "traces": args.traces}
    found = scripts.measure_each(
        args, costs, axes={"training": args.methods}, options=options
    )
    file = (args.results or HERE / "results") / "costs.csv"
    scripts.write_table(file, found, ("scale", "method"))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
