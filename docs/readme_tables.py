"""Numbers of README.md, of the page on performance and of `benchmarks/README.md`: `make tables` writes them.

A page has `<!-- begin NAME -->` and `<!-- end NAME -->` around what is made here; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_srp as srp
from experiments.claims_srpfl import figure
from experiments.pages import csv, ends, markdown, wrapped, write

ROOT = Path(__file__).parents[1]
LABELS = {"flanp_fedavg": "FLANP (FedAvg)", "flanp_fedavg_ft": "FLANP-FT"}
QUARTERS = ("fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter")
LOOP, CACHED, COMPILED = (
    "PyTorch loop",
    "PyTorch loop, features cached",
    "jitted loop over clients",
)
ELSEWHERE = "on another machine"


@cache
def measured(name: str) -> Any:
    """A file of `benchmarks/results`."""
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text("utf-8"))


def two(value: float) -> str:
    """Two digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.2g}".rstrip(".")


def three(value: float) -> str:
    """Three digits."""
    return f"{value:#.3g}".rstrip(".")


def seconds(value: float) -> str:
    """Seconds, or milliseconds."""
    return f"{two(value)} s" if value > 0.01 else f"{two(1000 * value)} ms"


def pair(name: str, rival: str) -> tuple[float, float, float]:
    """Our seconds, the rival's and their ratio: of `make bench`, or of the rows of LeNet that are measured apart."""
    found = measured("lenet-2-cores")["seconds"].get(f"{name}, rival: {rival}")
    if found is None:
        found = next(
            one
            for one in measured("cpu-2-cores")["pairs"]
            if (one["name"], one["against"]) == (name, rival)
        )
    return found["ours"], found["rival"], found["rival_over_ours"]


def demo() -> str:
    """The table of `make demo`."""
    frame = csv("demo/results/table.csv")
    head = ["method", "accuracy %", "worst tenth %", "quarters %, fastest first"]
    rows = [
        [*head, f"time to {100 * frame['target'][0]:.1f} % at C = 0", "C = 1", "C = 10"]
    ]
    number = lambda value, like: f"{value:.{1 if like < 100 else 0}f}"
    for _, of in frame.iterrows():
        row = [LABELS.get(of["method"]) or srp.methods.label(of["method"])]
        row += [
            f"{100 * of[what]:.1f} ± {100 * of[f'{what}_std']:.1f}"
            for what in ("final_accuracy", "worst_decile")
        ]
        row.append("/".join(f"{100 * of[quarter]:.1f}" for quarter in QUARTERS))
        for cost in (0, 1, 10):
            time, deviation, factor = (
                of[f"time_{cost}"],
                of[f"time_{cost}_std"],
                of[f"speed_up_{cost}"],
            )
            faster = f" ({factor:.1f}x)" if np.isfinite(factor) else ""
            row.append(f"{number(time, time)} ± {number(deviation, time)}{faster}")
        rows.append(row)
    return markdown(rows)


def beside_figure_3() -> str:
    """What more seeds and targets do to the table of the demo."""
    factor, of_both = (
        {},
        [figure(number, "digits").loc[["srpfl", "fedrep"]] for number in range(3, 7)],
    )
    for target, own in ((95, False), (99, False), (95, True)):
        factor[target, own] = (
            f"{figure(3, 'digits', target, own).loc['srpfl', 'speed_up_0']:.1f} times as fast"
        )
    short = [
        100 * (of["worst_decile"]["fedrep"] - of["worst_decile"]["srpfl"])
        for of in of_both
    ]
    spread = [100 * std for of in of_both for std in of["worst_decile_std"]]
    return wrapped(
        "Three seeds are few (`fedjax-srp demo --seeds 12` runs more), and 95 % is the easier target. In figure 3 of "
        "the paper, with four seeds ([results](experiments/srpfl/README.md)), SRPFL reaches 95 % at C = 0 "
        f"{factor[95, False]} as FedRep, and 99 % {factor[99, False]}; judged with each client's own head, 95 % "
        f"{factor[95, True]}. Its worst tenth of clients ends below FedRep's on digits, by {ends(short, '.1f')} "
        f"points in figures 3 to 6, with standard deviations over the seeds of {ends(spread, '.1f')}."
    )


