"""Programs compiled for a GPU without one: costs read from their text, against counts by hand, and trips of loops."""

import dataclasses
import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness.measure import synthetic

import fedjax_srp as srp
from fedjax_srp.engine.prepare import Request, prepare

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import compile_for_gpu  # noqa: E402
from gpu_program import build, hlo, report, roofline, thunks, trips  # noqa: E402
from gpu_program.cost import Costs  # noqa: E402
from gpu_program.targets import TARGETS, Target  # noqa: E402

FOLDER = str(Path(__file__).parent)
HAS_PLUGIN = any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"))
# 100 bytes a second, of which 80 are reached, and 1000 operations a second.
TOY = Target("toy", bandwidth=100.0, memory=1, memory_clock=1, link=10.0, product_rate=1000.0)

TEXT = """HloModule toy

FileNames
1 "/home/me/pkg/outer.py"
2 "/home/me/pkg/inner.py"
3 "/lib/jax/loops.py"

FunctionNames
1 "cohort_pass"
2 "local_sgd.<locals>.train"
3 "while_loop"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=20 end_line=20 column=1 end_column=2}
3 {file_name_id=3 function_name_id=3 line=30 end_line=30 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}


%rows (table: f32[100,4], at: s32[5,1]) -> f32[5,4] {
  %table = f32[100,4]{1,0} parameter(0)
  %at = s32[5,1]{1,0} parameter(1)
  %both = f32[100,4]{1,0} add(%table, %table)
  ROOT %picked = f32[5,4]{1,0} gather(%both, %at), offset_dims={1}, slice_sizes={1,4}
}

%write (whole: f32[100,4], row: f32[1,4], place: s32[]) -> f32[100,4] {
  %row = f32[1,4]{1,0} parameter(1)
  %whole = f32[100,4]{1,0} parameter(0)
  %place = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %updated = f32[100,4]{1,0} dynamic-update-slice(%whole, %row, %place, %zero)
}

%step (carry: (s32[], f32[5,4])) -> (s32[], f32[5,4]) {
  %carry = (s32[], f32[5,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[5,4]{1,0} get-tuple-element(%carry), index=1
  %twice = f32[5,4]{1,0} add(%x, %x)
  ROOT %next = (s32[], f32[5,4]{1,0}) tuple(%i, %twice)
}

%more (carry.1: (s32[], f32[5,4])) -> pred[] {
  %carry.1 = (s32[], f32[5,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  ROOT %less = pred[] compare(%i.1, %i.1), direction=LT
}

ENTRY %main (a: f32[100,4], b: s32[5,1], c: f32[1,4], d: s32[]) -> f32[100,4] {
  %a = f32[100,4]{1,0} parameter(0)
  %b = s32[5,1]{1,0} parameter(1)
  %c = f32[1,4]{1,0} parameter(2)
  %d = s32[] parameter(3)
  %gathered = f32[5,4]{1,0} fusion(%a, %b), kind=kLoop, calls=%rows
  %square = f32[5,5]{1,0} dot(%gathered, %gathered), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %init = (s32[], /*index=1*/f32[5,4]{1,0}) tuple(%d, %gathered)
  %loop = (s32[], f32[5,4]{1,0}) while(%init), condition=%more, body=%step, metadata={stack_frame_id=3}
  ROOT %done = f32[100,4]{1,0} fusion(%a, %c, %d), kind=kLoop, calls=%write
}
"""

STEPS = """000: kCustomKernel [source | next=001 (1)] gathered grid: [1, 1, 1]
001: kGemm         [prev=000 (1) | next=002 (1)] square
002: kWhile        [prev=001 (1) | next=005 (1)]
condition:
    003: kCustomKernel [source | sink] less
  body:
    004: kCustomKernel [source | sink] twice
005: kCustomKernel [prev=002 (1) | sink] done
006: kCopy         [prev=002 (1) | sink] kCopy
"""

