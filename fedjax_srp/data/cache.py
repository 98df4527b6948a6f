"""Cache of decoded arrays: .npz files whose checksums are verified on every read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.parts.files import check_archive, open_file
from fedjax_srp.results import atomic

FOLDER = ".fedjax_srp"
_FORMAT = 5  # to be incremented when a `decode` returns other arrays for the same files


def cached(
    data_folder: Path,
    name: str,
    origin: Iterable[Path],
    decode: Callable[[], Mapping[str, np.ndarray]],
) -> Mapping[str, np.ndarray]:
    """Return the arrays of `decode`, from the cache if it has them.

    A cache of other source files than `origin` is replaced; so is a damaged one, with a
    warning.

    Args:
        data_folder: the cache is a file there or, if it is read-only, in the user's
            cache.
        name: of the file, without suffix.
        origin: the files that `decode` reads, identified by names, sizes and modification
            times.
        decode: returns arrays by name.
    """
    # os.path.expanduser never raises
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    digest = hashlib.sha256(os.fsencode(data_folder.absolute())).hexdigest()[:16]
    files = [
        data_folder / FOLDER / f"{name}.npz",
        user_cache / "fedjax_srp" / digest / f"{name}.npz",
    ]
    facts: list[Any] = [_FORMAT]
    for path in sorted(origin):
        status = path.stat()
        title = f"{path.parent.name}/{path.name}"
        facts.append([title, status.st_size, status.st_mtime_ns])
    # of many files: CelebA has 200,000
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    for file in files:
        with contextlib.suppress(OSError), open_file(file) as stored:
            try:
                # zip files have a CRC-32 of each array
                kept = np.load(stored, allow_pickle=False)
                check_archive(kept.zip)
                arrays = dict(kept)
                if arrays.pop("origin").tolist() == [fingerprint, *arrays]:
                    _check_lengths(arrays)
                    return arrays
            except Exception as error:  # any error of zip files and their arrays
                reason = " ".join(str(error).split())
                warnings.warn(
                    f"{file}: the cache is damaged ({reason}); decoding the data again",
                    stacklevel=2,
                )
    arrays = decode()
    reasons = []
    named: dict[str, Any] = {**arrays, "origin": np.array([fingerprint, *arrays])}
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.replace({file: lambda path: np.savez(path, **named)})
            return arrays
        except OSError as error:  # read-only, or full
            reasons.append(" ".join(str(error).split()))
    warnings.warn(
        "cannot cache decoded arrays, so they are decoded at every start: "
        f"{'; '.join(reasons)}; make one of "
        f"{' and '.join(str(file.parent) for file in files)} writable",
        stacklevel=2,
    )
    return arrays


def _check_lengths(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise a ValueError unless the columns of a kind (x_train, y_train, ...) have a row for each example."""
    for kind in ("train", "test"):
        lengths = {}
        for name, array in arrays.items():
            if name.endswith(f"_{kind}"):
                lengths[name] = len(array)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"its columns have {lengths} rows")