SHOWN = {  # rows of the page on performance: what is measured, and whether a rival with cached features stands beside
    "FedAvg round, MLP 784-512-256-64-10, 100 clients x 150 images, batches of 10": ("FedAvg round", False),
    "FedRep round, 10 epochs of the head + 1 of the rest": ("FedRep round", True),
    "evaluation, 10 epochs of fine-tuning a client": ("FedRep evaluation, 10 epochs of the head", True),
    "FedAvg round, LeNet-5, 20 clients x 100 images": (
        "LeNet FedAvg round, 20 clients", False,
    ),
    "FedRep round, 10 + 1 epochs": ("LeNet FedRep round, 20 clients", True),
}  # fmt: skip


def speed() -> str:
    """Against the PyTorch loop, on the page on performance, and other rivals in short."""
    rows = [["", "here", LOOP, "ratio", "the same, features cached"]]
    for title, (name, cached) in SHOWN.items():
        ours, rival, ratio = pair(name, LOOP)
        rows.append(
            [
                title,
                seconds(ours),
                seconds(rival),
                two(ratio),
                two(pair(name, CACHED)[2]) if cached else "",
            ]
        )
    ours, rival, ratio = pair("FedRep round, crop and flip", "loop")
    title = f"FedRep round with crop and flip, {ELSEWHERE}"
    rows.append([title, seconds(ours), seconds(rival), two(ratio), ""])
    compiled = [
        pair(name, COMPILED)[2] for name, _ in SHOWN.values() if "evaluation" not in name
    ]
    by_size = measured("cpu-2-cores")["curves"]["seconds per round of 10 clients, by N"]
    fedjax = measured("fedjax-2-cores")["results"]
    blazefl = measured("blazefl-2-cores")
    pfllib = [
        measured("pfllib-2-cores")[name]["pfllib_over_ours"]["median"]
        for name in ("FedAvg", "FedRep", "FedALA")
    ]
    said = wrapped(
        "The machine is shared: seconds vary from run to run, ratios less. A loop over clients that is compiled with "
        f"JAX and keeps all cores busy takes {ends(compiled, '.1f')} times as long as these rounds; with small clients "
        f"(linear tasks) it takes {two(pair('linear FedRep round, 1000 clients', COMPILED)[2])} times as long. A round "
        "with 10 of 10,000 clients costs the same as one with 10 of 100, within "
        f"{100 * abs(by_size['10000'] / by_size['100'] - 1):.0f} %. FedJAX's loop took "
        f"{two(fedjax['fedavg']['rival_over_ours'])} times as long for FedAvg and "
        f"{two(fedjax['fedrep']['rival_over_ours'])} times for FedRep, pfl "
        f"{two(measured('pfl-2-cores')['pfl_over_ours']['median'])} times for a round of its own CIFAR-10 workload, "
        f"PFLlib {ends(pfllib, '.1f')} times for rounds of its own on MNIST, BlazeFL "
        f"{two(blazefl['blazefl_over_ours']['median'])} times for those of its own benchmark, in which Flower took "
        f"{two(blazefl['flower_over_ours']['median'])} times ([other "
        "packages](benchmarks.md#other-packages-large-federations))."
    )
    h200 = gpu_rounds()
    compared = measured("gpu-h200-6")["cases"]["methods, graphs"]["result"]["methods"]
    jax_avg, jax_rep, torch_avg = map(three, gpu_loops())
    said += "\n\n" + wrapped(
        "On one NVIDIA H200 a round of 1,000 clients with this MLP and 150 images each takes "
        f"{h200['fedavg']} (FedAvg) and {h200['fedrep']} (FedRep), and one of 10,000 takes {h200['many']} (FedRep); "
        f"{len(compared)} methods agree there with the CPU on a small MLP, in full precision; those that came later "
        "were not run there. On one NVIDIA H100 a loop over 100 clients that is compiled with JAX takes "
        f"{jax_avg} (FedAvg) and {jax_rep} (FedRep) times as long as a round, one in PyTorch {torch_avg} times "
        "(FedAvg) ([GPUs](benchmarks.md#on-a-gpu))."
    )
    said += "\n\n" + wrapped(f"To compile {compile_times()}, on two free cores.")
    return f"{markdown(rows)}\n\n{said}"


def gpu_rounds() -> dict[str, str]:
    """Times of rounds on an H200: of 1,000 clients, and FedRep's of 10,000."""
    first = measured("gpu-h200-1")["cases"]
    cases = {
        "fedavg": first["fedavg, chunk 1000, span"],
        "fedrep": first["fedrep, chunk 1000, span"],
        "many": measured("gpu-h200-2")["cases"]["fedrep, N = 10000, chunk by default"],
    }
    return {
        name: seconds(case["result"]["seconds"]["median"]) for name, case in cases.items()
    }


