"""Readers of measured devices, with small files of each layout."""

import json
import lzma
import pickle

import numpy as np
import pytest
from reference.small import refused

from fedjax_srp.clocks import read_availability, read_devices

TIMERS = {
    "a": {
        "isSuccess": True,
        "trace_start": 100.0,
        "trace_end": 200.0,
        "ready_time": [[110.0, 120.0], [150, 190]],
    },
    "b": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    "c": {"isSuccess": True, "trace_start": 0, "trace_end": 50, "ready_time": []},
}
FEDSCALE = {
    "1": {
        "duration": 9,
        "active": [0, 60],
        "inactive": [20, 75],
        "finish_time": 100,
        "model": "CPH1801",
    }
}


def write(folder, content, name="traces.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "options", "compute", "downlink", "uplink"),
    [
        (
            {"u1": {"down_u": 2.0, "down_sigma": 1.0, "up_u": 1.0, "up_sigma": 0.5}},
            {}, None, [2048.0], [1024.0],
        ),  # FLASH
        (
            [{"Phone Model": "x", "Vit Latency": 500, "ResNet Latency": 50}, {"Phone Model": "y", "ResNet Latency": 0}],
            {}, [20.0], None, None,
        ),  # FLHetBench: the second device failed
        (
            [{"Phone Model": "x", "Vit Latency": 500, "ResNet Latency": 5}, {"Phone Model": "y", "ResNet Latency": 9}],
            {"compute": "Vit Latency"}, [2.0], None, None,
        ),
        ([{"id": "7", "tcp_speed_results": [8.0, 24.0]}], {}, None, [2000.0], [2000.0]),  # MobiPerf
        ({"1": {"computation": 100.0, "communication": 8.0}}, {}, [10.0], [1000.0], [1000.0]),  # FedScale, converted
        ("compute,uplink\n3,5\n0,7\n ,8\n4,6\n", {}, [3.0, 4.0], None, [5.0, 6.0]),
        ("\ufeffcompute,uplink\n3,5\n\n", {}, [3.0], None, [5.0]),  # of a spreadsheet
        ("score,down\n3,5\n", {"compute": "score", "downlink": "down"}, [3.0], [5.0], None),
        ("Phone Model,score,down_u\nx,3,5\n", {"compute": "score", "downlink": "down_u"}, [3.0], [5.0], None),
        ([{"compute": 2, "uplink": 3}, {"uplink": 4}], {}, [2.0], None, [3.0]),  # the second device failed
    ],
)  # fmt: skip
def test_devices_of_every_layout(tmp_path, content, options, compute, downlink, uplink):
    found = read_devices(write(tmp_path, content), **options)
    for values, expected in zip(found[:3], (compute, downlink, uplink), strict=True):
        assert (values is None and expected is None) or np.array_equal(values, expected)


@pytest.mark.parametrize(
    ("content", "options", "starts", "ends", "period"),
    [
        (TIMERS, {}, [[10, 50], [0, 0]], [[20, 90], [0, 0]], [100, 50]),
        ([{"trace_start": 5, "trace_end": 9, "available": [[5, 6]]}], {}, [[0]], [[1]], [4]),
        (FEDSCALE, {}, [[0, 60]], [[20, 75]], [100]),
        ({i: FEDSCALE["1"] | {"trace": i} for i in "ab"}, {}, [[0, 60]] * 2, [[20, 75]] * 2, [100] * 2),
        (
            "device,start,end,period\nx,1,2,9\nx,4,5,9\ny,0,3,7\n", {},
            [[1, 4], [0, 0]], [[2, 5], [3, 0]], [9, 7],
        ),
        ("device,start,end\nx,4,5\nx,1,2\n", {}, [[1, 4]], [[2, 5]], [5]),
        (
            "device,t_start_s,state\nx,0,AVL\nx,1,AVL_TRAIN\nx,3,UN_AVL\nx,5,AVL_TRAIN\nx,8,AVL\n",
            {}, [[0, 5]], [[3, 8]], [8],
        ),  # the last interval is open
        (
            "device, t_start_s, state\nx, 0, AVL\ny, 0, UN_AVL\ny, 4, AVL\nx, 5, AVL\nx, 5, UN_AVL\n"
            "x, 6, AVL\ny, 8, AVL\nx, 9, AVL\n",
            {}, [[0, 6], [4, 0]], [[5, 9], [8, 0]], [9, 8],
        ),  # spaces, lines of two devices by turns, a state of no length
        (
            "device,trace,t_start_s,state\nx,t,0,AVL_TRAIN\nx,t,3,UN_AVL\nx,t,5,AVL_TRAIN\nx,t,8,AVL_EVAL\nx,u,0,UN_AVL\n",
            {"trace": "t"}, [[0, 5]], [[3, 8]], [8],
        ),
    ],
)  # fmt: skip
def test_availability_of_every_layout(tmp_path, content, options, starts, ends, period):
    found = read_availability(write(tmp_path, content), **options)
    for values, expected in zip(found[:3], (starts, ends, period), strict=True):
        np.testing.assert_array_equal(values, expected)
    np.testing.assert_allclose(found.share, (np.array(ends) - starts).sum(1) / period)


