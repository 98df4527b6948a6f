"""`load`: partitioned data sets by name or file, and the registries of sources, normalisations and partitions."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_srp.data import archives, layouts, npz, records
from fedjax_srp.data import partition as partitions
from fedjax_srp.data.arrays import from_arrays
from fedjax_srp.data.federated import FederatedData
from fedjax_srp.data.holdout import holdout
from fedjax_srp.data.partition import Fraction, Partition
from fedjax_srp.data.partition_file import is_partition_file, read_partition, with_tests
from fedjax_srp.data.raw import LoadError, RawArrays, keep_classes
from fedjax_srp.data.rows import check_columns, split_off_tests
from fedjax_srp.parts.checks import (
    check_choice,
    check_known,
    check_path,
    checked,
    nearest,
    short,
)
from fedjax_srp.parts.description import records_arguments
from fedjax_srp.parts.registry import Registry


def _digits(data_dir: Path) -> RawArrays:
    """The 1,797 handwritten digits of scikit-learn, 8 x 8, values 0..16.

    3 in 10 of every class are for testing.
    """
    del data_dir
    x, y = _digits_of_sklearn()
    rank = np.zeros_like(y)  # position of an example among those of its class
    for label in np.unique(y):
        rank[y == label] = np.arange(np.count_nonzero(y == label))
    is_test = rank * 3 % 10 < 3  # positions 0, 4, 7 of every ten
    return RawArrays(
        x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=10, scale=1 / 16
    )


def _digits_of_sklearn() -> tuple[np.ndarray, np.ndarray]:
    """Return what `sklearn.datasets.load_digits` does, from its file where that lies as ever.

    Importing scikit-learn, with SciPy and pandas, takes longer than five rounds.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            table = np.loadtxt(path, delimiter=",").astype(np.uint8)
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    return digits.images.astype(np.uint8), digits.target


# Sources by name: functions of data_dir that return arrays, or raise a ValueError of one line with the remedy.
SOURCES: Registry[Callable[[Path], RawArrays]] = Registry(
    "data set",
    {"digits": _digits} | {name: archives.source(name) for name in records.IMAGES},
)

# Mean and standard deviation of pixels / 255, per channel, by exact name. Other data sets, such as FEMNIST, are only
# divided by 255.
NORMALISATION: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    **{
        name: ((0.1307,), (0.3081,))
        for name, images in records.IMAGES.items()
        if images.shape == (28, 28)
    },
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}


class _Scheme(NamedTuple):
    """A partition function, and those of its arguments that are also arguments of `load`."""

    function: Callable[..., Partition]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    is_by_class: bool = False  # a client is tested only on classes that it trains on

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.required + self.optional


PARTITIONS: dict[str, _Scheme] = {
    "classes": _Scheme(
        partitions.by_classes,
        ("classes_per_client",),
        ("reserved_classes", "reserved_fraction"),
        is_by_class=True,
    ),
    "shards": _Scheme(partitions.shards, ("shards_per_client",), is_by_class=True),
    "consecutive": _Scheme(
        partitions.consecutive,
        ("classes_per_client", "examples_per_class"),
        is_by_class=True,
    ),
    "dirichlet": _Scheme(
        partitions.dirichlet, ("alpha",), ("min_examples",), is_by_class=True
    ),
    "lognormal": _Scheme(partitions.lognormal_sizes, ("sigma",)),
    "lognormal_classes": _Scheme(
        partitions.lognormal_classes,
        ("classes_per_client", "sigma"),
        ("mean_examples", "min_examples"),
        is_by_class=True,
    ),
    "natural": _Scheme(partitions.natural),
    "iid": _Scheme(partitions.iid),
}


@checked
def names(data_dir: str | Path | None = None) -> list[str]:
    """List the names for `load`: built-in ones, and .npz files and others of `LAYOUTS` in `data_dir`."""
    folder = records.data_folder(data_dir)
    known = {*SOURCES}
    for file in npz.files(folder):
        known.add(file.relative_to(folder).with_suffix("").as_posix())
    known.update(path.name for path in layouts.others(folder))
    return sorted(known)


@checked
def is_ready(name: str, data_dir: str | Path | None = None) -> bool:
    """Return True if `load` can read a data set of `names(data_dir)`: it is prepared and not visibly damaged."""
    folder = records.data_folder(data_dir)
    if name in records.IMAGES and layouts.find(folder / name) is None:
        try:
            archives.find(name, folder)
        except ValueError:
            return False
    return True


