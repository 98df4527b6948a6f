"""Measured devices in the units of the measurement: seconds a batch, Mbit/s, and times by the clients' names."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import KEY, clients_of, federation, model, refusal, simulate

import fedjax_srp as srp
from fedjax_srp.clocks import Devices, Trace, read_devices

DATA = federation(clients_of((9, 4, 12), (2, 2, 2)))
TRAINING = srp.Training(srp.SGD(0.1), batch_size=4, epochs=2)
FEDAVG = srp.algorithms.FedAvg(model(), TRAINING)


def test_seconds_of_batches_and_megabits_are_seconds_of_a_round():
    seconds = np.array([0.5, 2.0, 1.0])
    clock = Devices.measured(seconds, down_mbit=2.0, up_mbit=[1.0, 2.0, 4.0])
    history = simulate(FEDAVG, DATA, 1, clock=clock, evaluations=())
    batches = 2 * np.array([3, 1, 3])  # epochs, batches of 4
    link = 8e-6 * (history.bytes_down / 2 + history.bytes_up / np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(history.client_time, seconds * batches + link, rtol=1e-5)


def test_a_step_on_the_head_alone_is_less_than_a_batch():
    fedrep = srp.algorithms.FedRep(model(), TRAINING, head_epochs=5)
    clock = Devices.measured(1.0, 1e6, 1e6)
    of_fedrep, of_fedavg = (
        simulate(each, DATA, 1, clock=clock, evaluations=()).client_time
        for each in (fedrep, FEDAVG)
    )
    assert (of_fedavg < of_fedrep).all()
    assert (of_fedrep < (1 + 5 / 2) * of_fedavg).all()


def test_an_algorithm_without_batches_is_refused():
    task = srp.data.linear_task(KEY, num_clients=3, dim=5, rank=2)
    linear = srp.algorithms.LinearFedAvg(task, 0.1)
    message = refusal(simulate, linear, task, clock=Devices.measured(1.0, 1.0, 1.0))
    assert "per='batch'" in message
    assert "give compute in operations" in message


@srp.part
class OtherFields(srp.FederatedAlgorithm):
    """A user's algorithm whose fields have the names of a model and its training, and are neither."""

    model: str = "line"
    training: float = 0.5

    def init(self, key, data):
        return jnp.zeros(2)

    def client(self, key, server, state, examples, context):
        return srp.ClientOutput(self.training * server)

    def server(self, key, server, mean, context):
        return mean


def test_a_user_may_use_the_names_model_and_training():
    clock = Devices(1.0, downlink=1.0, uplink=1.0)
    history = simulate(OtherFields(), DATA, 1, clock=clock)
    messages = history.bytes_down + history.bytes_up
    np.testing.assert_allclose(history.client_time, messages)
    message = refusal(simulate, OtherFields(), DATA, clock=Devices.measured(1.0, 1, 1))
    assert "per='batch'" in message


@pytest.mark.parametrize("name", ["seconds_per_batch", "down_mbit", "up_mbit"])
@pytest.mark.parametrize("wrong", [0.0, -1.0, [1.0, -1.0], "fast", None])
def test_measures_are_positive(name, wrong):
    right = {"seconds_per_batch": 1.0, "down_mbit": 1.0, "up_mbit": 1.0}
    assert name in refusal(Devices.measured, **{**right, name: wrong})


OWN = "seconds_per_batch,down_mbit,up_mbit\n0.5,8,4\n2,16,2\n"
NAMES = {
    "compute": "seconds_per_batch",
    "downlink": "down_mbit",
    "uplink": "up_mbit",
}
OF_OWN = {"compute": "s", "downlink": "Mbit/s", "uplink": "Mbit/s"}


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(OWN)
    return path


def test_columns_are_read_in_their_units(own):
    devices = read_devices(own, **NAMES, units=OF_OWN)
    np.testing.assert_allclose(devices.compute, [2, 0.5])
    np.testing.assert_allclose(devices.downlink, [1e6, 2e6])
    np.testing.assert_allclose(devices.uplink, [5e5, 2.5e5])