def gpu_loops() -> list[float]:
    """Times of loops over clients on an H100, in rounds: FedAvg and FedRep in JAX, FedAvg in PyTorch."""
    return [
        case["result"]["rival_over_ours"]["median"]
        for case in measured("gpu-h100-4")["cases"].values()
        if case["settings"].get("against")
    ]


def compile_seconds(model: str) -> list[float]:
    """Seconds that each method's program takes to compile with a model."""
    found = measured("cpu-2-cores")["compile_seconds"]
    return [taken for name, taken in found.items() if name.endswith(f", {model}")]


def compile_times() -> str:
    """Seconds to compile, of the methods that were measured."""
    mlp = compile_seconds("mlp")
    lenet = compile_seconds("lenet5")
    return (
        f"any of the {len(mlp)} methods that were measured, with its evaluation, takes {ends(mlp, '.1f')} s with the "
        f"MLP and {ends(lenet, '.1f')} s with LeNet-5"
    )


def speed_in_short() -> str:
    """Speed in a paragraph, for the front page."""
    fedavg = pair("FedAvg round", LOOP)
    fedrep = pair("FedRep round", LOOP)
    cached = pair("FedRep round", CACHED)
    compiled = [
        pair(name, COMPILED)[2] for name, _ in SHOWN.values() if "evaluation" not in name
    ]
    fedjax = measured("fedjax-2-cores")["results"]
    of_fedjax = [two(fedjax[name]["rival_over_ours"]) for name in ("fedavg", "fedrep")]
    return wrapped(
        "A round of 100 clients (MLP, 150 images each, batches of 10) takes "
        f"{seconds(fedavg[0])} with FedAvg and {seconds(fedrep[0])} with FedRep on 2 CPU cores. A lean PyTorch loop "
        f"takes {two(fedavg[2])} and {two(fedrep[2])} times as long ({two(cached[2])} where it caches FedRep's "
        f"features), FedJAX {of_fedjax[0]} and {of_fedjax[1]} times, and a loop over clients that is compiled with JAX "
        f"{ends(compiled, '.1f')} times. On one NVIDIA H200 a FedRep round of 1,000 clients takes "
        f"{gpu_rounds()['fedrep']}. [Performance](docs/performance.md) says how to make yours "
        "faster, and where this package loses; [benchmarks](benchmarks/README.md) has every number with its machine, "
        "file and command."
    )


def rivals() -> str:
    """All pairs, on the page on performance."""
    limits = measured("cpu-2-cores")["limits"]
    peak = (
        f"its arithmetic at the matrix peak of {limits['matrix_flops'] / 1e9:.0f} GFLOP/s"
    )
    memory = f"its weights three times a step through memory, {limits['memory_bytes_per_second'] / 1e9:.0f} GB/s"
    rows: Sequence[
        tuple[str, str, str, str]
    ] = [  # title, rival's title, and both as the files have them
        ("FedAvg round", LOOP, "FedAvg round", LOOP),
        ("", "compiled loop", "FedAvg round", COMPILED),
        ("", peak, "FedAvg round", "its arithmetic at the matrix peak"),
        ("", memory, "FedAvg round", "its weights through memory"),
        ("FedRep round, 10 + 1 epochs", LOOP, "FedRep round", LOOP),
        ("", CACHED, "FedRep round", CACHED),
        ("", "compiled loop, features cached", "FedRep round", COMPILED),
        (
            "evaluation, 10 epochs of the head per client",
            LOOP,
            "FedRep evaluation, 10 epochs of the head",
            LOOP,
        ),
        ("", CACHED, "FedRep evaluation, 10 epochs of the head", CACHED),
        ("LeNet FedAvg round", LOOP, "LeNet FedAvg round, 20 clients", LOOP),
        (
            ELSEWHERE,
            "PyTorch, a process of one thread on each core",
            "local training",
            "processes",
        ),
        ("", "compiled loop", "LeNet FedAvg round, 20 clients", COMPILED),
        (
            "LeNet FedRep round, 10 + 1 epochs",
            LOOP,
            "LeNet FedRep round, 20 clients",
            LOOP,
        ),
        ("", CACHED, "LeNet FedRep round, 20 clients", CACHED),
        (
            "",
            "compiled loop, features cached",
            "LeNet FedRep round, 20 clients",
            COMPILED,
        ),
        (
            ELSEWHERE,
            "PyTorch processes, features cached",
            "FedRep round",
            "processes, features cached",
        ),
        (
            f"LeNet FedRep round, crop and flip, {ELSEWHERE}",
            LOOP,
            "FedRep round, crop and flip",
            "loop",
        ),
        (
            "linear FedRep round, 1,000 clients, d = 100",
            "compiled loop",
            "linear FedRep round, 1000 clients",
            COMPILED,
        ),
        (
            "four seeds vmapped: FedAvg",
            "looped",
            "FedAvg, 4 seeds vmapped",
            "looped over seeds",
        ),
        (
            "four seeds vmapped: FedRep",
            "looped",
            "FedRep, 4 seeds vmapped",
            "looped over seeds",
        ),
    ]
    made = [["", "here", "rival", "seconds", "ratio"]]
    for title, against, name, rival in rows:
        ours, theirs, ratio = pair(name, rival)
        made.append(
            [
                title,
                seconds(ours),
                against,
                seconds(theirs),
                f"{ratio:.2f}" if ratio < 2 else two(ratio),
            ]
        )
    return markdown(made)


