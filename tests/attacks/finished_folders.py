"""Flipped bits in the files of a finished run. `accuracy.png` is left out: it is drawn from the tables, never read."""

import numpy as np

from fedjax_srp.history import History

FILES = ("config.json", "history.csv", "clients.csv", "summary.json", "models/contents.json", "models/arrays")


def run():
    """A made-up run."""
    rng, rounds, clients = np.random.default_rng(0), 20, 8
    return History(
        name="fedrep",
        round=np.arange(1, rounds + 1),
        stage=np.arange(rounds) // 5,
        cohort_size=np.arange(rounds) // 5 + 1,
        compute_time=rng.exponential(size=rounds),
        communicated=np.ones(rounds, bool),
        finite=np.ones(rounds, bool),
        client_time=rng.exponential(size=clients),
        metrics={"distance": rng.normal(size=rounds)},
        eval_round=np.arange(2, rounds + 1, 2),
        accuracies={"fine_tune": rng.random((rounds // 2, clients))},
        test_count=rng.integers(1, 9, clients),
        config={"learning_rate": 0.1, "seed": 3},
        server_state={"kernel": rng.normal(size=(5, 3)), "bias": rng.normal(size=3).astype(np.float32)},
    )


def flips(number, folder, rng):
    """Flip bits, one at a time, in files chosen in turn, and read the folder with its states."""
    saved, found = run().save(folder / "run", models=True), {"flips": 0, "refused": 0, "silent": 0, "tracebacks": 0}
    files = [path for name in FILES for path in sorted([saved / name, *(saved / name).rglob("*")]) if path.is_file()]
    files = [path for path in files if path.stat().st_size]
    for trial in range(number):
        path = files[trial % len(files)]
        intact = path.read_bytes()
        flipped = bytearray(intact)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            History.load(saved).server_state  # noqa: B018
            outcome = "silent"
        except ValueError as error:
            outcome = "refused" if "damaged (" in str(error) and "\n" not in str(error) else "tracebacks"
        except Exception:
            outcome = "tracebacks"
        found["flips"] += 1
        found[outcome] += 1
        path.write_bytes(intact)
    assert History.load(saved).server_state is not None
    return found