def test_traces_of_unequal_length_repeat_in_a_clock(tmp_path):
    path = write(tmp_path, "device,start,end,period\nx,1,2,4\nx,3,4,4\ny,0,3,9\n")
    found = read_availability(path).intervals()
    assert found.period == 9
    np.testing.assert_array_equal(found.starts, [[1, 3, 5, 7], [0, 0, 0, 0]])
    np.testing.assert_array_equal(found.ends, [[2, 4, 6, 8], [3, 0, 0, 0]])


def test_clients_get_their_own_devices_by_name(tmp_path):
    content = "who,compute,up\n10,5,1\n2,0,3\n1,7,9\n"
    options = {"uplink": "up", "client": "who"}
    devices = read_devices(write(tmp_path, content), **options)
    assert devices.names.tolist() == ["10", "1"]  # the device of client 2 failed
    own = devices.of(("1", "10"))
    assert (own.compute.tolist(), own.uplink.tolist()) == ([7.0, 5.0], [9.0, 1.0])
    with refused("names=.* has no client '2'; it has '10', '1'.*give each client"):
        devices.of(("1", "10", "2"))
    with refused("client_names=None is None: the data have no names"):
        devices.of(None)
    with refused("names=None has no names of devices; .*read_devices.*client=COLUMN"):
        read_devices(write(tmp_path, content)).of(("1",))
    for rows, words in {"1,5,1\n1,6,1": "'1' has two devices", ",5,1": "no name"}.items():
        with refused(words):
            read_devices(write(tmp_path, f"who,compute,up\n{rows}\n"), **options)
    with refused("has no column 'whose'; it has who, compute, up"):
        read_devices(write(tmp_path, content), client="whose")
    with refused("no table of your own; leave out client"):
        read_devices(write(tmp_path, {"a": {"down_u": 1, "up_u": 2}}), client="down_u")


def test_clients_get_their_own_availability_by_name(tmp_path):
    path = write(tmp_path, "device,start,end,period\nx,1,2,4\ny,0,3,9\n")
    own = read_availability(path).of(("y", "x"))
    assert own.period.tolist() == [9, 4]
    assert own.intervals().ends[:, 0].tolist() == [3, 2]
    with refused("has no client 'z'; it has 'x', 'y'"):
        read_availability(path).of(("z",))
    with refused("names=None .*a column device"):
        read_availability(write(tmp_path, TIMERS)).of(("a",))


def test_clients_get_whole_devices_by_seed(tmp_path):
    rows = "".join(f"{i},{10 * i},{100 * i}\n" for i in range(1, 8))
    traces = read_devices(write(tmp_path, "compute,downlink,uplink\n" + rows))
    drawn = traces.assign(5, seed=3)
    assert (
        len(set(drawn.compute)) == 5
    )  # without replacement, as far as there are devices
    np.testing.assert_array_equal(drawn.downlink, 10 * drawn.compute)
    np.testing.assert_array_equal(drawn.compute, traces.assign(5, seed=3).compute)
    assert not np.array_equal(drawn.compute, traces.assign(5, seed=4).compute)
    assert sorted(traces.assign(14, seed=0).compute) == sorted([*range(1, 8)] * 2)


