"""Data sets in .npz files: x_train, y_train, x_test, y_test, or MedMNIST's train_images, train_labels, ....

Optional entries are the user of each example (`user_train` and `user_test`, or
`writer_...`), the names of users 0, 1, ... (`user_names`), the scaling of inputs
(`scale`, `offset`) and the number of classes (`num_classes`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.raw import LoadError, RawArrays
from fedjax_srp.data.records import expand_user
from fedjax_srp.data.rows import numbered, reading
from fedjax_srp.parts.checks import checked, nearest
from fedjax_srp.parts.files import check_archive, open_file
from fedjax_srp.results import atomic

_METADATA = ("scale", "offset", "num_classes", "user_names", "class_names")
_KNOWN = {
    *_METADATA,
    *("x_train", "y_train", "writer_train", "user_train"),
    *("x_test", "y_test", "writer_test", "user_test"),
}


# of MedMNIST's files, whose validation images are not used
_MEDMNIST = {
    "x_train": "train_images",
    "y_train": "train_labels",
    "x_test": "test_images",
    "y_test": "test_labels",
}


def is_npz(path: Path) -> bool:
    """Return True for a name that ends in .npz; whether there is such a file, `read` says."""
    return path.suffix == ".npz" and not path.is_dir()


def files(folder: Path) -> list[Path]:
    """List the .npz files of a folder and of its subfolders (emnist/digits.npz), without hidden ones: unfinished."""
    return sorted([*folder.glob("[!.]*.npz"), *folder.glob("[!.]*/[!.]*.npz")])


def read(path: Path) -> RawArrays:
    """Return the arrays of an .npz file; nothing in it is executed.

    Labels that are no integers from 0 (texts, one-hot rows, -1 and 1) are numbered.
    """
    try:
        with open_file(path) as stored:
            file = np.load(stored, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError(f"it is an .npy file of one array of shape {file.shape}")
            check_archive(file.zip)
            entries = list(file.files)
            names = {name: name for name in _KNOWN}
            if "x_train" not in entries and {*_MEDMNIST.values()} <= {*entries}:
                names |= _MEDMNIST
            arrays = {key: file[name] for key, name in names.items() if name in entries}
    except Exception as error:  # any error of zip files, their compression and arrays
        hint = nearest(path.name, [file.name for file in files(path.parent)])
        reason = " ".join(str(error).split()) or type(error).__name__
        if "allow_pickle" in reason:  # NumPy's advice, also on files of other kinds
            reason = "it contains Python objects, or is a file of another kind"
        problem = (
            f"damaged, or not an .npz file of plain arrays ({reason}); copy it again, or "
            "write it with np.savez"
        )
        if isinstance(error, FileNotFoundError):
            problem = f"no such file{hint}; give the path of an .npz file"
        raise LoadError("name", str(path), f": {problem}") from error
    columns = {"x": "x", "y": "y"}
    for users in ("writer", "user"):
        if f"{users}_train" in arrays or f"{users}_test" in arrays:
            columns["users"] = users
    names = {}
    for kind in ("train", "test"):
        for field, column in columns.items():
            names[f"{field}_{kind}"] = f"{column}_{kind}"
    missing = [name for name in names.values() if name not in arrays]
    if missing:
        raise LoadError(
            "name",
            str(path),
            f": lacks {', '.join(missing)}; found {', '.join(entries[:12]) or 'no arrays'}; "
            "rename them, e.g. np.savez(path, x_train=old['train_images'], "
            "y_train=old['train_labels'].ravel(), ...)",
        )
    names |= {name: name for name in _METADATA if name in arrays}
    found: dict[str, Any] = {field: arrays[name] for field, name in names.items()}
    if "class_names" in found:
        class_names = found["class_names"]
        if class_names.ndim != 1 or class_names.dtype.kind != "U":
            raise LoadError(
                "name",
                str(path),
                f": class_names is {class_names.dtype} of shape {class_names.shape}; give a "
                "list of texts, one for each class",
            )
        found["class_names"] = tuple(class_names.tolist())
        return RawArrays(**found)
    with reading(path, path, "the layout of arrays x_train, y_train, x_test, y_test"):
        num_classes = None
        known = found.get("num_classes", np.empty(0))
        if known.shape == () and known.dtype.kind in "iu":  # others are refused later
            num_classes = int(known)
        y_train, y_test, class_names = numbered(
            found["y_train"], found["y_test"], num_classes, keeps_numbers=True
        )
    if class_names is not None:
        found["num_classes"] = len(class_names)
    found |= {"y_train": y_train, "y_test": y_test, "class_names": class_names}
    return RawArrays(**found)


@checked
def save(data: FederatedData, path: str | Path) -> None:
    """Write a federation as an .npz file, for `load`, the command line and grids.

    `load(path)` returns the same clients in the same order, with equal training and test
    examples, dtype, scaling and number of classes. Examples without a client are not
    written. The loaded data have the name of the file. An existing file is replaced, or
    kept if writing fails.

    Args:
        data: as from `load` or `from_arrays`.
        path: of the file, ends in .npz; its folder must exist.

    Raises:
        ValueError: data that a file cannot hold: a client without test examples
            (`holdout` can make one), several labels per example (`next_tokens`), uint8
            inputs without a scale (`FederatedData.stored`), a dtype that NumPy lacks
            (bfloat16).

    Example:
        >>> import pathlib, tempfile
        >>> import fedjax_srp as srp
        >>> data = srp.data.load("digits", num_clients=20, classes_per_client=5)  # pixels are 0..16
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     srp.data.save(data, pathlib.Path(folder) / "mine.npz")
        ...     float(srp.data.load(pathlib.Path(folder) / "mine.npz").scale)
        0.0625
    """
    file = expand_user(path)
    if file.suffix != ".npz" or not file.parent.is_dir():
        raise ValueError(
            f"path={str(path)!r}: must end in .npz, and its folder must exist; create it "
            "first"
        )
    arrays: dict[str, Any] = {"num_classes": np.asarray(data.num_classes)}
    if data.scale is not None and data.offset is not None:
        arrays |= {"scale": np.asarray(data.scale), "offset": np.asarray(data.offset)}
    is_divided = data.x_train.dtype == np.uint8 and "scale" not in arrays
    if is_divided or data.x_train.dtype.kind not in "iuf":
        raise ValueError(
            f"data: inputs are {data.x_train.dtype}, which load would not read unchanged "
            "(it divides uint8 without a scale by 255); convert them to float32, or "
            "save the data before stored()"
        )
    if data.client_names is not None:
        arrays["user_names"] = np.array(data.client_names)
    if data.class_names is not None:
        arrays["class_names"] = np.array(data.class_names)
    for kind in ("train", "test"):
        x = np.asarray(getattr(data, f"x_{kind}"))
        y = np.asarray(getattr(data, f"y_{kind}"))
        indices = np.asarray(getattr(data, f"{kind}_indices"))
        counts = np.asarray(getattr(data, f"{kind}_counts"))
        if y.ndim != 1:
            raise ValueError(
                f"data: labels have shape {y.shape}, and load reads one class number per "
                "example; save sequences with np.savez, and give them to next_tokens"
            )
        if not counts.all():
            raise ValueError(
                f"data: client {np.argmin(counts)} has no {kind} examples, and load "
                "leaves such clients out; save the data from before holdout, and load "
                "them with validation="
            )
        rows = indices[np.arange(indices.shape[1]) < counts[:, None]]
        arrays[f"x_{kind}"] = x[rows]
        arrays[f"y_{kind}"] = y[rows]
        arrays[f"user_{kind}"] = np.repeat(np.arange(len(counts)), counts)
    atomic.replace({file: lambda path: np.savez(path, **arrays)})