CONVOLUTIONS = """HloModule convolutions

ENTRY %main (x: f32[2,8,8,6], k: f32[4,3,3,3], g: f32[2,6,6,4]) -> f32[2,6,6,4] {
  %x = f32[2,8,8,6]{3,2,1,0} parameter(0)
  %k = f32[4,3,3,3]{3,2,1,0} parameter(1)
  %g = f32[2,6,6,4]{3,2,1,0} parameter(2)
  %gx = (f32[2,8,8,6]{3,2,1,0}, u8[999]{0}) custom-call(%g, %k), dim_labels=b01f_o01i->b01f, feature_group_count=2, custom_call_target="__cudnn$convBackwardInput"
  %gk = (f32[4,3,3,3]{3,2,1,0}, u8[999]{0}) custom-call(%x, %g), dim_labels=b01f_o01i->b01f, feature_group_count=2, custom_call_target="__cudnn$convBackwardFilter"
  ROOT %y = f32[2,6,6,4]{3,2,1,0} convolution(%x, %k), window={size=3x3}, dim_labels=b01f_o01i->b01f, feature_group_count=2
}
"""  # noqa: E501


NESTED = """000: kCommandBuffer [source | sink]
    001: kCopy         [source | next=002 (1)] kCopy
    002: kWhile        [prev=001 (1) | next=009 (1)]
condition:
        003: kCustomKernel [source | sink] less
      body:
        004: kAsyncStart   [source | next=006 (1)] stream=1
            005: kAllReduce [source | sink] kAllReduce
        006: kAsyncDone    [prev=004 (1) | next=007 (1)]
        007: kWhile        [prev=006 (1) | next=008 (1)]
condition:
          body:
            000: kCustomKernel [source | sink] inner
        008: kCustomKernel [prev=007 (1) | sink] after
009: kCustomKernel [prev=000 (1) | sink] last
"""


def costs(text):
    module = hlo.parse(text)
    found = Costs(module)
    return {name: found.of(module.entry, i) for name, i in module.computations[module.entry].items()}


def test_a_fusion_reads_gathered_rows_and_writes_the_updated_row():
    found = costs(TEXT)
    assert found["gathered"].num_bytes == 5 * 4 * 4 + 5 * 4 + 5 * 4 * 4  # rows, their numbers, the result
    assert found["done"].num_bytes == 4 * 4 + 4 + 4 * 4  # the row, its place, the row again
    assert found["square"] == (2 * 5 * 4 * 4 + 5 * 5 * 4, 2 * 5 * 5 * 4, 0)
    assert found["a"].num_bytes == found["init"].num_bytes == 0


def test_a_convolution_and_its_gradients_have_equal_operations_and_no_working_memory():
    found = costs(CONVOLUTIONS)
    products = 2 * 6 * 6 * 4 * 3 * 3 * 3  # outputs times what each sums over, in its group
    assert [found[name].flops for name in ("y", "gx", "gk")] == [2 * products] * 3
    assert found["gk"].num_bytes == 4 * (2 * 8 * 8 * 6 + 2 * 6 * 6 * 4 + 3 * 3 * 3 * 4)


def test_the_text_of_a_compiled_program_is_parsed():
    n, m, k = 24, 40, 56

    def function(a, b):
        return jax.lax.fori_loop(0, 7, lambda i, c: jnp.tanh(c @ b), a) @ b

    shapes = jax.ShapeDtypeStruct((n, k), jnp.float32), jax.ShapeDtypeStruct((k, k), jnp.float32)
    module = hlo.parse(jax.jit(function).lower(*shapes).compile().as_text())
    found = Costs(module)
    products = [
        found.flops(name, instruction)
        for name, computation in module.computations.items()
        for instruction in computation.values()
        if instruction.op == "dot"
    ]
    assert products == [2 * n * k * k] * 2
    (loop,) = [i for c in module.computations.values() for i in c.values() if i.op == "while"]
    assert loop.known_trips == 7
    assert m != n