def other_numbers() -> str:
    """What else `make bench` measures."""
    found, cores = measured("cpu-2-cores"), measured("cores-2-cores")["rounds"]
    by_cohort, by_size = (found["curves"][name] for name in ("seconds per participant, by cohort n",
                                                             "seconds per round of 10 clients, by N"))  # fmt: skip
    commits = measured("commits-2-cores")
    before, cases = commits["commits"], dict(commits["cases"])
    hears = cases.pop("hears losses")["ratio"]
    faster = lambda what: (
        ", ".join(f"{n} {of[f'speed_up_{what}']:.2f}" for n, of in cores.items())
        + " times faster"
    )
    listed = lambda of: ", ".join(f"{int(n):,}" for n in of)
    return markdown([
        ["", ""],
        ["two cores against one (`benchmarks/cores.py`, a process bound to one core; no AVX-512, as the next two)",
         faster("2_cores")],
        ["two processes of one core each against one core, all data in both", faster("two_processes")],
        ["the same with `shard_data=True`", faster("two_processes_sharded")],
        *_sixteen_cores(cores),
        [f"rounds against those of {before[1]}, before clients came, went and reported (`benchmarks/commits.py`)",
         ", ".join(f"{name} {of['ratio']:.2f}" for name, of in cases.items()) + " times as long"],
        ["a round of FedAvg whose policy hears losses, against one that hears nothing", f"{hears:.2f} times as long"],
        [f"time per participant, FedRep, n = {listed(by_cohort)}",
         ", ".join(f"{1000 * s:.1f}" for s in by_cohort.values()) + " ms"],
        [f"a round with 10 of N = {listed(by_size)} clients",
         ", ".join(f"{1000 * s:.0f}" for s in by_size.values()) + " ms"],
        ["to compile", compile_times()],
    ])  # fmt: skip


def _sixteen_cores(rounds: Mapping[str, Any]) -> list[list[str]]:
    """What the model of `benchmarks/cores.py` expects, where it was measured."""
    models = {name: of["model"] for name, of in rounds.items() if "model" in of}
    if not models:
        return []

    def listed(value: Callable[[Any], float], digits: str = ".2f") -> str:
        return ", ".join(f"{name} {value(of):{digits}}" for name, of in models.items())

    beside = {
        number: ", ".join(
            f"{name} {of[f'speed_up_{number}_runs']:.2f}" for name, of in rounds.items()
        )
        for number in ("two", "four")
    }
    rows = [
        [f"{number} runs at once on two cores, each in a process, against one after the other on one core",
         f"{found} times the rounds"]
        for number, found in beside.items()
    ]  # fmt: skip
    rows.append(
        ["two cores over the model's prediction from one core",
         listed(lambda of: of["two_cores_over_predicted"])]
    )  # fmt: skip
    for way in next(iter(models.values()))["expected_of_16"]:
        expected = listed(lambda of, way=way: of["expected_of_16"][way], ".1f")
        rows.append([f"expected of 16 cores: {way}", f"{expected} times one core"])
    return rows