@records_arguments
def load(
    name: str | Path,
    num_clients: int | None = None,
    *,
    classes_per_client: int | None = None,
    shards_per_client: int | None = None,
    partition: str | Path | None = None,
    alpha: float | None = None,
    min_examples: int | None = None,
    sigma: float | None = None,
    mean_examples: int | None = None,
    examples_per_class: int | None = None,
    reserved_classes: int | None = None,
    reserved_fraction: float | None = None,
    classes: Sequence[int] | None = None,
    max_examples: int | None = None,
    test_fraction: Fraction | None = None,
    validation: Fraction | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> FederatedData:
    """Load a data set and divide it among clients.

    Args:
        name: one of `names(data_dir)`; or a path that ends in .npz: arrays x_train,
            y_train, x_test, y_test, and writer_train and writer_test (or user_train and
            user_test) if examples have users, and scale, offset and num_classes as in
            `from_arrays`, if not the default (`save` writes such files); or the path of a
            file or folder in another of the layouts of docs/data.md (`LAYOUTS`): LEAF,
            UCI HAR, PFLlib, HDF5, IDX, images. Labels that are no class numbers are
            numbered, see `FederatedData.class_names`; texts become tokens. `<name>.npz`
            or such a folder in `data_dir` takes precedence over a built-in source of that
            name.
        num_clients: M; optional for the natural partition, which then keeps all users.
        classes_per_client: distinct classes of every client, for partitions "classes",
            "consecutive" and "lognormal_classes".
        shards_per_client: shards of one class each, not necessarily distinct, for
            partition "shards".
        partition: "classes", "shards", "consecutive", "dirichlet", "lognormal",
            "lognormal_classes", "natural" or "iid", see `fedjax_srp.data.partition`; or
            the path of a .csv, .json or .pkl file, see `read_partition`; for data without
            test examples of their own its rows, also those for tests, count from 0
            through all examples, in the order of the files. Default: follows
            from the given arguments (classes_per_client, with examples_per_class or
            sigma, shards_per_client, alpha, sigma), else "natural" if the data set has
            users, else "iid".
        alpha: Dirichlet concentration, for partition "dirichlet".
        min_examples: least number of training examples of a client, for partitions
            "dirichlet" and "lognormal_classes".
        sigma: spread of the logarithm of client sizes, for partitions "lognormal" and
            "lognormal_classes".
        mean_examples: mean number of training examples of a client, for partition
            "lognormal_classes"; None for the most that the scarcest class allows.
        examples_per_class: size of a client's block of each class, for partition
            "consecutive"; a tenth is for testing.
        reserved_classes: number of last classes, which only the last clients get, for
            partition "classes".
        reserved_fraction: share of these last clients (default 0.2). An ordered clock
            makes them the slowest.
        classes: keep only the examples of these labels, renumbered 0, 1, ... in this
            order.
        max_examples: most training examples per client, classes in proportion; None for
            all. With partitions by class it must not remove a class that the client is
            tested on.
        test_fraction: for data without test examples of their own, such as UCI HAR: the
            share of each user's examples, or else of each class, to test on; the same
            ones for every seed. With a partition from a file that lists no test rows:
            the share of each client's rows. None for 0.2.
        validation: for tuning: test on this share of each client's training examples
            instead of the test data; e.g. 0.2, see `holdout`. None for the test data.
        seed: of the partition and of held-out data. The data set's own split into
            training and test data never depends on it.
        data_dir: folder with prepared data sets; None for TFDS_DATA_DIR, or
            ~/tensorflow_datasets.

    Returns:
        The data. uint8 pixels stay uint8 and are normalised when they are gathered: with
        the data set's scale and offset, else by the entry of its name (the stem of a
        file) in `NORMALISATION`, else to 0..1.

    Example:
        >>> load("digits", num_clients=20, classes_per_client=5).num_clients
        20
    """
    name, raw = _read(str(name), records.data_folder(data_dir))
    if partition is not None:
        partition = str(partition)
    is_from_file = partition is not None and is_partition_file(partition)
    if not is_from_file:  # whose rows are those of the whole data set
        raw = split_off_tests(raw, test_fraction)
    check_columns(raw)
    if classes is not None:
        if is_from_file:
            raise ValueError(
                f"classes: partition={partition!r} has row numbers of the whole data set; "
                "leave one of them out"
            )
        raw = keep_classes(raw, classes)
    division = {
        "classes_per_client": classes_per_client,
        "shards_per_client": shards_per_client,
        "alpha": alpha,
        "min_examples": min_examples,
        "sigma": sigma,
        "mean_examples": mean_examples,
        "examples_per_class": examples_per_class,
        "reserved_classes": reserved_classes,
        "reserved_fraction": reserved_fraction,
    }
    if partition is not None and is_from_file:
        raw, kind, parts, client_names = _from_file(
            raw, partition, num_clients, test_fraction, division
        )
    else:
        kind, parts = make_partition(raw, partition, num_clients, seed, division)
        client_names = names_of_users(raw, parts) if kind == "natural" else None
    train = parts.train
    if max_examples is not None:
        train = partitions.cap_examples(parts.train, raw.y_train, max_examples, seed)
        if kind in PARTITIONS and PARTITIONS[kind].is_by_class:
            partitions.check_tested_classes(
                parts, train, raw.y_train, raw.y_test, max_examples
            )
    raw = _normalised(name, raw)
    data = from_arrays(
        *raw[:4],
        train_indices=train,
        test_indices=parts.test,
        num_classes=raw.num_classes,
        scale=raw.scale,
        offset=raw.offset,
        name=name,
        client_names=client_names,
        class_names=raw.class_names,
    )
    return data if validation is None else holdout(data, validation, seed)


def _normalised(name: str, raw: RawArrays) -> RawArrays:
    """Return bytes with the scale and offset of the data set's name, where it has an entry and the data none."""
    is_scaled = raw.scale is not None or raw.offset is not None
    if is_scaled or raw.x_train.dtype != np.uint8 or name not in NORMALISATION:
        return raw
    # grey images may have no channel axis
    mean, std = map(np.squeeze, NORMALISATION[name])
    # (x / 255 - mean) / std
    return raw._replace(scale=1 / (255 * std), offset=-mean / std)


def _from_file(
    raw: RawArrays,
    path: str,
    num_clients: int | None,
    test_fraction: float | None,
    division: Mapping[str, Any],
) -> tuple[RawArrays, str, Partition, tuple[str, ...]]:
    """Return the data, their partition from a file, its name, and the names of clients."""
    for argument, value in division.items():
        if value is not None:
            raise ValueError(
                f"{argument}={value}: partition={path!r} divides the data already; leave "
                f"{argument} out"
            )
    found = read_partition(path)
    if num_clients not in (None, len(found.train)):
        raise ValueError(
            f"num_clients={num_clients}: partition={path!r} has {len(found.train)} "
            "clients; leave num_clients out"
        )
    if test_fraction is not None and found.test:
        raise ValueError(
            f"test_fraction={test_fraction}: partition={path!r} lists test rows; leave "
            "test_fraction out"
        )
    if found.is_of_all and raw.is_split:
        x = np.concatenate([raw.x_train, raw.x_test])
        y = np.concatenate([raw.y_train, raw.y_test])
        raw = raw._replace(x_train=x, x_test=x, y_train=y, y_test=y)
    if not raw.is_split or not found.test:
        raw = raw._replace(x_test=raw.x_train, y_test=raw.y_train)
    if not found.test:
        found = with_tests(found, test_fraction)
    rows = []
    for kind, of_clients, num_rows in (
        ("train", found.train, len(raw.y_train)),
        ("test", found.test, len(raw.y_test)),
    ):
        for client, own in of_clients.items():
            largest = own.max(initial=-1)
            if largest >= num_rows:
                raise ValueError(
                    f"partition={path!r}: client {client!r} has {kind} row {largest}, but "
                    f"the data have {num_rows}; give the data that were divided"
                )
        rows.append([of_clients[client] for client in found.train])
    return raw, path, Partition(*rows), tuple(found.train)


def make_partition(
    raw: RawArrays,
    partition: str | None,
    num_clients: int | None,
    seed: int,
    division: Mapping[str, Any],
) -> tuple[str, Partition]:
    """Partition a data set, and return the partition's name too.

    Arguments in `division` that are None are left out.
    """
    arguments = {name: value for name, value in division.items() if value is not None}
    has_users = raw.users_train is not None and raw.users_test is not None
    kind = _choose_partition(partition, arguments, has_users, num_clients)
    columns = raw.users_train, raw.users_test
    if kind != "natural":
        columns = raw.y_train, raw.y_test
    partitioned = PARTITIONS[kind].function(*columns, num_clients, seed=seed, **arguments)
    return kind, partitioned


def divided(
    raw: RawArrays,
    num_clients: int | None,
    partition: str | None,
    seed: int,
    division: Mapping[str, Any],
    **options: Any,
) -> FederatedData:
    """Partition a data set whose arguments of the partition are not named in a signature.

    `options` are those of `from_arrays`.
    """
    known = set()
    for scheme in PARTITIONS.values():
        known.update(scheme.arguments)
    check_known("argument", division, sorted(known))
    kind, parts = make_partition(raw, partition, num_clients, seed, division)
    return from_arrays(
        *raw[:4],
        train_indices=parts.train,
        test_indices=parts.test,
        num_classes=raw.num_classes,
        client_names=names_of_users(raw, parts) if kind == "natural" else None,
        class_names=raw.class_names,
        **options,
    )


def names_of_users(raw: RawArrays, parts: Partition) -> tuple[str, ...] | None:
    """Return the user of each client of the natural partition."""
    if raw.users_train is None:
        return None
    names = []
    for rows in parts.train:
        user = raw.users_train[rows[0]]
        if raw.user_names is not None:
            user = raw.user_names[user]
        if isinstance(user, bytes):
            user = user.decode(errors="replace")
        names.append(str(user))
    return tuple(names)


def _read(name: str, data_dir: Path) -> tuple[str, RawArrays]:
    """Read a data set; return its name in results, and its arrays."""
    path = records.expand_user(name)
    check_path("name", path)
    if name.endswith(".npz"):
        return path.stem, npz.read(path)
    if not path.is_absolute():
        # unlike Path.is_file it never raises
        if os.path.isfile(data_dir / f"{name}.npz"):
            return name, npz.read(data_dir / f"{name}.npz")
        if (layout := layouts.find(data_dir / name)) is not None:
            return name, layout.read(data_dir / name)
    if name in SOURCES:
        return name, SOURCES[name](data_dir)
    if (layout := layouts.find(path)) is not None:
        resolved = path.resolve()
        return resolved.name if path.is_dir() else resolved.stem, layout.read(path)
    if path.name != name and os.path.exists(path):
        found = "is a file"
        if os.path.isdir(path):
            found = f"has {short(sorted(os.listdir(path)))}"
        raise LoadError(
            "name",
            name,
            f": {found}, which is none of the layouts {', '.join(layouts.LAYOUTS)}; "
            "docs/data.md has a table of what each needs",
        )
    known = names(data_dir)
    raise LoadError(
        "name",
        name,
        f": no such data set{nearest(name, known)}; use one of {', '.join(known)}, the path of a file or folder in "
        "a layout of docs/data.md, or data_dir=the folder that has it",
    )


def _choose_partition(
    partition: str | None,
    arguments: Collection[str],
    has_users: bool,
    num_clients: int | None,
) -> str:
    """Return the name of the given partition, or of the one with most of the arguments."""
    if partition is None:
        partition = "natural" if has_users else "iid"
        most = 0
        for kind, scheme in PARTITIONS.items():
            num_matches = len({*arguments} & {*scheme.arguments})
            if num_matches > most:  # the first of equals
                partition = kind
                most = num_matches
    scheme = PARTITIONS[check_choice("partition", partition, PARTITIONS)]
    for argument in arguments:
        if argument not in scheme.arguments:
            owners = []
            for kind, other in PARTITIONS.items():
                if argument in other.arguments:
                    owners.append(repr(kind))
            raise ValueError(
                f"{argument}: is for partition {' or '.join(owners)}, but the partition "
                f"is {partition!r}; leave one of them out"
            )
    missing = [argument for argument in scheme.required if argument not in arguments]
    if partition == "natural" and not has_users:
        raise ValueError(
            "partition='natural': the data set has no users; give another partition"
        )
    if partition != "natural" and num_clients is None:
        missing.append("num_clients")
    if missing:
        raise ValueError(
            f"{missing[0]}=None: partition {partition!r} needs it; give it, or another "
            "partition"
        )
    return partition
