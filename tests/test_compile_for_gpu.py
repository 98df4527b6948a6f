"""Programs compiled for a GPU without one: the bytes of their loops, read from their text."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import compile_for_gpu  # noqa: E402

HAS_PLUGIN = any(find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"))
TEXT = """
%rows (table: f32[100,4], at: s32[5,1]) -> f16[5,4] {
  %at = s32[5,1]{1,0} parameter(1)
  %table = f32[100,4]{1,0} parameter(0)
  %halves = f16[100,4]{1,0} convert(%table)
  ROOT %picked = f16[5,4]{1,0} gather(%halves, %at), offset_dims={1}, slice_sizes={1,4}
}

%write (whole: f32[100,4], row: f32[1,4], place: s32[]) -> (f32[100,4], pred[3]) {
  %row = f32[1,4]{1,0} parameter(1)
  %whole = f32[100,4]{1,0} parameter(0)
  %place = s32[] parameter(2)
  %updated = f32[100,4]{1,0} dynamic-update-slice(%whole, %row, %place, %place)
  %flags = pred[3]{0} broadcast(%place), dimensions={}
  ROOT %both = (f32[100,4]{1,0}, pred[3]{0}) tuple(%updated, %flags)
}

%step (carry: (s32[], f32[100,4])) -> (s32[], f32[100,4]) {
  %carry = (s32[], f32[100,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[100,4]{1,0} get-tuple-element(%carry), index=1
  %row.1 = f32[1,4]{1,0} slice(%x), slice={[0:1], [0:4]}
  %done = (f32[100,4]{1,0}, pred[3]{0}) fusion(%x, /*index=1*/%row.1, %i), kind=kLoop, calls=%write
  ROOT %next = (s32[], f32[100,4]{1,0}) tuple(%i, %x)
}

ENTRY %main (a: f32[100,4], b: s32[5,1]) -> f32[4,4] {
  %a = f32[100,4]{1,0} parameter(0)
  %b = s32[5,1]{1,0} parameter(1)
  %gathered = f16[5,4]{1,0} fusion(%a, %b), kind=kLoop, calls=%rows, metadata={op_name="jit(f)/vmap()/gather"}
  %init = (s32[], /*index=1*/f32[100,4]{1,0}) tuple(%b, %a)
  %loop = (s32[], f32[100,4]{1,0}) while(%init), condition=%more, body=%step
  ROOT %gemm = (f32[4,4]{1,0}, s8[999]{0}) custom-call(%gathered, %gathered), custom_call_target="__cublas$gemm"
}
"""


def test_bytes_of_kernels_by_loop():
    main, step = compile_for_gpu.loops(compile_for_gpu.parse(TEXT))
    # Of the table 5 rows are read, and their positions. A product's working memory does not count.
    gathered = ("gathered", "vmap()/gather", 5 * 4 * 4 + 5 * 4, 5 * 4 * 2)
    assert main == ("ENTRY", 0, [gathered, ("gemm", "", 2 * 5 * 4 * 2, 4 * 4 * 4)])
    # In place: one row and its position are read, the row and three flags are written.
    assert step == ("step", 1, [("row.1", "", 1600, 16), ("done", "", 16 + 4, 16 + 3)])
    *_, head, _, _ = compile_for_gpu.listing(compile_for_gpu.parse(TEXT))
    assert head.startswith("\nloop step, depth 1, one iteration: 2 kernels, 0.0 MB\n")


@pytest.mark.skipif(
    not HAS_PLUGIN,
    reason="there is no compiler for CUDA: jax-cuda12-plugin and -pjrt, or cuda13",
)
def test_a_step_reads_and_writes_the_weights_that_it_trains(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "benchmarks/compile_for_gpu.py"),
        "--clients",
        "20",
        "--chunk",
        "8",
    ]
    command += ["--target", "h100", "--hlo", str(tmp_path / "text")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert shown.startswith(
        "round of fedavg, mlp, 20 clients in chunks of 8, h100\nmemory: "
    )
    step = float(
        re.findall(r"depth 3, one iteration: \d+ kernels, ([\d.,]+) MB", shown)[0]
    )
    weights = (
        4 * (512 * 256 + 256 * 64) / 1e6
    )  # the first layer may be in the span of the examples
    assert 8 * 2 * weights < step < 8 * 20 * weights
    assert "ENTRY" in (tmp_path / "text").read_text()