def criterion() -> str:
    """FedGATE and FLANP's criterion over FedAvg."""
    rows = [["local work of a round", "FedGATE / FedAvg", "with the criterion"]]
    for name, of in measured("flanp-1-core")["cases"].items():
        found = (of["fedgate"], of["fedgate with criterion"])
        rows.append(
            [
                name,
                *(
                    f"{one['ratio']:.2f} ({ends(one['quartiles'], '.2f')})"
                    for one in found
                ),
            ]
        )
    return markdown(rows)


def _blazefl(found: dict[str, Any]) -> str:
    """Rounds of BlazeFL's own benchmark."""
    rivals = {"blazefl": "BlazeFL"}
    if "flower" in found:
        rivals["flower"] = "Flower"
    last = {name: 100 * of[-1] for name, of in found["accuracies"].items()}
    rounds = len(found["accuracies"]["ours"])
    pythons = " ".join(f"--{name} PYTHON" for name in rivals)
    command = (
        f"python benchmarks/blazefl_rival.py --data-dir DIR {pythons} --rounds {rounds}"
    )
    took = []
    for name, called in rivals.items():
        ratio = found[f"{name}_over_ours"]
        took.append(
            f"{called} {ratio['median']:.2f} times as long (quartiles {ends(ratio['quartiles'], '.2f')}; medians "
            f"{found[name]['median']:.0f} s and {found['ours']['median']:.0f} s, {len(ratio['each'])} pairs in turn)"
        )
    there = " and ".join(
        f"{last[name]:.1f} % in {called}" for name, called in rivals.items()
    )
    beside = "BlazeFL 2.0.3"
    missing = (
        "Its threads on a Python without a lock (BlazeFL 3) and Flower were not run."
    )
    if "flower" in found:
        beside += " and Flower 1.42.0"
        missing = (
            "Flower's round begins with its processes running; its own case downloads the images, here it reads each "
            "client's from a file. BlazeFL's threads on a Python without a lock (BlazeFL 3) were not run."
        )
    return (
        "BlazeFL's own benchmark (100 clients with 500 images of CIFAR-10 in two shards, all in every round, five "
        "epochs in batches of 50, the network of PyTorch's tutorial with 62,006 parameters), beside "
        f"{beside} with PyTorch 2.14.1 in two processes of one thread (`{command}`, `blazefl-2-cores.json`): a round "
        f"with its test takes {', '.join(took)}, without the {found['compile_seconds']:.0f} s in which ours is "
        "compiled once. Part of BlazeFL's round is its data: it reads each client's file and turns images into "
        f"tensors in every epoch, and starts its processes in every round. Test accuracy after {rounds} rounds of one "
        f"seed each: {last['ours']:.1f} % here, {there}. {missing}"
    )


def packages() -> str:
    """FedJAX, pfl-research, and a large federation."""
    fedavg, fedrep = (
        measured("fedjax-2-cores")["results"][name] for name in ("fedavg", "fedrep")
    )
    pfl, (large,) = measured("pfl-2-cores"), measured("scale-2-cores")["results"]
    ratio, (first, *_, last) = (
        pfl["pfl_over_ours"],
        zip(*pfl["accuracies"].values(), strict=True),
    )
    paragraphs = [
        "FedJAX at its git head (c57ee19, July 2025), its jit backend with XLA's default threads, on the MLP's clients "
        "above (`python benchmarks/fedjax_rival.py --fedjax CHECKOUT`, a clone of google/fedjax, "
        f"`fedjax-2-cores.json`): a FedAvg round takes it {two(fedavg['rival_over_ours'])} times as long (medians "
        f"{fedavg['rival']:.2f} s and {fedavg['ours']:.2f} s), a FedRep round {two(fedrep['rival_over_ours'])} times "
        f"({fedrep['rival']:.2f} s and {fedrep['ours']:.2f} s); factors are medians over pairs.",
        "pfl-research's CIFAR-10 workload (1,000 iid users with 50 images, 50 a round, a CNN with dropout and 1.6 "
        "million parameters), beside pfl 0.6.0 with PyTorch 2.14.1 (`python benchmarks/pfl_cifar10.py --data-dir DIR "
        f"--pfl PYTHON --rounds 40`, `pfl-2-cores.json`): a round takes pfl {two(ratio['median'])} times as long "
        f"(quartiles {ends(ratio['quartiles'], '.1f')}; medians {two(pfl['pfl']['median'])} s and "
        f"{two(pfl['ours']['median'])} s, {len(pfl['pfl']['each'])} pairs in turn). After 40 rounds of one seed the "
        f"test accuracy is {100 * last[0]:.2f} % here and {100 * last[1]:.2f} % there, after the first ten "
        f"{100 * first[0]:.2f} and {100 * first[1]:.2f} %. One round in ten also tests 10,000 images; these rounds are "
        f"among the pairs. {_longer(measured('pfl-200-rounds')['accuracies'])}",
        _blazefl(measured("blazefl-2-cores")),
        _pfllib(measured("pfllib-2-cores")),
        _memory_of_500(measured("pfllib-500-cpu")["settings"]["pfllib-500"]),
        "A federation of 100,000 clients with 60 images each, 1,000 of them in a FedRep round (`python "
        "benchmarks/memory.py --clients 100000 --examples 60 --cohorts 1000 --rounds 25`, `scale-2-cores.json`): "
        f"{large['gib_after_10_rounds']:.1f} GiB after 10 rounds and {large['gib_at_the_end']:.1f} after "
        f"{large['rounds']}, {large['seconds_a_round']:.1f} s a round, on a slow day of the machine.",
        _million(measured("million-2-cores")),
        _stored(measured("stored-2-cores")),
    ]
    return "\n\n".join(map(wrapped, paragraphs))