def test_pickles_are_refused_without_reading_them_and_compressed_files_are_read(tmp_path):
    path = tmp_path / "t.json.xz"
    path.write_bytes(lzma.compress(json.dumps(FEDSCALE).encode()))
    assert read_availability(path).period == [100]
    path = tmp_path / "client_device_capacity"
    path.write_bytes(pickle.dumps({1: {"computation": 1.0}}))
    for read in (read_devices, read_availability):
        with refused("is a pickle, and reading one executes .* convert it first"):
            read(path)


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_devices, '{"a": {"down_u": 1', "is damaged"),
        (read_devices, '{"a": {"down_u": 1}}', "uplink of device 0 is nan"),
        (read_devices, {"a": {"down_u": -1, "up_u": 2}}, "downlink of device 0"),
        (read_devices, {"a": {"down_u": True, "up_u": 2}}, "downlink of device 0 is nan"),
        (read_devices, {"a": 3}, "3 is not a device"),
        (read_devices, [], "has no devices; give a list or a dict"),
        (read_devices, {"a": {"rate": 3}}, "has no speeds; name the column"),
        (read_devices, "compute,up\n3,x\n4\n", "is damaged"),
        (read_devices, "compute, compute\n3,4\n", "two columns are called 'compute'"),
        (
            read_availability,
            {"a": {"trace_start": 0, "trace_end": 9}},
            "a device has trace_start, trace_end",
        ),
        (
            read_availability,
            {"a": {"active": [0, 60], "inactive": [20], "finish_time": 100}},
            "2 times active and 1 inactive; give pairs",
        ),
        (
            read_availability,
            [{"trace_start": 0, "trace_end": 9, "available": [[1, 5], [4, 6]]}],
            "intervals of device 0",
        ),
        (
            read_availability,
            [{"trace_start": 0, "trace_end": 9, "available": [[1, 10]]}],
            "leave its trace of 9 s",
        ),
        (read_availability, {"b": TIMERS["b"]}, "has no measured device"),
        (
            read_availability,
            "device,trace,t_start_s,state\nx,t,0,AVL\nx,u,1,AVL\n",
            "name one of t, u",
        ),
        (
            read_availability,
            "device,t_start_s,state\nann,0,UN_AVL\nann,9,UN_AVL\nann,5,AVL\nann,20,UN_AVL\n",
            "device 'ann' has t_start_s 5 after 9; sort",
        ),
        (
            read_availability,
            "device,start,end\n,0,4\n,5,9\n",
            "a device has no name in column 'device'",
        ),
        (  # words of another library, in which nobody would ever be available
            read_availability,
            "device,t_start_s,state\nann,0,on\nann,54,off\nann,890,on\n",
            "device 'ann' has the state 'on' at 0 s; write AVL",
        ),
        (
            read_availability,
            "device,t_start_s,state\nann,0,AVL\nann,soon,UN_AVL\n",
            "device 'ann' has t_start_s 'soon'; give seconds",
        ),
        (
            read_availability,
            "device,t_start_s,state\nbob,0,AVL\nbob,3,AVL\nann,0,UN_AVL\n",
            "trace of device 'ann' is 0 s long; end it",
        ),
        (
            read_availability,
            "device,start,end\nann,0,9\nann,5,7\n",
            "intervals of device 'ann' overlap",
        ),
        (
            read_availability,
            "device,start,end,period\nann,4,,9\n",
            "device 'ann' has end ''; give seconds",
        ),
        (
            read_availability,
            "device,t_start_s,state\nann,0,AVL\n\nann,9\n",
            "line 4 has 2 entries for 3 columns",
        ),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, read, content, message):
    with refused(message) as error:
        read(write(tmp_path, content))
    assert "traces.json" in str(error.value)


def test_a_short_trace_beside_a_long_one_is_not_repeated_without_end(tmp_path):
    table = "device,start,end\nann,0,1e-6\nbob,0,1e6\n"
    with refused("period=1e-06 is repeated up to the longest trace, 1e.06 s"):
        read_availability(write(tmp_path, table)).intervals()


def test_a_short_trace_of_few_intervals_beside_one_of_many(tmp_path, monkeypatch):
    """Only its own intervals are repeated: 50 times 2 of them, beside 50."""
    monkeypatch.setattr("fedjax_srp.clocks.traces._MOST_INTERVALS", 250)
    lines = ["device,start,end", "ann,0,1", "ann,1.5,2"]
    lines += [f"bob,{time},{time + 1}" for time in range(0, 100, 2)]
    lines += ["bob,99,100"]
    traces = read_availability(write(tmp_path, "\n".join(lines) + "\n"))
    assert traces.intervals().starts.shape == (2, 100)


def test_a_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("fedjax_srp.clocks.traces._LARGEST_UNPACKED", 1 << 20)
    path = tmp_path / "traces.json.xz"
    path.write_bytes(lzma.compress(bytes(1 << 21)))
    for read in (read_devices, read_availability):
        with refused("unpacks to more than 1048576 bytes"):
            read(path)


def test_wrong_arguments_are_refused(tmp_path):
    with refused("has no column trace for trace='t'; leave the argument out"):
        read_availability(write(tmp_path, FEDSCALE), trace="t")
    with refused("has no column 'link'; it has compute, uplink"):
        read_devices(write(tmp_path, "compute,uplink\n3,5\n"), downlink="link")
    for read in (read_devices, read_availability):
        with refused("cannot be read"):
            read(tmp_path / "missing.json")
