"""FedRep, SRPFL and FedAvg with fine-tuning on thousands of clients with phones' speeds, to a target accuracy.

    python benchmarks/thousands.py --data-dir DIR [--clients 2000 10000] [--target 0.95] [--rounds 200]
        [--traces FOLDER] [--checkpoints FOLDER] [--out FILE.json]

MNIST in DIR is divided by class: every client has two shards of the sorted training images, 6 images with 10,000
clients, and copies of four test images drawn from its classes. All clients are in FedRep's and FedAvg's
rounds; SRPFL begins with a 64th of them, the fastest, and doubles every 10 rounds. All are evaluated after every fifth
round, after fine-tuning.

Seconds of a client follow from its operations and bytes (`srp.clocks.Devices`): from traces of phones and networks in
FOLDER (`experiments/stragglers/phone_traces.py`), else drawn, with medians of 2e9 operations, 1e6 bytes down and 5e5
bytes up a second and log-normal factors with sigma 0.7. Simulated time to the target is given beside the seconds of the
machine, which include compilation. With --checkpoints an interrupted run goes on with the same command.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from harness.command import parser, write
from harness.measure import machine, peak_memory

import fedjax_srp as srp

METHODS = {"FedRep": "fedrep", "SRPFL": "srpfl", "FedAvg-FT": "fedavg"}
SHARDS, TESTS, FIRST, PER_STAGE, EVERY = 2, 4, 64, 10, 5
SIGMA = 0.7
GIB = 2**30


def federation(num_clients: int, seed: int, data_dir: Path) -> srp.data.FederatedData:
    """Divide the training images by class, and draw test images of each client's classes."""
    whole = srp.data.load("mnist", 1, partition="iid", data_dir=data_dir)
    images = np.asarray(whole.x_train)
    labels = np.asarray(whole.y_train)
    test_labels = np.asarray(whole.y_test)
    rng = np.random.default_rng(seed)
    size = len(labels) // (SHARDS * num_clients)
    if size == 0:
        raise SystemExit(f"--clients {num_clients}: {len(labels)} images are too few")
    by_class = np.lexsort((rng.random(len(labels)), labels))
    shards = by_class[: size * SHARDS * num_clients].reshape(-1, size)
    train = shards[rng.permutation(len(shards))].reshape(num_clients, -1)
    tests_of = [np.flatnonzero(test_labels == label) for label in range(10)]
    test = np.empty((num_clients, TESTS), int)
    for client, rows in enumerate(train):
        for place, label in enumerate(rng.choice(labels[rows], TESTS)):
            test[client, place] = rng.choice(tests_of[label])
    return srp.data.from_arrays(
        images,
        labels,
        np.asarray(whole.x_test)[test.ravel()],  # a copy for each client
        test_labels[test.ravel()],
        train_indices=list(train),
        test_indices=list(np.arange(test.size).reshape(test.shape)),
        num_classes=10,
        scale=whole.scale,
        offset=whole.offset,
        name="mnist",
    )


def phones(traces: Path | None, num_clients: int, seed: int) -> srp.clocks.Devices:
    """Clock of phones: from traces, or log-normal."""
    if traces is not None:
        from experiments.stragglers import phone_traces

        return phone_traces.phones(traces, num_clients, seed, model_ratio=1.0)
    return srp.clocks.Devices(
        compute=srp.clocks.LogNormal(2e9, SIGMA),
        downlink=srp.clocks.LogNormal(1e6, SIGMA),
        uplink=srp.clocks.LogNormal(5e5, SIGMA),
    )


def finite(value: float) -> float | None:
    """None for a time that was not reached."""
    return value if math.isfinite(value) else None


def main() -> None:
    command = parser(__doc__)
    command.add_argument(
        "--data-dir", type=Path, required=True, help="folder with a prepared mnist"
    )
    command.add_argument("--clients", type=int, nargs="+", default=[2000, 10_000])
    command.add_argument("--target", type=float, default=0.95)
    command.add_argument("--rounds", type=int, default=200, help="at most")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--learning-rate", type=float, default=0.05)
    command.add_argument(
        "--hidden", type=int, nargs="+", default=[512, 256, 64], help="widths of the MLP"
    )
    command.add_argument("--traces", type=Path, help="folder with traces of phones")
    command.add_argument("--checkpoints", type=Path, help="folder of interrupted runs")
    args = command.parse_args()
    srp.use_all_cores()
    facts: dict[str, Any] = machine() | {
        "clock": "log-normal" if args.traces is None else "traces",
        "target": args.target,
        "runs": {},
    }
    for num_clients in args.clients:
        begin = time.perf_counter()
        data = federation(num_clients, args.seed, args.data_dir)
        facts["runs"][str(num_clients)] = found = {
            "images_of_a_client": data.train_indices.shape[1],
            "load_seconds": time.perf_counter() - begin,
        }
        for label, name in METHODS.items():
            method = srp.methods.get(
                name,
                dataset=data,
                shared={
                    "hidden": tuple(args.hidden),
                    "learning_rate": args.learning_rate,
                    "initial": max(1, num_clients // FIRST),
                    "rounds_per_stage": PER_STAGE,
                },
            )
            folder = args.checkpoints and args.checkpoints / f"{name}_{num_clients}"
            begin = time.perf_counter()
            history = srp.simulate(
                method,
                data,
                clock=phones(args.traces, num_clients, args.seed),
                num_rounds=args.rounds,
                eval_every=EVERY,
                evaluations="fine_tune",
                target=args.target,
                key=jax.random.key(args.seed),
                checkpoint_dir=folder,
                progress=False,
            )
            time_to_target = history.time_to(args.target)
            found[label] = {
                "rounds": history.num_rounds,
                "accuracy": float(history.final_accuracy),
                "simulated_seconds_to_target": finite(float(time_to_target)),
                "is_upper_bound": time_to_target.is_bound,
                "simulated_seconds": float(history.elapsed()[-1]),
                "times_of_evaluations": history.eval_elapsed().tolist(),
                "accuracies": history.mean_scores("fine_tune").tolist(),
                "host_seconds": history.host_seconds,
                "seconds_of_this_call": time.perf_counter() - begin,
                "peak_gib_so_far": peak_memory() / GIB,
            }
            shown = {
                what: value
                for what, value in found[label].items()
                if not isinstance(value, list)
            }
            print(num_clients, label, shown, flush=True)
            write(args.out, facts)


if __name__ == "__main__":
    main()
