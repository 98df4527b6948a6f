"""Rounds and evaluations on a GPU, in parts of some minutes each, on a machine without earlier results.

    python benchmarks/gpu.py --part 1 --out benchmarks/results/gpu-DEVICE-1.json [--quick] [--seconds 450]
    python benchmarks/gpu.py --part figures --data-dir DIR --runs FOLDER --out FILE.json

| part | question |
|---|---|
| 1 | Are results those of the CPU? FedAvg and FedRep, N = 1,000: which chunk? |
| 2 | N = 10,000 and 100: chunks of training and evaluation, memory, cost of products in full precision |
| 3 | LeNet-5: XLA's convolutions or patches |
| 4 | SRPFL's growing cohorts; a loop compiled with JAX and one in PyTorch on the same GPU; linear rounds |
| 5 | Without Triton's products, without autotuning; which kernels take longest |
| 6 | Every method of the registry, in small: are results those of the CPU? |
| figures | SRPFL's figures 3 to 6 on MNIST with 480 images a client, at `--scale gpu` of experiments/srpfl |

Every case is first compared with the same rounds on the CPU. It is `wrong` if the difference exceeds
`gpu_compare.BOUNDS`, and not timed if it is ten times as large. Seconds are medians with quartiles, from the fourth
call on, without compile time, which is short if the program was cached. The file is written after every case, and cases
run in child processes, so that a crash costs one case. The same command again runs the missing cases, if package and
benchmarks are unchanged.
`--cases REGEX` selects cases. Cases that need PyTorch are skipped if it is missing. `--quick` runs the same code at toy
sizes on any device: it shows that the code runs, not how fast.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import children
import gpu_parts

HERE = Path(__file__).parent
SAME = (
    "device",
    "platform",
    "driver",
    "jax",
    "python",
)  # of the machine, for results of one file
Launch = Callable[[Sequence[children.Case], children.OnResult, children.Limits], None]


def launch(
    cases: Sequence[children.Case], on_result: children.OnResult, limits: children.Limits
) -> None:
    """Runs cases in child processes that find the package of this tree."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # A program that was compiled in another case, or before a kill, is not compiled again, nor its products tried out.
    os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR",
        str(Path(tempfile.gettempdir()) / "fedjax_srp_gpu_programs"),
    )
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    children.run(cases, [sys.executable, str(HERE / "gpu_cases.py")], on_result, limits)


def measure(
    cases: Sequence[children.Case],
    about: dict[str, Any],
    out: Path | None,
    limits: children.Limits,
    start: Launch = launch,
    say: Callable[[str], None] = print,
    only: str = "",
) -> dict[str, Any]:
    """Runs cases and writes their results as they come.

    Args:
        cases: of a part; the first one describes the machine.
        about: common to all cases, for the file.
        out: the file; its finished cases are not run again. None: nothing is written.
        limits: of time.
        start: function that runs them.
        say: prints one line.
        only: regular expression of the names of cases to run, with the cases they need; all by default.

    Returns:
        The contents of the file: `about`, `machine`, and `cases` by name: `status`, `settings`, `environment`, and
        `result` or `message`.

    Raises:
        ValueError: a file of other cases, or of another machine; a machine that cannot be measured on.
    """
    known = {}
    if out is not None and out.exists():
        known = json.loads(out.read_text("utf-8"))
    for what, value in about.items():
        if known and known.get(what) != value:
            raise ValueError(
                f"{out} holds results with {what} {known.get(what)!r}, not {value!r}; give another --out"
            )
    before = known.get("cases", {})
    written = {case.name: case.as_json() for case in cases}
    settings = {
        name: {key: fields[key] for key in ("settings", "environment")}
        for name, fields in written.items()
    }
    finished = {
        name
        for name, found in before.items()
        if found["status"] == children.DONE
        and settings.get(name, {}).items() <= found.items()
    } - {cases[0].name}
    finished |= {case.name for case in cases[1:] if not re.search(only, case.name)}
    results: dict[str, Any] = about | {
        "machine": known.get("machine"),
        "cases": dict(before),
    }

    def on_result(name: str, found: children.Result) -> None:
        if name == cases[0].name:
            if found["status"] != children.DONE:
                raise ValueError(f"{name}: {found['message']}")
            machine = found["result"]
            for what in SAME if results["machine"] else ():
                if machine[what] != results["machine"][what]:
                    was = results["machine"][what]
                    raise ValueError(
                        f"{out} was measured with {what} {was!r}, here it is {machine[what]!r}; give another --out"
                    )
            results["machine"] = machine
        results["cases"][name] = settings[name] | found
        say(line(name, results["cases"][name]))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            unfinished = out.with_name(f"{out.name}.part")
            unfinished.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            unfinished.replace(out)

    start(children.to_do(cases, finished), on_result, limits)
    return results


