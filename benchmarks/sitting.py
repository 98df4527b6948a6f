"""One sitting at an accelerator: the measurements that are due, in order, until the time is over.

    PYTHONPATH=. python benchmarks/sitting.py --seconds 540 [--data DIR] [--out runs/sitting] [--items REGEX]
    python benchmarks/sitting.py --list
    PYTHONPATH=. python benchmarks/sitting.py --quick

Every item is a script of benchmarks/ or experiments/ in a child process with a limit of its own. The same command goes
on: finished items are skipped, and of the others those that keep their runs continue them. An item that was stopped by
its limit or by the end of the time is tried again; one that failed too, after all the others.

OUT gets NAME.json and NAME.log for every item, what the item writes itself, and index.json: device, versions, and for
every item its status, seconds, and the numbers measured beside those predicted. OUT/work has what is large: data sets,
runs, checkpoints and compiled programs; keep it from one sitting to the next on a machine, and copy the rest.

DIR has data sets as `<name>.npz` (x_train, y_train, x_test, y_test), or a script `prepare.py` that writes them
(`prepare.py npz --out FOLDER NAME ...`), and perhaps traces of phones. Where it lacks one, images are random numbers of
the same size: good for times only. The index says so, and their results and runs are in a folder `random`.

--quick runs every item at its smallest size, on any device: it shows that the commands work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DONE, FAILED, STOPPED = "done", "failed", "stopped"
SHAPES = {  # images and classes of a data set
    "mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}
TRACE = "trace_flash_ai_benchmark_phones.csv"
LEAST = 20  # seconds; with less left nothing is started
DOCS = "benchmarks/README.md, H200"
ESTIMATE = "estimate"


class Predicted(NamedTuple):
    """A number that was expected."""

    what: str
    value: float
    source: str
    where: tuple[str, ...] = ()  # in the file of the item; (): the item's seconds


class Item(NamedTuple):
    """Something to measure."""

    name: str
    command: str  # {out}: file of results; {results}: folder of results; {work}: folder of runs
    quick: str  # replaces the words after the script
    limit: float  # seconds
    expected: float  # seconds
    predicted: tuple[Predicted, ...] = ()


NINE_CURVES = Predicted("seconds", 450, "estimate: 10 to 20 minutes for text and code")


def gpu_part(part: int, cases: str, expected: float, *predicted: Predicted) -> Item:
    """Some cases of a part of `gpu.py`, in a file for each device."""
    name = f"gpu-{part}-{re.sub(r'[^a-zA-Z0-9]+', '-', cases).strip('-')}"
    file = f"{name}-{{device}}.json"
    words = f"--part {part} --cases {cases.replace(' ', '.')} --out {{results}}/{file}"
    return Item(
        name,
        f"benchmarks/gpu.py {words} --seconds {3 * expected:g}",
        f"{words} --quick --seconds 1e6 --case-seconds 1e6",
        3 * expected + 10,
        expected,
        tuple(one._replace(where=(file, *one.where)) for one in predicted),
    )


def gpu_case(what: str, case: str, value: float, source: str) -> Predicted:
    """Median seconds of a case of `gpu.py`, or of one cohort's rounds, after a colon in `case`."""
    name, _, cohort = case.partition(":")
    field = ("seconds_by_cohort", cohort) if cohort else ("seconds",)
    return Predicted(what, value, source, ("cases", name, "result", *field, "median"))


def figure(
    number: int,
    scale: str,
    dataset: str,
    seeds: int,
    limit: float,
    expected: float,
    *predicted: Predicted,
) -> Item:
    """A figure of SRPFL with all nine curves; more seeds keep the earlier ones, and figures share runs."""
    name = f"srpfl-figure{number}-{dataset}-{scale}-{seeds}"
    folders = f"--out {{work}}/srpfl-{scale} --results {{results}}/{name}"
    return Item(
        name,
        f"experiments/srpfl/figure{number}.py --scale {scale} --datasets {dataset} "
        f"--seeds {seeds} --data-dir {{data}} {folders}",
        f"--scale smoke --seeds {min(2, seeds)} {folders}",
        limit,
        expected,
        predicted,
    )