def _memory_of_500(found: Any) -> str:
    return (
        "PFLlib's README says that it trains 500 clients of CIFAR-100 with its CNN in 5.08 GB of a GPU. Here "
        f"{found['clients']} clients with {found['examples']} images each and that CNN ({found['parameters']:,} "
        "parameters), all in a round of one epoch in batches of 10, take "
        f"{found['peak_bytes_so_far'] / 1e9:.2f} GB on a CPU, the peak of the whole process with JAX and its compiler "
        "(`python benchmarks/large.py --settings pfllib-500 --repeats 1`, `pfllib-500-cpu.json`): each "
        f"device trains {max(found['chunks'])} at a time. A round took {found['seconds']['median']:.0f} s on a busy "
        "machine. On a GPU it takes more than PFLlib's (below)."
    )


def _million(found: Any) -> str:
    def of(policy: str) -> str:
        return ", ".join(
            f"{found[policy][clients]['median']:.2g}"
            for clients in ("10000", "100000", "1000000")
        )

    large = found["uniform"]["1000000"]
    return (
        "1,000 clients a round among 10,000, 100,000 and a million with personal heads of 680 bytes (FedRep, "
        "MLP 64-32-16-10, 20 examples drawn in the program; `python benchmarks/million.py --out "
        f"benchmarks/results/million-2-cores.json`): {of('uniform')} CPU seconds a round where they are drawn at "
        f"random, and {of('fastest')} where the fastest of all are taken. What grows is the draw of a number for every "
        "client, the search for the largest, and the count that checks a cohort; each of the two devices does it for "
        f"itself. The states of a million take {large['states_gib']:.2g} GiB, and a segment of rounds "
        f"{1024 * large['working_gib']:.0f} MiB beside them; the process, with all three sizes, took "
        f"{found['peak_gib']:.1f} GiB at most. The machine was busy. Evaluations, which are over all clients, "
        "were not measured."
    )


def _stored(found: Any) -> str:
    """Rounds whose clients' states lie in a file."""
    few, many = (found["file"][f"file, {clients}"] for clients in (10_000, 1_000_000))
    in_memory = found["memory"]["memory, 10000"]

    def cpu(of: Any) -> str:
        return f"{of['cpu_seconds']['median']:.2g}"

    first, *_, last = many["resident_gib"]
    return (
        "With heads of 10 KB that lie in a file (`states_dir`; MLP 64-32-255-10; `python benchmarks/stored.py "
        "--clients 10000 1000000 --in-memory 10000 --repeats 3 --out benchmarks/results/stored-2-cores.json`), a round "
        f"of 1,000 of 10,000 clients takes {cpu(few)} CPU seconds, and {cpu(many)} among a million; {cpu(in_memory)} "
        f"among 10,000 in memory. The states of a million are {many['file_gib']:.1f} GiB, of which "
        f"{many['on_disk_gib']:.2g} were written. The process, with both, took {first:.2f} GiB after the first rounds "
        f"and {last:.2f} after the last. The file lay in the system's cache."
    )