@pytest.mark.parametrize("name", NAMES)
def test_a_column_whose_name_says_another_unit_is_refused(own, name):
    units = {**OF_OWN}
    del units[name]
    message = refusal(read_devices, own, **NAMES, units=units)
    assert NAMES[name] in message
    assert f"units={{'{name}': '{OF_OWN[name]}'}}" in message


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("batches_per_second", "1/s"),
        ("CPU_F_AI_Score", "1/s"),
        ("latencyMs", "ms"),
        ("train_latency", "s"),
        ("batches_of_16gb_phones", "1/s"),
    ],
)
def test_names_that_agree_with_the_unit_are_read(tmp_path, column, unit):
    path = tmp_path / "devices.csv"
    path.write_text(f"{column}\n250\n")
    speed = read_devices(path, compute=column, units={"compute": unit}).compute
    assert speed == pytest.approx([{"1/s": 250, "ms": 4, "s": 1 / 250}[unit]])


@pytest.mark.parametrize(
    ("name", "column", "remedy"),
    [
        ("compute", "minutes_per_batch", "convert it to 1/s"),
        ("compute", "batches_per_hour", "convert it to 1/s"),
        ("compute", "GFLOPS", "convert it to 1/s"),
        ("downlink", "down_MBps", "units={'downlink': 'MB/s'}"),
        ("downlink", "downMbps", "units={'downlink': 'Mbit/s'}"),
        ("downlink", "down_Mb", "units={'downlink': 'Mbit/s'}"),
        ("uplink", "uplink megabytes", "units={'uplink': 'MB/s'}"),
        ("uplink", "up_GB", "convert it to B/s"),
        ("uplink", "up_GBps", "convert it to B/s"),
        ("uplink", "bytes_per_ms", "convert it to B/s"),
        ("uplink", "up_KiB", "convert it to B/s"),
    ],
)
def test_names_of_other_units_are_refused(tmp_path, name, column, remedy):
    path = tmp_path / "devices.csv"
    path.write_text(f"{column}\n250\n")
    message = refusal(read_devices, path, **{name: column})
    assert column in message
    assert remedy in message


def test_words_of_another_measure_are_no_units(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text("us_east_peak_hours\n250\n")
    assert read_devices(path, uplink="us_east_peak_hours").uplink.tolist() == [250]


@pytest.mark.parametrize(
    "units", [{"compute": "min"}, {"speed": "s"}, {"downlink": "Mbit"}, {"uplink": 3}]
)
def test_unknown_units_are_refused(own, units):
    assert "unit" in refusal(read_devices, own, **NAMES, units=units)


def test_layouts_with_units_of_their_own_take_none(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text('[{"down_u": 3, "up_u": 4}]')
    assert read_devices(path).downlink == [3 * 1024]
    assert "leave out units" in refusal(read_devices, path, units={"downlink": "B/s"})


def test_a_trace_by_names_is_in_the_order_of_the_data():
    times = {"bob": [3.0, 1.0], "cy": [9.0, 9.0], "ann": [2.0, 5.0]}
    trace = Trace.by_name(times, ("ann", "bob"), communication=1.0)
    np.testing.assert_array_equal(trace.times, [[2, 3], [5, 1]])
    assert trace.communication == 1.0
    once = Trace.by_name({"bob": 3.0, "ann": 2.0}, ("ann", "bob"))
    np.testing.assert_array_equal(once.times, [2, 3])


@pytest.mark.parametrize(
    ("times", "names", "words"),
    [
        ({"ann": 1.0}, None, "client_names"),
        ({"ann": 1.0, "bobby": 2.0}, ("ann", "bob"), "did you mean bobby"),
        ({"ann": [1.0], "bob": [1.0, 2.0]}, ("ann", "bob"), "as many times"),
        ([1.0, 2.0], ("ann", "bob"), "times"),
    ],
)
def test_a_trace_that_lacks_a_client_is_refused(times, names, words):
    assert words in refusal(Trace.by_name, times, names)
