"""Results of compiled programs: in files, on the screen and in the manual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax

import fedjax_srp as srp
from gpu_program import roofline
from gpu_program.build import PARTS, SHAPES, Case, Found
from gpu_program.targets import TARGETS

MIB = 2**20
SHOWN = ("mlp", "h100", "round")
METHODS_SHOWN = ("srpfl", "fedrep", "lg_fedavg", "fedavg", "hf_maml", "fedprox")  # in the manual
STEPS_SHOWN = ("fedavg", "fedrep")  # methods whose steps of local training are in the manual
KEY = (
    *("method", "model", "target", "part", "clients", "chunk_size", "large_chunk"),
    *("devices", "shard_data", "graphs", "momentum"),
)


def facts() -> dict[str, Any]:
    """Assumptions behind the numbers."""
    return {
        "what": "compiled, not measured: programs for devices that were not there; milliseconds are reasoned from them",
        "jax": jax.__version__,
        "bandwidth_share": roofline.BANDWIDTH_SHARE,
        "seconds_per_kernel": roofline.KERNEL,
        "seconds_per_host_decision": roofline.HOST_DECISION,
        "seconds_per_iteration_in_a_graph": roofline.GRAPH_DECISION,
        "targets": {name: target._asdict() for name, target in TARGETS.items()},
    }


def row(case: Case, found: Found, **more: Any) -> dict[str, Any]:
    """A result, as in the file."""
    totals = found.totals
    return {
        "method": case.method,
        "model": case.model,
        **more,
        "clients": case.clients,
        "devices": case.devices,
        "shard_data": case.shard_data,
        "momentum": case.momentum,
        "kernels": round(totals.kernels),
        "host_syncs": round(totals.host_syncs),
        "gigabytes": round(totals.num_bytes / 1e9, 3),
        "gigaflop": round(totals.flops / 1e9, 3),
        "exchanged_megabytes": round(totals.exchanged / 1e6, 3),
        "working_mib": round(found.working / MIB, 1),
        "peak_mib": round(found.peak / MIB, 1),
        "argument_mib": round(found.arguments / MIB, 1),
        "loops_outside_graphs": sum(not (loop.in_graph or loop.known) for loop in totals.loops),
        "reasoned_ms": round(1e3 * totals.seconds, 3),
        "reasoned_ms_of_bytes_alone": round(1e3 * totals.at_bandwidth(TARGETS[more["target"]]), 3),
        "compile_seconds": round(found.compile_seconds, 1),
        "loops": [
            {
                "name": loop.name,
                "trips": loop.trips,
                "in_graph": loop.in_graph,
                "trips_known_to_the_compiler": loop.known,
                "kernels_a_trip": loop.kernels,
                "mebibytes_a_trip": round(loop.num_bytes / MIB, 3),
                "gigaflop_a_trip": round(loop.flops / 1e9, 3),
                "reasoned_ms_a_trip": round(1e3 * loop.seconds, 4),
            }
            for loop in totals.loops
        ],
    }


def write(out: Path, results: list[dict[str, Any]]) -> None:
    """Write all results so far, one a line, sorted by devices, target, model, program, method and chunk."""
    methods = srp.methods.names()

    def order(result: dict[str, Any]) -> tuple[Any, ...]:
        what = [result[name] for name in ("devices", "shard_data", "target")]
        where = list(SHAPES).index(result["model"]), PARTS.index(result["part"])
        return (
            *what,
            *where,
            methods.index(result["method"]),
            result["chunk_size"],
            result["large_chunk"],
            result["graphs"],
        )

    head = json.dumps(facts(), indent=1)[:-2]
    rows = ",\n".join("  " + json.dumps(result) for result in sorted(results, key=order))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{head},\n "results": [\n{rows}\n ]\n}}\n', "utf-8")


def line(result: dict[str, Any]) -> str:
    """A result, as on the screen."""
    return (
        f"{result['method']:22s} {result['model']:6s} {result['target']} {result['part']:10s} "
        f"chunk {result['chunk_size']:5d} graphs {'on ' if result['graphs'] else 'off'} "
        f"kernels {result['kernels']:7d} syncs {result['host_syncs']:6d} GB {result['gigabytes']:9.2f} "
        f"GFLOP {result['gigaflop']:9.1f} working {result['working_mib']:8.0f} MiB peak {result['peak_mib']:8.0f} MiB "
        f"reasoned {result['reasoned_ms']:8.2f} ms"
    )


def table(known: dict[str, Any]) -> str:
    """Tables of the manual: a row for each program of some methods, one for each step of local training of two."""
    rows: dict[tuple[Any, ...], dict[bool, dict[str, Any]]] = {}
    for result in (result for result in known["results"] if result["method"] in METHODS_SHOWN):
        rows.setdefault(tuple(result[name] for name in KEY if name != "graphs"), {})[result["graphs"]] = result
    lines = [
        "| method | model | target | program | clients at once | kernels | decisions of the host | GB moved | GFLOP | "
        "working MiB | peak MiB | ms, reasoned | with loops in graphs | bytes alone |",
        "|" + "---|" * 14,
    ]
    for by_graphs in rows.values():
        off, on = by_graphs.get(False), by_graphs.get(True)
        one = on or by_graphs[False]
        lines.append(
            f"| `{one['method']}` | {one['model']} | {_devices(one)} | {one['part']} | {_at_once(one)} | "
            f"{one['kernels']:,} | {_shown(off, 'host_syncs', ',')} | {one['gigabytes']:.1f} | {one['gigaflop']:.0f} | "
            f"{one['working_mib']:,.0f} | {one['peak_mib']:,.0f} | {_shown(off, 'reasoned_ms', '.1f')} | "
            f"{_shown(on, 'reasoned_ms', '.1f')} | {one['reasoned_ms_of_bytes_alone']:.1f} |"
        )
    lines += [
        "",
        "| method | clients at once | step of | kernels | MiB moved | GFLOP | ms, reasoned |",
        "|" + "---|" * 7,
    ]
    for by_graphs in rows.values():
        one = by_graphs.get(False)
        if one and one["method"] in STEPS_SHOWN and (one["model"], one["target"], one["part"]) == SHOWN:
            lines += [_step(one, loop) for loop in one["loops"] if loop["name"].endswith("epoch")]
    return "\n".join(lines) + "\n"


def _step(result: dict[str, Any], loop: dict[str, Any]) -> str:
    """A row for an iteration of a loop over the steps of an epoch."""
    found = [name for name in loop["name"].split(" > ") if name.startswith("fit_")]
    trained = found[-1].removeprefix("fit_") if found else "all layers"
    return (
        f"| `{result['method']}` | {_at_once(result)} | {trained} | {loop['kernels_a_trip']} | "
        f"{loop['mebibytes_a_trip']:,.1f} | {loop['gigaflop_a_trip']:.2f} | {loop['reasoned_ms_a_trip']:.3f} |"
    )


def _at_once(result: dict[str, Any]) -> str:
    """Sizes of chunks: while many clients are left, and after that."""
    large = f"{result['large_chunk']}, then " if result["large_chunk"] else ""
    return f"{large}{result['chunk_size']}"


def _devices(result: dict[str, Any]) -> str:
    if result["devices"] == 1:
        return result["target"]
    return f"{result['devices']} x {result['target']}" + (", data sharded" if result["shard_data"] else "")


def _shown(result: dict[str, Any] | None, field: str, form: str) -> str:
    """A formatted number, or nothing where it is unknown."""
    return format(result[field], form) if result else ""