@pytest.mark.parametrize("in_graph", [False, True])
def test_loops_are_summed_and_timed_by_hand(in_graph):
    steps = STEPS
    if in_graph:
        steps = "000: kCommandBuffer [source | sink]\n" + "\n".join(
            line if line == "condition:" else "    " + line for line in STEPS.splitlines()
        )
    package = "/home/me/pkg"
    loops = [trips.Loop((("/home/me/pkg/inner.py", 20), ("/home/me/pkg/outer.py", 10)), 3)]
    totals = roofline.account(hlo.parse(TEXT), thunks.parse(steps), loops, TOY, package)
    gathered, square, twice, done = 80 + 20 + 80, 80 + 80 + 100, 80 + 80 + 80, 16 + 4 + 16
    assert totals.kernels == 4 + 3 * 1 + 4 * 1  # outside, bodies, conditions
    assert totals.num_bytes == gathered + square + 3 * twice + done
    assert totals.flops == 200
    assert totals.host_syncs == (0 if in_graph else 4)  # before each iteration and after the last one
    deciding = 3 * roofline.GRAPH_DECISION if in_graph else 4 * roofline.HOST_DECISION
    kernels = (1 + 4) * roofline.KERNEL  # the copy that the text lacks, and the conditions
    assert totals.seconds == pytest.approx(totals.num_bytes / 80 + deciding + kernels, rel=1e-12)
    assert totals.at_bandwidth(TOY) == totals.num_bytes / 100
    (loop,) = totals.loops
    assert loop[:6] == ("train", 3, in_graph, False, 1, twice)


def test_nested_loops_of_a_graph_are_in_the_graph():
    top = thunks.parse(NESTED)
    assert [thunk.in_graph for thunk in top] == [False, False]
    assert thunks.kernels(top) == 2  # the copy and the last one
    (outer,) = thunks.loops(top)
    body = outer.parts["body"]
    (inner,) = thunks.loops(body)
    assert thunks.kernels(outer.parts["condition"]) == 1
    assert thunks.kernels(body) == 2
    assert thunks.kernels(inner.parts["condition"]) == 0
    assert [thunk.kind for thunk in inner.parts["body"]] == ["CustomKernel"]
    assert all(thunk.in_graph for thunk in (outer, inner, *inner.parts["body"], *thunks.flat(body)))


def test_uncounted_loops_and_thunks_of_another_program_are_refused():
    module, steps = hlo.parse(TEXT), thunks.parse(STEPS)
    with pytest.raises(ValueError, match=r"loop train has an unknown number of trips"):
        roofline.account(module, steps, [], TOY, "/home/me/pkg")
    with pytest.raises(ValueError, match="give text and thunks of one compilation"):
        roofline.account(module, steps[:2], [], TOY, "/home/me/pkg")
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.parse("nothing")
    with pytest.raises(ValueError, match="no thunks"):
        thunks.parse("nothing")


def count(function, *args):
    """Return the trips of a function's loops, in the order in which they begin, and its results."""
    shape = lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))  # noqa: E731
    jaxpr = jax.jit(function).trace(*jax.tree.map(shape, args)).jaxpr
    found, results = trips.loops_of(jaxpr, [trips.given(leaf) for leaf in jax.tree.leaves(args)], FOLDER)
    return [loop.trips for loop in found], [result.force() for result in results]


