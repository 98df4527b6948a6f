"""Data sets in LEAF's layout: folders train and test with .json files of users and their examples.

A file is {"users": [u, ...], "num_samples": [n, ...], "user_data": {u: {"x": [...], "y":
[...]}}}. A user may be in several files. Inputs are numbers; texts (Sent140); texts whose
label is the next character (Shakespeare); or names of images (CelebA). `next_words` also
reads lists of sequences of tokens (Reddit). Reading JSON is slow, so the arrays are cached
(`cache`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_srp.data import images, text
from fedjax_srp.data.cache import cached
from fedjax_srp.data.raw import LoadError, RawArrays
from fedjax_srp.data.rows import dict_of_unique_keys, reading
from fedjax_srp.parts.checks import short
from fedjax_srp.parts.files import MALFORMED, open_file

# index of the text in an input of Sent140: id, date, query, user, text, training or test
_TEXT = 4
_DAY = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.*")  # its date begins so
_SEQUENCES = (
    "inputs are lists of token lists, as in LEAF's Reddit, which has no classes; give the "
    "folder to srp.data.next_words"
)
# of Shakespeare, in the order of LEAF's own numbers
LETTERS = (
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
# lines of a user that LEAF's script leaves out between training and test, and counts for test
_LEFT_OUT = 79
_FACES = Path("raw") / "img_align_celeba"  # images of CelebA, beside train
_FACE_SIZE = (84, 84)  # pixels, as in LEAF's model


class _OtherLayoutError(Exception):
    """A sound file of a data set that is not read, with the reason and the remedy."""


def is_leaf(folder: Path) -> bool:
    """Return True if a folder, or its subfolder data (where LEAF's scripts write), has train/*.json files."""
    try:
        return any(_root(folder).glob("train/*.json"))
    except OSError:  # it cannot be read
        return False


def read(folder: Path) -> RawArrays:
    """Return the examples of all users.

    Inputs of 784 numbers become images of 28 x 28; they become uint8 if all numbers are
    multiples of 1/255 (LEAF's FEMNIST, where white paper is 1.0). Texts become tokens
    (`text`) of the vocabulary of all training texts, and their labels 0, 1, ... in
    ascending order. Where labels are characters (Shakespeare), tokens are characters too,
    of LEAF's 80, from 1. Names of images (CelebA) become the images of
    raw/img_align_celeba, of 84 x 84 pixels.
    """
    files = _files(folder)
    origin = [*files["train"], *files["test"]]
    faces = _root(folder) / _FACES
    if faces.is_dir():
        origin.extend(path for path in faces.iterdir() if _is_image_file(path.name))
    arrays = dict(cached(_root(folder), "leaf", origin, lambda: _decode(files)))
    class_names = arrays.pop("class_names", None)
    raw = RawArrays(**arrays)  # pyright: ignore[reportArgumentType]
    if class_names is None:
        return raw
    names = tuple(map(str, class_names.tolist()))
    return raw._replace(class_names=names, num_classes=len(names))


def texts(folder: Path) -> dict[str, np.ndarray]:
    """Return the texts x_train and x_test, (n,) each, and the user of each text, users_train and users_test.

    A sequence of Reddit is a tuple of tokens.
    """
    columns = _joined(_read_files(_files(folder), False))
    for kind in ("train", "test"):
        if columns[f"x_{kind}"].dtype != object:
            raise ValueError(
                f"folder={str(folder)!r}: inputs in {kind} are numbers; give a folder of "
                "texts"
            )
    return columns


def _joined(parts: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {column: np.concatenate(arrays) for column, arrays in parts.items()}


def _files(folder: Path) -> dict[str, list[Path]]:
    root = _root(folder)
    files = {}
    for kind in ("train", "test"):
        files[kind] = sorted((root / kind).glob("*.json"))
        if not files[kind]:
            raise LoadError(
                "name",
                str(folder),
                f": no .json files in {root / kind}; give a folder with LEAF's "
                "train/*.json and test/*.json, or the path of an .npz file",
            )
    return files


def _root(folder: Path) -> Path:
    return folder / "data" if (folder / "data" / "train").is_dir() else folder


def _read_files(
    files: dict[str, list[Path]], is_labelled: bool = True
) -> dict[str, list[np.ndarray]]:
    """Return the columns x_train, users_train, ..., each a list with the part of every file."""
    from fedjax_srp.results.bars import tqdm

    parts: dict[str, list[np.ndarray]] = {}
    total = sum(map(len, files.values()))
    with tqdm(
        total=total, desc="reading json", unit="file", disable=None, leave=False
    ) as bar:
        for kind, paths in files.items():
            for path in paths:
                for column, values in _read_file(path, is_labelled).items():
                    parts.setdefault(f"{column}_{kind}", []).append(values)
                bar.update()
    return parts


def _decode(files: dict[str, list[Path]]) -> dict[str, np.ndarray]:
    parts = _read_files(files)
    inputs = [*parts["x_train"], *parts["x_test"]]
    shapes = {"text" if x.dtype == object else str(x.shape[1:]) for x in inputs}
    root = files["train"][0].parents[1]
    if len(shapes) > 1:
        raise LoadError(
            "name",
            str(root),
            f": examples have shapes {' and '.join(sorted(shapes))}; give all the same "
            "shape",
        )
    if shapes == {"text"}:
        return _of_texts(root, _joined(parts))
    if len({x.dtype for x in inputs}) > 1:  # multiples of 1/255 in some files only
        for kind in files:
            parts[f"x_{kind}"] = [*map(_as_floats, parts[f"x_{kind}"])]
    return _joined(parts)


def _of_texts(root: Path, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace texts by tokens or images, and labels (0 and 4, say) by 0, 1, ..."""
    inputs = [*columns["x_train"], *columns["x_test"]]
    labels = [*columns["y_train"], *columns["y_test"]]
    are_images = all(map(_is_image_file, inputs))
    if (
        not are_images
        and not all(map(_is_digit, labels))
        and all(map(_is_letter, labels))
    ):
        return _characters(root, columns, max(map(len, inputs)))
    vocabulary: dict[str, int] = {}
    if not are_images:
        vocabulary = text.vocabulary(columns["x_train"])
    with reading(root, root, "LEAF's layout"):
        for kind in ("train", "test"):
            columns[f"y_{kind}"] = _labels(columns[f"y_{kind}"])
    classes = np.union1d(columns["y_train"], columns["y_test"])
    columns["class_names"] = classes.astype(str)
    for kind in ("train", "test"):
        inputs = columns[f"x_{kind}"]
        if are_images:
            columns[f"x_{kind}"] = _faces(root, inputs)
        else:
            columns[f"x_{kind}"] = text.tokens(inputs, vocabulary)
        columns[f"y_{kind}"] = np.searchsorted(classes, columns[f"y_{kind}"])
    return columns


def _is_image_file(name: Any) -> bool:
    return isinstance(name, str) and Path(name).suffix.lower() in images.SUFFIXES


def _is_letter(label: Any) -> bool:
    return isinstance(label, str) and len(label) == 1


def _is_digit(label: Any) -> bool:
    return _is_letter(label) and label.isdecimal()


def _characters(
    root: Path, columns: dict[str, np.ndarray], length: int
) -> dict[str, np.ndarray]:
    """Return tokens of characters, 0 for padding at the end, and the number of the next character."""
    number = {letter: i for i, letter in enumerate(LETTERS)}
    for kind in ("train", "test"):
        found = {*"".join(columns[f"x_{kind}"]), *columns[f"y_{kind}"]}
        others = sorted(found - {*LETTERS})
        if others:
            raise LoadError(
                "name",
                str(root),
                f": {kind} has the characters {short(others)}, which are not among the 80 of "
                "LEAF's Shakespeare; replace them, or give numbers to srp.data.next_tokens",
            )
        tokens = np.zeros((len(columns[f"x_{kind}"]), length), np.int32)
        for row, line in zip(tokens, columns[f"x_{kind}"], strict=True):
            row[: len(line)] = [number[letter] + 1 for letter in line]
        columns[f"x_{kind}"] = tokens
        columns[f"y_{kind}"] = np.array([number[label] for label in columns[f"y_{kind}"]])
    return columns | {"class_names": np.array([*LETTERS])}


def _faces(root: Path, names: np.ndarray) -> np.ndarray:
    folder = root / _FACES
    if not folder.is_dir():
        raise LoadError(
            "name",
            str(root),
            f": inputs are names of image files, e.g. {names[0]!r}, as in LEAF's CelebA, and "
            f"there is no folder {_FACES.as_posix()} of them; put it there",
        )
    faces = np.empty((len(names), *_FACE_SIZE, 3), np.uint8)
    for face, name in zip(faces, names, strict=True):
        path = folder / Path(name).name
        with reading(root, path, "the layout of LEAF's CelebA"):
            face[:] = images.decode(path, _FACE_SIZE)
    return faces


def _as_floats(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x


def _read_file(path: Path, is_labelled: bool) -> dict[str, np.ndarray]:
    """Return the columns x, users and, if `is_labelled`, y of one file."""
    folder = str(path.parents[1])
    where = f": {path.parent.name}/{path.name}"
    try:
        with open_file(path) as file:
            content = json.loads(file.read(), object_pairs_hook=dict_of_unique_keys)
        return _columns(content, is_labelled)
    except _OtherLayoutError as error:
        raise LoadError("name", folder, f"{where}: {error}") from None
    except (OSError, *MALFORMED) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, LookupError):
            reason = repr(error)
        raise LoadError(
            "name",
            folder,
            f"{where} is damaged or is not in LEAF's layout ({reason}); copy or prepare it "
            "again, with LEAF's entries users, num_samples and user_data",
        ) from error


def _columns(content: dict[str, Any], is_labelled: bool) -> dict[str, np.ndarray]:
    """Return the columns x, users and, if `is_labelled`, y of a file's content."""
    users = list(dict.fromkeys(content["users"]))
    # LEAF's script has entries without examples of users that it leaves out
    for user in sorted(content["user_data"].keys() - users):
        if content["user_data"][user]["x"]:
            raise ValueError(f"user {user!r} is in user_data and not in users")
    counts = dict(zip(content["users"], content.get("num_samples", []), strict=False))
    all_inputs = []
    all_labels = []
    sizes = []
    for user in users:
        if user not in content["user_data"]:
            raise ValueError(f"user {user!r} is in users and not in user_data")
        entry = content["user_data"][user]
        inputs = entry["x"]
        if inputs and _are_sequences(inputs[0]):
            if is_labelled:
                raise _OtherLayoutError(_SEQUENCES)
            inputs = _sequences(inputs, entry["y"])
            # counts are those of all comments, also in other files
            counts[user] = len(inputs)
        labels = entry["y"] if is_labelled else inputs
        count = counts.get(user, len(inputs))
        if labels and _is_letter(labels[0]) and count == len(inputs) + _LEFT_OUT:
            count = len(inputs)
        if not len(inputs) == len(labels) == count:
            raise ValueError(
                f"user {user!r} has {len(inputs)} inputs, {len(labels)} labels and "
                f"num_samples {count}"
            )
        all_inputs.extend(inputs)
        all_labels.extend(labels)
        sizes.append(len(inputs))
    columns = {"x": _inputs(all_inputs), "users": np.repeat(np.array(users), sizes)}
    if not is_labelled:
        return columns
    if not all_labels:
        raise ValueError("there are no examples")
    if columns["x"].dtype == object:
        columns["y"] = np.empty(len(all_labels), object)
        columns["y"][:] = all_labels
    else:
        columns["y"] = _labels(all_labels)
    return columns


def _are_sequences(entry: Any) -> bool:
    return isinstance(entry, list) and bool(entry) and isinstance(entry[0], list)


def _sequences(comments: list[Any], labels: list[Any]) -> list[tuple[str, ...]]:
    """Return the sequences of Reddit's comments, each with the token that follows its last."""
    sequences = []
    for comment, label in zip(comments, labels, strict=True):
        targets = label["target_tokens"]
        for tokens, following in zip(comment, targets, strict=True):
            if tokens[1:] != following[:-1]:
                raise ValueError(
                    f"target_tokens {short(following)} do not follow {short(tokens)}"
                )
            sequences.append((*tokens, following[-1]))
    return sequences


def _inputs(x: list[Any]) -> np.ndarray:
    """Convert inputs to (n, ...) float32, (n, 28, 28) uint8 if lossless, or (n,) texts as objects.

    A list of texts is a tweet of Sent140, if all inputs are, or a list of words, which
    are joined.
    """
    first: Any = x
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, str):
        return _texts(x)
    numbers = np.array(x, np.float64)
    if numbers.shape[1:] != (784,):
        return numbers.astype(np.float32)
    pixels = np.rint(255 * numbers)
    is_rounding = np.abs(255 * numbers - pixels).max() < 1e-3
    is_bytes = is_rounding and pixels.min() >= 0 and pixels.max() <= 255
    images = pixels.astype(np.uint8) if is_bytes else numbers.astype(np.float32)
    return images.reshape(-1, 28, 28)


def _texts(x: list[Any]) -> np.ndarray:
    """Return (n,) texts as objects: of tweets, of lists of words, of plain texts, or tuples of tokens as they are."""
    are_tweets = all(map(_is_tweet, x))
    texts = np.empty(len(x), object)
    for i, entry in enumerate(x):
        words = entry
        if are_tweets:
            words = entry[_TEXT]
        elif isinstance(entry, list):
            words = " ".join(entry)
        # raises a TypeError unless all are strings
        "".join(words if isinstance(words, tuple) else [words])
        texts[i] = words
    return texts


def _is_tweet(entry: Any) -> bool:
    """Return True for id, date, query, user and text, and perhaps training or test."""
    if not isinstance(entry, list) or len(entry) not in (_TEXT + 1, _TEXT + 2):
        return False
    if not all(isinstance(field, str) for field in entry):
        return False
    return entry[0].isdecimal() and _DAY.fullmatch(entry[1]) is not None


def _labels(y: Iterable[Any]) -> np.ndarray:
    """Convert integers, which may be strings ("4") or floats (4.0), to (n,) int64."""
    labels = []
    for label in y:
        number = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = int(label)
        if number is None or number != float(label):
            raise ValueError(f"the label {label!r} is not an integer")
        labels.append(number)
    return np.array(labels, np.int64)