def neural(tau: int, expected: float) -> Item:
    """A training of FedAvg's CNN on CIFAR-100, C = 5, and its fine-tuning on CIFAR-10."""
    name = f"cifar100-cnn-tau{tau}"
    folders = f"--out {{work}}/neural --results {{results}}/{name}"
    return Item(
        name,
        f"experiments/fedavg_representation/figure2.py --scale full --trials 1 --taus {tau} "
        f"--data-dir {{data}} {folders}",
        f"--scale smoke --trials 1 --taus {min(5, tau)} {folders}",
        3 * expected,
        expected,
        (Predicted("seconds", expected, ESTIMATE),),
    )


def large(setting: str, expected: float, *predicted: Predicted) -> Item:
    """A setting of `large.py`."""
    return Item(
        setting,
        f"benchmarks/large.py --settings {setting} --repeats 3 --out {{out}}",
        f"--settings {setting} --repeats 1 --clients 2 --examples 10 --out {{out}}",
        3 * expected,
        expected,
        predicted,
    )


def pfl(rounds: int, limit: float, expected: float, *predicted: Predicted) -> Item:
    """pfl-research's workload."""
    return Item(
        f"pfl-cifar10-{rounds}",
        f"benchmarks/pfl_cifar10.py --rounds {rounds} --data-dir {{data}} --out {{out}}",
        "--rounds 11 --users 20 --cohort 2 --out {out}",
        limit,
        expected,
        predicted,
    )


def first_layer(examples: str) -> Item:
    """Rounds with and without the first layer in the span, of clients with some number of examples."""
    return Item(
        f"first-layer-{examples.split('|')[0]}",
        f"benchmarks/first_layer.py --clients 500 --cases ({examples}).examples --out {{out}}",
        f"--clients 2 --repeats 1 --cases fedavg.*[^0-9]{examples.split('|')[0]}.examples.*5.epochs "
        "--out {out}",
        300,
        120,
    )


ITEMS = (
    Item("data", "", "", 120, 40),  # `prepare_data`
    gpu_part(
        2,
        "N = 100$",
        80,
        gpu_case("FedAvg, s a round", "fedavg, N = 100", 0.00345, DOCS),
    ),
    gpu_part(3, "fedrep, patches", 60),
    gpu_part(4, "torch|jitted", 120),
    gpu_part(
        1,
        "chunk by default",
        90,
        gpu_case("FedAvg", "fedavg, chunk by default", 0.0350, DOCS),
        gpu_case("FedRep", "fedrep, chunk by default", 0.0400, DOCS),
    ),
    pfl(60, 120, 40),
    pfl(1500, 180, 60, Predicted("seconds, the goal", 30, "goal")),
    *(first_layer(examples) for examples in ("150|60", "300", "480|500")),
    gpu_part(  # a large chunk that is half full
        4,
        "SRPFL from n = 10, chunk by default",
        90,
        gpu_case(
            "n = 640, a half-full chunk",
            "SRPFL from n = 10, chunk by default:640",
            0.0277,
            f"{DOCS}, n = 1,000",
        ),
    ),
    gpu_part(  # only the rows of a batch move
        1,
        ", span",
        90,
        gpu_case(
            "FedAvg, chunk 1,000",
            "fedavg, chunk 1000, span",
            0.0162,
            f"{DOCS}: 22.4 ms times 3.1 / 4.3 GB of compile_for_gpu.py",
        ),
    ),
    figure(3, "full", "cifar10", 1, 1800, 450, NINE_CURVES),
    figure(3, "code", "cifar10", 1, 1800, 450, NINE_CURVES),
    figure(3, "full", "cifar10", 4, 3600, 1200),
    figure(3, "code", "cifar10", 4, 3600, 1200),
    *(
        figure(number, scale, "cifar10", 4, 3600, 600)
        for number in (5, 6, 4)
        for scale in ("full", "code")
    ),
    figure(3, "gpu", "mnist", 4, 1800, 600),  # as many images as EMNIST's digits have
    figure(3, "code", "mnist480", 4, 1800, 600),
    neural(50, 300),
    neural(1, 300),
    Item(
        "thousands",
        "benchmarks/thousands.py --data-dir {data} {traces} --checkpoints {work}/thousands --out {out}",
        "--data-dir {data} {traces} --clients 200 --hidden 16 --rounds 10 --target 0.5 "
        "--checkpoints {work}/thousands --out {out}",
        600,
        200,
    ),
    large("blazefl-cnn", 60),
    large("blazefl-resnet18", 240),
    large(
        "pfllib-500",
        90,
        Predicted(
            "peak bytes",
            5.08e9,
            "PFLlib's README, theirs",
            ("{out}", "settings", "pfllib-500", "peak_bytes_so_far"),
        ),
    ),
    Item(
        "pfllib-mnist",
        "benchmarks/pfllib_mnist.py --data-dir {data} --images 60000 --out {out}",
        "--data-dir {data} --images 20 --rounds 5 --methods FedAvg --out {out}",
        300,
        120,
    ),
    large(
        "lenet5-fedrep",
        60,
        Predicted(
            "working bytes",
            7.8e9,
            "benchmarks/README.md, compiled for an H200",
            ("{out}", "settings", "lenet5-fedrep", "working_bytes"),
        ),
    ),
    large(
        "lenet5-hf_maml",
        90,
        Predicted(
            "working bytes",
            9.2e9,
            "benchmarks/README.md, compiled for an H200",
            ("{out}", "settings", "lenet5-hf_maml", "working_bytes"),
        ),
    ),
    gpu_part(4, "linear SRPFL", 120),
)