def test_loop_bounds_are_evaluated_and_examples_are_not():
    def function(counts, examples):
        def client(c, total):
            return jax.lax.fori_loop(0, -(-counts[c] // 10), lambda s, t: t + examples[s], total)

        def epochs(e, total):
            return jax.lax.fori_loop(0, jnp.max(counts) // 5, lambda s, t: t * 2, total)

        once, _ = jax.lax.scan(lambda t, e: (jax.lax.fori_loop(0, e, epochs, t), t), jnp.float32(0), jnp.arange(4, 6))
        return jax.lax.fori_loop(0, jnp.argmax(counts) + 1, client, once)

    counts = jnp.array([25, 70, 31])
    found, results = count(function, counts, jnp.ones(100))
    assert found == [4, 14, 2, 3]  # inner loops in the first trip of the outer one
    np.testing.assert_allclose(results[0], function(counts, jnp.ones(100)))
    shapes = jax.ShapeDtypeStruct((100,), jnp.float32)
    jaxpr = jax.jit(function).trace(counts, shapes).jaxpr
    found, _ = trips.loops_of(jaxpr, [trips.given(counts), trips.given(shapes)], FOLDER)
    assert [loop.trips for loop in found] == [4, 14, 2, 3]
    assert len({loop.place[0] for loop in found}) == 4
    with pytest.raises(ValueError, match=r"depends on an argument of shape \(3,\)"):
        trips.loops_of(jaxpr, [trips.given(jax.ShapeDtypeStruct((3,), jnp.int32)), trips.given(shapes)], FOLDER)


def test_loops_without_trips_and_branches():
    def function(n):
        total = jax.lax.fori_loop(0, n, lambda i, t: jax.lax.fori_loop(0, i + 1, lambda j, u: u + 1, t), 0)
        return jax.lax.cond(n > 1, lambda t: jax.lax.fori_loop(0, n, lambda i, u: u + i, t), lambda t: t - 1, total)

    assert count(function, jnp.int32(0)) == ([0, 0], [-1])
    found, (result,) = count(function, jnp.int32(3))
    assert found == [3, 1, 3]
    assert result == (1 + 2 + 3) + (0 + 1 + 2)


CLIENTS, EXAMPLES, CHUNK = 7, 23, 3


@pytest.fixture(scope="module")
def real():
    return synthetic(CLIENTS, EXAMPLES, 5, (2, 2))


def shaped(data):
    """Return the data with shapes in the place of examples."""
    without = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)  # noqa: E731
    names = ("x_train", "y_train", "x_test", "y_test")
    return dataclasses.replace(data, **{name: without(getattr(data, name)) for name in names})


def prepared(data, name="fedrep", evaluations=(), **options):
    small = synthetic(CLIENTS, 1, 1, (2, 2))
    method = srp.methods.get(name, dataset=small, hidden=(4, 3), participation="full")
    return prepare(Request(method, data, evaluations=evaluations, chunk_size=CHUNK, **options))


@pytest.mark.short("fedrep-2-False-3")
@pytest.mark.parametrize(
    ("name", "num_devices", "shard_data", "num_seeds"),
    [("fedavg", 1, False, None), ("fedavg", 2, True, None), ("fedrep", 2, False, None), ("fedrep", 2, False, 3)],
)
def test_a_program_traced_from_shapes_is_the_one_that_runs(real, name, num_devices, shard_data, num_seeds):
    options = {"name": name, "devices": num_devices, "shard_data": shard_data, "num_seeds": num_seeds}
    traced = prepared(shaped(real), **options).traced(1)
    run = prepared(real, **options)
    key = jax.random.key(0)
    program, (root, data) = run.program(), run.placed(key if num_seeds is None else jax.random.split(key, num_seeds))
    fingerprint = lambda traced: hashlib.sha256(traced.lower().as_text().encode()).hexdigest()[:16]  # noqa: E731
    assert fingerprint(traced.start) == program.start_fingerprint(root, data)
    state = program.start(root, data).state
    assert fingerprint(traced.segment) == program.segment_fingerprint(1, state, root, data)


def test_trips_of_a_round_follow_clients_chunks_and_epochs(real):
    data = shaped(real)
    of_round = build._loops(prepared(data, devices=1).traced(1), data)[1]
    steps = -(-EXAMPLES // 10)
    assert [loop.trips for loop in of_round] == [-(-CLIENTS // CHUNK), 10, steps, 1, steps]
    of_evaluation = build._loops(prepared(data, evaluations=None, devices=1).traced(0), data)[1]
    assert [loop.trips for loop in of_evaluation] == [-(-CLIENTS // CHUNK), 10, steps]


@pytest.mark.skipif(HAS_PLUGIN, reason="there is a compiler for CUDA")
def test_without_a_compiler_the_command_names_the_packages_to_install(tmp_path):
    with pytest.raises(
        SystemExit, match=r"^no compiler for CUDA .*: pip install --no-deps jax-cuda\d+-plugin==\S+ jax-"
    ):
        compile_for_gpu.main(["--methods", "fedavg", "--out", str(tmp_path / "out.json")])
    assert not list(tmp_path.iterdir())


def test_results_of_another_version_are_not_overwritten(tmp_path):
    out = tmp_path / "out.json"
    report.write(out, [])
    assert compile_for_gpu._kept(out) == []
    known = out.read_text().replace(jax.__version__, "0.9.0")
    out.write_text(known)
    with pytest.raises(SystemExit, match=r"^--out .*out.json: its results have a different jax; give another file"):
        compile_for_gpu.main(["--methods", "fedavg", "--out", str(out)])
    assert out.read_text() == known


@pytest.mark.skipif(not HAS_PLUGIN, reason="there is no compiler for CUDA: jax-cuda12-plugin and -pjrt, or cuda13")
def test_a_round_is_compiled_for_a_gpu(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "benchmarks/compile_for_gpu.py"), "--methods", "fedrep", "--models", "mlp"]
    options = ["--targets", "h200", "--clients", "20", "--chunk", "8", "--parts", "round", "--out", str(out)]
    subprocess.run([*command, *options], check=True, cwd=tmp_path)
    off, on = json.loads(out.read_text())["results"]
    assert (off["loops_outside_graphs"], on["loops_outside_graphs"], on["host_syncs"]) == (4, 0, 0)
    # In each of three windows: 10 epochs of 15 steps of the head, one of the rest, and one more decision a loop.
    assert off["host_syncs"] == 3 * ((10 + 1) + 10 * (15 + 1) + (1 + 1) + (15 + 1))
    # Every step reads and writes the weights that it trains.
    weights = 4 * (784 * 512 + 512 * 256 + 256 * 64)
    assert off["gigabytes"] > 2 * weights * 8 * 3 * 15 / 1e9
    assert {loop["name"] for loop in off["loops"]} >= {"cohort_pass"}


def test_the_page_shows_the_committed_results():
    results = json.loads((ROOT / "benchmarks/results/gpu-compiled.json").read_text())
    page = (ROOT / "docs/performance.md").read_text()
    shown = page.partition("<!-- begin compiled -->\n")[2].partition("<!-- end compiled -->")[0]
    assert shown == report.table(results)
    rounds = {
        (r["method"], r["model"]): r
        for r in results["results"]
        if (r["target"], r["part"], r["chunk_size"], r["devices"], r["graphs"]) == ("h100", "round", 512, 1, True)
    }
    assert {method for method, _ in rounds} <= set(srp.methods.names())
    more = rounds["fedprox", "mlp"]["gigabytes"] / rounds["fedavg", "mlp"]["gigabytes"]
    assert f"FedProx moves {more:.1f} times as much as FedAvg" in " ".join(page.split())
    fedrep = {
        (r["large_chunk"], r["graphs"]): r["reasoned_ms"]
        for r in results["results"]
        if (r["method"], *(r[name] for name in ("model", "target", "part", "chunk_size", "devices")))
        == ("fedrep", "mlp", "h100", "round", 128, 1)
    }
    without = [fedrep[0, graphs] / fedrep[384, graphs] for graphs in (False, True)]
    assert "takes {:.1f} times as long, with graphs {:.1f} times".format(*without) in " ".join(page.split())
    assert results["targets"] == json.loads(json.dumps({name: t._asdict() for name, t in TARGETS.items()}))