def source() -> str:
    """A checksum of the package and the benchmarks: results of one file come from one version."""
    files = sorted([*(HERE.parent / "fedjax_srp").rglob("*.py"), *HERE.rglob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


SHOWN = (
    "seconds",
    "rival_seconds",
    "rival_over_ours",
    "apart",
    "compile_seconds",
    "message",
)


def line(name: str, found: dict[str, Any]) -> str:
    """One line about a case."""
    facts = found.get("result", {}) | found
    medians = {
        f"n = {n}": of["median"] for n, of in facts.get("seconds_by_cohort", {}).items()
    }
    medians |= {what: facts[what] for what in SHOWN if what in facts}
    cells = [found["status"]]
    for what, value in medians.items():
        if isinstance(value, dict):
            value = value["median"]
        if isinstance(value, float):
            value = f"{value:.3g}"
        cells.append(f"{what} {value}")
    return f"{name:44s} {', '.join(cells)}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=[*gpu_parts.PARTS, "figures"], required=True)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="toy sizes on any device, to check that it runs",
    )
    parser.add_argument(
        "--out", type=Path, help="file of results; its finished cases are not run again"
    )
    parser.add_argument(
        "--seconds", type=float, default=450, help="for the whole part (default 450)"
    )
    parser.add_argument(
        "--case-seconds",
        type=float,
        default=180,
        help="for a case, except figures (default 180)",
    )
    parser.add_argument(
        "--cases",
        default="",
        metavar="REGEX",
        help="run matching cases and those they need",
    )
    parser.add_argument(
        "--data-dir",
        help="of figures: folder with prepared data sets, or an .npz file of MNIST",
    )
    parser.add_argument(
        "--runs",
        default="runs/srpfl_gpu",
        help="of figures: folder of runs (default runs/srpfl_gpu)",
    )
    args = parser.parse_args(arguments)
    try:
        re.compile(args.cases)
    except re.error as error:
        parser.error(f"--cases {args.cases!r} is no regular expression: {error}")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # no line is lost if the process is killed
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that a child ends with its parent
    if args.part == "figures":
        if args.data_dir is None and not args.quick:
            parser.error(
                "--part figures needs MNIST: give --data-dir with a prepared data set or an .npz file, or --quick"
            )
        cases = gpu_parts.figures(args.quick, args.data_dir, args.runs)
        limits = children.Limits(args.seconds, args.seconds)
    else:
        cases = gpu_parts.cases(args.part, args.quick)
        limits = children.Limits(args.seconds, args.case_seconds)
    begin = time.perf_counter()
    try:
        results = measure(
            cases,
            {"part": args.part, "quick": args.quick, "source": source()},
            args.out,
            limits,
            only=args.cases,
        )
    except ValueError as error:
        parser.error(str(error))
    statuses = [found["status"] for found in results["cases"].values()]
    counted = ", ".join(
        f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)
    )
    print(f"part {args.part}: {counted}; {time.perf_counter() - begin:.0f} s")
    return int(
        any(status not in (children.DONE, children.SKIPPED) for status in statuses)
    )


if __name__ == "__main__":
    sys.exit(main())