def python(*words: str | Path) -> list[str]:
    """Command of a child."""
    return [sys.executable, *map(str, words)]


def environment(work: Path) -> dict[str, str]:
    """Variables of children: the package of this tree, and a cache of compiled programs."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_COMPILATION_CACHE_DIR": str(work / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def machine(work: Path) -> dict[str, Any]:
    """Device and versions, asked of a child, so that this process leaves the accelerator alone."""
    code = (
        "import json; from harness.measure import machine; print(json.dumps(machine()))"
    )
    asked = subprocess.run(
        python("-c", code), env=environment(work), capture_output=True, text=True
    )
    if asked.returncode:
        sys.exit(f"the machine cannot be asked what it is:\n{asked.stderr.strip()}")
    return json.loads(asked.stdout.splitlines()[-1])


def run(command: Sequence[str], log: Path, limit: float, work: Path) -> tuple[str, str]:
    """Run a child with all that it starts, to its end or its limit; return status and message."""
    with log.open("a") as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(work),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return STOPPED, f"after {limit:.0f} s"
        finally:
            stop(process)
    if code == 0:
        return DONE, ""
    last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
    return FAILED, f"exit status {code}: {' '.join(last)}"


def stop(process: subprocess.Popen) -> None:
    """End a child and its own children: politely, then by force."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def prepare_data(
    source: Path | None, folder: Path, log: Path, limit: float, is_quick: bool
) -> tuple[str, str]:
    """Put data sets into `folder`: links, what `prepare.py` writes, or random images; return status and message.

    Random images are in `folder`/random, with links to the sets that are real.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in SHAPES if not (folder / f"{name}.npz").exists()]
    if source is not None:
        for name in list(names):
            if (source / f"{name}.npz").is_file():
                link(folder / f"{name}.npz", source / f"{name}.npz")
                names.remove(name)
        if names and not is_quick and (source / "prepare.py").is_file():
            begin = time.monotonic()
            for name in list(names):
                words = python(
                    source / "prepare.py", "npz", "--out", folder / "part", name
                )
                left = limit - (time.monotonic() - begin)
                if run(words, log, max(1.0, left), folder)[0] == DONE:
                    (folder / "part" / f"{name}.npz").replace(folder / f"{name}.npz")
                    names.remove(name)
    mixed = folder / "random"
    mixed.mkdir(exist_ok=True)
    for name in SHAPES:
        if name not in names:
            link(mixed / f"{name}.npz", folder / f"{name}.npz")
    if not names:
        return DONE, ""
    words = python(__file__, "--random", *names, "--out", mixed)
    if is_quick:
        words.append("--quick")
    status, message = run(words, log, limit, folder)
    if status != DONE:
        return status, message
    return DONE, f"random images in place of {', '.join(names)}: see {log.name}"


def link(name: Path, target: Path) -> None:
    """Make or replace a link."""
    name.unlink(missing_ok=True)
    name.symlink_to(target.resolve())


def write_random(names: Sequence[str], folder: Path, is_quick: bool) -> None:
    """Write data sets of random images, of the size of the real ones; with `is_quick` a tenth."""
    import numpy as np

    rng = np.random.default_rng(0)
    for name in names:
        shape, classes = SHAPES[name]
        arrays = {}
        for split, count in (
            ("train", 60_000 if name == "mnist" else 50_000),
            ("test", 10_000),
        ):
            if is_quick:
                count //= 10
            arrays[f"x_{split}"] = rng.integers(0, 256, (count, *shape), np.uint8)
            arrays[f"y_{split}"] = rng.permutation(np.arange(count) % classes)
        np.savez(folder / "part.npz", **arrays)
        (folder / f"{name}.npz").unlink(missing_ok=True)
        (folder / "part.npz").rename(folder / f"{name}.npz")


def read(file: Path) -> dict[str, Any]:
    """Contents of a file, {} if there is none."""
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def write(file: Path, contents: dict[str, Any]) -> None:
    """Replace a file."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(json.dumps(contents, indent=1) + "\n", "utf-8")
    part.replace(file)


