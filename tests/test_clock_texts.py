"""Clocks given as text: what `--clock` understands, traces in files, and refusals."""

import numpy as np
import pytest

import fedjax_srp as srp
from fedjax_srp.clocks.by_name import read_clock

EXPONENTIAL, DEVICES = (
    srp.clocks.Exponential(1.0),
    srp.clocks.Devices(1e9, srp.clocks.LogNormal(1e6, 1.0), 1e6),
)
COME_AND_GO = srp.clocks.Available(DEVICES, srp.clocks.DayNight(24.0, 0.5))
CLOCKS = {  # for four clients
    "fixed:constant(3)": srp.clocks.Fixed(srp.clocks.Constant(3.0)),
    "fixed:exponential(1) + 3": srp.clocks.Fixed(EXPONENTIAL, communication=3.0),
    "ordered:fixed": srp.clocks.Fixed(EXPONENTIAL, ordered=True),
    "ordered:dynamic:exponential(1)": srp.clocks.Dynamic(EXPONENTIAL, ordered=True),
    "fixed:uniform(low=N, high=N)": srp.clocks.Fixed(srp.clocks.Uniform(4.0, 4.0)),
    "dynamic:exponential(1/(2*N))": srp.clocks.Dynamic(srp.clocks.Exponential(0.125)),
    "dynamic:exponential(constant(0.5))": srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Constant(0.5))
    ),
    "random": srp.clocks.Dynamic(
        srp.clocks.Exponential(srp.clocks.Uniform(0.25, 1.0))
    ),  # SRPFL, section 5
    "available(fixed(exponential(1)), markov(9, off=5))": srp.clocks.Available(
        srp.clocks.Fixed(EXPONENTIAL), srp.clocks.Markov(9.0, 5.0)
    ),
    "failing(dynamic(exponential(1)), rate=1/N)": srp.clocks.Failing(
        srp.clocks.Dynamic(EXPONENTIAL), 0.25
    ),
    "devices(1e9, lognormal(1e6, 1), 1e6)": DEVICES,
    "failing(available(devices(1e9, lognormal(1e6, 1), 1e6), daynight(24, 0.5)), 0.1)": srp.clocks.Failing(
        COME_AND_GO, 0.1
    ),
}


@pytest.mark.parametrize("text", CLOCKS)
def test_clocks_are_parsed(text):
    assert read_clock(text, 4) == CLOCKS[text]


HEADER = b"{'descr': ('<f8', "  # whose brackets end nowhere


@pytest.mark.filterwarnings("ignore")  # as outside of pytest, where they are no errors
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("times.npy", b"\x93NUMPY\x01\x00" + len(HEADER).to_bytes(2, "little") + HEADER),
        ("times.csv", b""),
    ],
)
def test_a_trace_that_is_damaged_or_empty_is_refused_in_one_line(file, content, tmp_path):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(
        ValueError,
        match=rf"^clock='trace:.*{file}' is not a table of numbers .*numpy.savetxt$",
    ):
        read_clock(f"trace:{tmp_path / file}", 2)


def test_a_trace_is_read_from_a_file(tmp_path):
    (tmp_path / "times.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "times.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    for name in ("times.csv", "times.npy"):
        assert read_clock(f"trace:{tmp_path / name}", 2) == srp.clocks.Trace(
            np.array([[1.0, 2.0], [3.0, 4.0]])
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[
            (text, "clock=.* is not understood: .*; give e.g. random")
            for text in ("fixed:", "fixed:open('x')", "fixed:constant(M)")
        ],
        ("fixed:constant(1/0)", "clock=.* is not understood: .*; give e.g. random"),
        ("fixed:3", "distribution=3 must be a Distribution; give one of srp.clocks"),
        (
            "available",
            r"clock='available' is not understood: available: missing .*; give",
        ),
        (
            "failing(fixed(constant(1)), rate=0.1, rate=0.2)",
            "not understood: rate is given twice.*; give",
        ),
        (
            "fixed:exponential(rate=1, rate=2)",
            "not understood: rate is given twice.*; give",
        ),
        (
            "fixed:exponential(1, **N)",
            r"not understood: \*\* is given twice or has no name; give",
        ),
        ("failing(3, 0.1)", "clock=3 must be a Clock"),
        ("availabel(1)", r"'availabel' is unknown \(did you mean available\?\)"),
        (
            "ordered:fixd",
            r"'fixd' is unknown \(did you mean fixed\?\).*; srp.clocks.register, in a file for --load, adds",
        ),
        (
            "ordered:trace:times.csv",
            r"clock='ordered:trace:times.csv' .*: a trace says who is slow; sort",
        ),
    ],
)
def test_invalid_clocks_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_clock(text, 4)