def _longer(accuracies: dict[str, dict[str, list[float]]]) -> str:
    """Accuracies of pfl's workload after 200 rounds, by seed."""
    ends_of = [
        f"{100 * of['ours'][-1]:.1f} and {100 * of['pfl'][-1]:.1f} %"
        for of in accuracies.values()
    ]
    apart = max(
        abs(a - b)
        for of in accuracies.values()
        for a, b in zip(of["ours"][1:], of["pfl"][1:], strict=True)
    )
    seeds = "one seed" if len(ends_of) == 1 else f"{len(ends_of)} seeds"
    return (
        f"After 200 rounds, {seeds} (`--rounds 200`, `pfl-200-rounds.json`): {'; '.join(ends_of)}, ours first; between "
        f"rounds 20 and 200 the two are at most {100 * apart:.1f} points apart."
    )


def _pfllib(found: Any) -> str:
    methods = ("FedAvg", "FedRep", "FedALA")
    ratios = [two(found[name]["pfllib_over_ours"]["median"]) for name in methods]
    medians = [
        f"{found[name]['pfllib']['median']:.1f} s and {found[name]['ours']['median']:.1f} s"
        for name in methods
    ]
    last = [found[name]["accuracies"] for name in methods]
    shown = [
        f"{100 * of['ours'][-1]:.1f} and {100 * of['pfllib'][-1]:.1f} %" for of in last
    ]
    every = [np.subtract(of["ours"], of["pfllib"]) for of in last]
    return (
        "PFLlib's own `main.py` on MNIST (its CNN of 582,026 parameters, 20 clients by Dirichlet(0.1), all in every "
        "round, one epoch in batches of 10; here cut to 600 images a client), commit d832e76 of November 2025 with "
        "PyTorch 2.14.1: `python benchmarks/pfllib_mnist.py --data-dir DIR --pfllib CHECKOUT --python PYTHON`, "
        "`pfllib-2-cores.json`. "
        f"A round of FedAvg, FedRep and FedALA takes PFLlib {ratios[0]}, {ratios[1]} and {ratios[2]} times as long "
        f"(medians {'; '.join(medians)}; {len(found['FedAvg']['pfllib']['each'])} pairs in turn). After 20 rounds the "
        f"test accuracy is {'; '.join(shown)}, ours first; at the four evaluations it differs by "
        f"{100 * np.abs(every).max():.1f} points at most, one run each, from other starts and in other batches."
    )


def first_layer() -> str:
    """Rounds with the first layer in the span of the examples and without."""
    rows = [["clients", "plain over span", "quartiles", "the engine takes"]]
    for name, of in measured("first-layer-2-cores")["cases"].items():
        ratio = of["plain_over_span"]
        rows.append(
            [
                name,
                two(ratio["median"]),
                ends(ratio["quartiles"], ".2f"),
                "span" if of["chosen"] else "plain",
            ]
        )
    return markdown(rows)


def waits() -> str:
    """What exchanging all states costs, and XLA's copies."""
    rows = [["round", "seconds", "all states exchanged", "copies by default"]]
    for name, of in measured("waits-2-cores")["results"].items():
        cells = (of[way] for way in ("all states exchanged", "copies by XLA's default"))
        rows.append(
            [
                name,
                f"{of['seconds']:.3f}",
                *(f"{m:.2f} ({low:.2f} to {high:.2f})" for m, low, high in cells),
            ]
        )
    return markdown(rows)


def passes() -> str:
    """Rounds against their passes."""
    rows = [["round of", "passes", "ratio", "quartiles"]]
    for name, of in measured("personal-2-cores")["results"].items():
        parts = " + ".join(f"{count} x {what}" for what, count in of["passes"].items())
        rows.append(
            [
                srp.methods.label(name),
                parts,
                f"{of['ratio']:.2f}",
                ends(of["quartiles"], ".2f"),
            ]
        )
    return markdown(rows)