class Sitting:
    """Items, their results and the index in a folder."""

    def __init__(self, out: Path, source: Path | None, is_quick: bool):
        self.out = out.resolve()
        self.source = source
        self.is_quick = is_quick
        self.work = self.out / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.machine = machine(self.work)
        self.device = re.sub(r"[^a-z0-9]+", "-", self.machine["device"].lower()).strip(
            "-"
        )
        self.index = read(self.out / "index.json")
        if self.index.setdefault("quick", is_quick) != is_quick:
            raise SystemExit(
                f"--out {out} has results with and without --quick; give another"
            )
        self.index["machine"] = self.machine
        self.index.setdefault("items", {})

    def random_sets(self) -> list[str]:
        """Data sets of random images, for lack of the real ones."""
        return [
            name for name in SHAPES if not (self.work / "data" / f"{name}.npz").exists()
        ]

    def places(self, item: Item) -> dict[str, str]:
        """Values of the placeholders of a command."""
        data = self.work / "data"
        work = self.work
        out = self.out
        if self.random_sets() and self.uses_data(item):
            data = data / "random"
            work = work / "random"
            out = out / "random"
            out.mkdir(exist_ok=True)
        traces = ""
        if self.source is not None and (self.source / TRACE).is_file():
            traces = str(self.source.resolve())
        return {
            "data": str(data),
            "device": "quick" if self.is_quick else self.device,
            "out": str(out / f"{item.name}-results.json"),
            "results": str(out),
            "traces": traces,
            "work": str(work),
        }

    def uses_data(self, item: Item) -> bool:
        """True if the item reads data sets."""
        return "{data}" in (item.quick if self.is_quick else item.command)

    def has_failed(self, item: Item) -> bool:
        """True if the last try failed; the data sets are first in any case."""
        known = self.index["items"].get(item.name, {})
        return item.name != "data" and known.get("status") == FAILED

    def is_finished(self, item: Item) -> bool:
        """True if nothing is left to do."""
        known = self.index["items"].get(item.name, {})
        if known.get("status") != DONE:
            return False
        if item.name == "data":
            return (
                bool(not self.random_sets() or self.source is None)
                and (self.work / "data" / "random").is_dir()
            )
        return not self.uses_data(item) or known["random"] == self.random_sets()

    def do(self, item: Item, limit: float) -> None:
        """Run an item and write its result."""
        begin = time.monotonic()
        log = self.out / f"{item.name}.log"
        places = self.places(item)
        if item.name == "data":
            data = self.work / "data"
            status, message = prepare_data(self.source, data, log, limit, self.is_quick)
            words = ""
        else:
            words = item.command
            if self.is_quick:
                words = f"{item.command.split()[0]} {item.quick}"
            words = words.replace(
                "{traces}", "--traces {traces}" if places["traces"] else ""
            )
            command = [word.format(**places) for word in words.split()]
            status, message = run(python(*command), log, limit, self.work)
        took = time.monotonic() - begin
        random = self.random_sets() if self.uses_data(item) else []
        if random and (contents := read(Path(places["out"]))):
            write(Path(places["out"]), contents | {"random_images": random})
        before = self.index["items"].get(item.name, {})
        predicted = () if self.is_quick else item.predicted
        result = {
            "status": status,
            "message": message,
            "command": " ".join(words.split()),
            "seconds": round(took, 1),
            "seconds_of_all_tries": round(
                took + before.get("seconds_of_all_tries", 0), 1
            ),
            "expected_seconds": item.expected,
            "source": str(self.source),
            "random": random,
            "numbers": [self.compared(one, places, took) for one in predicted],
        }
        result |= {
            name: self.machine[name] for name in ("device", "driver", "jax", "fedjax_srp")
        }
        write(self.out / f"{item.name}.json", result)
        self.index["items"][item.name] = result
        write(self.out / "index.json", self.index)

    def compared(
        self, predicted: Predicted, places: dict[str, str], took: float
    ) -> dict[str, Any]:
        """A predicted number, and the measured one where there is one."""
        measured: Any = round(took, 1)
        if predicted.where:
            file, *keys = (word.format(**places) for word in predicted.where)
            measured = read(Path(places["results"]) / file)
            for key in keys:
                measured = measured.get(key, {}) if isinstance(measured, dict) else {}
            if not isinstance(measured, int | float):
                measured = None
        return {
            "what": predicted.what,
            "predicted": predicted.value,
            "source": predicted.source,
            "measured": measured,
        }

    def line(self, item: Item) -> str:
        """What is known of an item, in a line, and a line for each predicted number."""
        known = self.index["items"].get(item.name)
        if known is None:
            return f"{item.name:36} not run"
        spent = f"{known['seconds_of_all_tries']:.0f} s, expected {item.expected:g}"
        text = f"{item.name:36} {known['status']:8} {spent} {known['message'][:150]}"
        for number in known["numbers"]:
            text += f"\n    {number['what']}: predicted {number['predicted']:.4g}"
            measured = number["measured"]
            shown = "-" if measured is None else f"{measured:.4g}"
            text += f" ({number['source']}), measured {shown}"
        if known["random"]:
            text += f"\n    with random images in place of {', '.join(known['random'])}"
        return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=540, help="for all items")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/sitting"))
    parser.add_argument("--items", default="", metavar="REGEX", help="of items to run")
    parser.add_argument("--list", action="store_true", help="print the items and end")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, any device")
    parser.add_argument("--random", nargs="+", choices=SHAPES, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.random:
        write_random(args.random, args.out, args.quick)
        return 0
    try:
        chosen = [item for item in ITEMS if re.search(args.items, item.name)]
    except re.error as error:
        parser.error(f"--items {args.items!r} is no regular expression: {error}")
    if not chosen:
        parser.error(f"--items {args.items!r} names no item; --list prints them")
    if args.data is not None and not args.data.is_dir():
        parser.error(
            f"--data {args.data}: no such folder; give the one with the data sets"
        )
    if args.list:
        for item in chosen:
            print(f"{item.name:36} {item.expected:6g} s of at most {item.limit:6g}")
        print(f"{'all':36} {sum(item.expected for item in chosen):6g} s")
        return 0
    ends = time.monotonic() + args.seconds
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # a child ends with its parent
    sitting = Sitting(args.out, args.data, args.quick)
    if ITEMS[0] not in chosen and any(map(sitting.uses_data, chosen)):
        chosen.insert(0, ITEMS[0])
    for item in sorted(chosen, key=sitting.has_failed):
        left = ends - time.monotonic()
        if left < LEAST:
            break
        if not sitting.is_finished(item):
            limit = left if args.quick else min(item.limit, left)
            sitting.do(item, limit)
            print(sitting.line(item), flush=True)
    print()
    for item in chosen:
        print(sitting.line(item))
    finished = [item for item in chosen if sitting.is_finished(item)]
    return int(len(finished) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