def on_a_gpu(device: str = "h200", parts: str = "1234") -> str:
    """Rounds and evaluations on a GPU."""
    rows = [
        [
            "",
            "clients",
            "at once",
            "options",
            "ms",
            "quartiles",
            "of the bandwidth",
            "compiled in s",
        ]
    ]
    limits = measured("gpu-h200-1")["cases"]["limits"]["result"]
    rate = limits["memory_bytes_per_second"]  # used for the H200's plain rounds only
    for part in parts:
        for name, case in measured(f"gpu-{device}-{part}")["cases"].items():
            if case["settings"].get("against"):
                continue
            found, world, how = (
                case.get("result", {}),
                case["settings"].get("world"),
                case["settings"].get("how"),
            )
            if how is not None and how.get(
                "graphs"
            ):  # an option that the package no longer has
                continue
            timed = (
                {"": found["seconds"]}
                if "seconds" in found
                else found.get("seconds_by_cohort", {})
            )
            for cohort, times in timed.items():
                is_evaluation, is_mlp = (
                    name.startswith("evaluation"),
                    world["model"] == "mlp",
                )
                in_span = how["span"] or (
                    how["span"] is None and is_mlp and not is_evaluation
                )  # None: the default
                options = ["full precision"] * (how["precision"] == "highest")
                options += ["span"] * in_span + [how["convolution"]] * (
                    world["model"] == "lenet5"
                )
                share = (
                    found["least_bytes"] / rate / times["median"]
                    if is_mlp and found.get("least_bytes")
                    else 0
                )
                large, small = found["large_chunk"], found["chunk_size"]
                at_once = f"{large:,}, then {small}" if large else f"{small:,}"
                at_once = f"{found['evaluation_chunk']:,}" if is_evaluation else at_once
                method = (
                    srp.methods.label(world["algorithm"])
                    if world["model"] != "linear"
                    else "linear FedRep, d = 100"
                )
                what = f"{method} with LeNet-5" * (world["model"] == "lenet5") or method
                name_of_row = (
                    f"evaluation of {what}"
                    if is_evaluation
                    else f"SRPFL, n = {cohort}"
                    if cohort
                    else what
                )
                ends_in_ms = " to ".join(
                    dict.fromkeys(three(1e3 * end) for end in times["quartiles"])
                )
                cells = [
                    at_once,
                    ", ".join(options),
                    three(1e3 * times["median"]),
                    ends_in_ms,
                ]
                cells.append(f"{share:.0%}" if share and not in_span else "")
                cells.append(
                    f"{found['compile_seconds']:.0f}" if cohort in ("", "10") else ""
                )
                rows.append([name_of_row, f"{world['clients']:,}", *cells])
    return markdown(rows)


def on_an_h100() -> str:
    """Rounds and evaluations on an H100."""
    return on_a_gpu("h100", "124")


def loops_on_an_h100() -> str:
    """Rounds of 100 clients beside loops over clients on the same GPU."""
    rows = [["", "clients", "a loop over clients", "ms", "of the loop", "times as fast"]]
    for case in measured("gpu-h100-4")["cases"].values():
        against = case["settings"].get("against")
        if against is None:
            continue
        world = case["settings"]["world"]
        found = case["result"]
        rows.append(
            [
                f"round of {srp.methods.label(world['algorithm'])}",
                f"{world['clients']:,}",
                {"jitted loop": "compiled JAX", "torch": "PyTorch"}[against],
                three(1e3 * found["seconds"]["median"]),
                three(1e3 * found["rival_seconds"]["median"]),
                three(found["rival_over_ours"]["median"]),
            ]
        )
    return markdown(rows)


def large_on_an_h100() -> str:
    """Settings of other packages on an H100."""
    titles = {
        "blazefl-cnn": "FedAvg, BlazeFL's CNN, 500 images each, 5 epochs",
        "pfllib-500": "FedAvg, PFLlib's CNN, 90 images each, 1 epoch",
    }
    rows = [["", "clients", "s a round", "peak, GB", "estimated, GB"]]
    for name, found in measured("large-h100")["settings"].items():
        rows.append(
            [
                titles[name],
                f"{found['clients']:,}",
                three(found["seconds"]["median"]),
                f"{found['peak_bytes_so_far'] / 1e9:.1f}",
                f"{sum(found['estimated_bytes'].values()) / 1e9:.1f}",
            ]
        )
    return markdown(rows)


PAGES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    ROOT / "README.md": {"demo": demo, "beside_figure_3": beside_figure_3, "speed_in_short": speed_in_short},
    ROOT / "docs/performance.md": {"speed": speed},
    ROOT / "benchmarks/README.md": {
        "rivals": rivals, "other_numbers": other_numbers, "criterion": criterion, "packages": packages,
        "waits": waits, "passes": passes, "first_layer": first_layer, "gpu": on_a_gpu,
        "gpu_h100": on_an_h100, "loops_h100": loops_on_an_h100, "large_h100": large_on_an_h100,
    },
}  # fmt: skip

if __name__ == "__main__":
    write(PAGES)
