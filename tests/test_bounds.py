"""Times and bytes to a target know, and say, that they are upper bounds; groups of clients have their own."""

import json
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from reference.histories import made_history

from fedjax_srp.lab.report import fairness, table
from fedjax_srp.results.history import History
from fedjax_srp.results.measures import GROUPS, Reached

SCORES = [0.5, 0.7, 0.9]


def run(**fields):
    """Evaluated after rounds 2, 4 and 6, of one time unit each."""
    options = {"eval_round": [2, 4, 6], "clients": 4, "bytes_up": 1, "bytes_down": 2}
    return made_history(SCORES, [1.0] * 6, **options | fields)


def test_a_time_that_the_first_evaluation_passes_is_marked_and_warned_of():
    with pytest.warns(UserWarning, match=r"time_to\(0.4\) of 'fedrep'.*eval_first=20"):
        time = run().time_to(0.4)
    with pytest.warns(UserWarning, match="no round is earlier; give a higher target"):
        run(eval_round=[1, 4, 6]).time_to(0.4)
    with pytest.warns(UserWarning, match=r"bytes_to\(0.4\)"):
        size = run().bytes_to(0.4)
    assert (time, time.is_bound, size, size.is_bound) == (2.0, True, 6.0, True)
    assert (repr(time), str(time), f"{time:.2f}", f"{time}") == (
        "≤ 2.0",
        "≤ 2.0",
        "≤ 2.00",
        "≤ 2.0",
    )
    later = run().time_to(0.6)
    assert (later, later.is_bound, repr(later), f"{later:5.1f}") == (
        4.0,
        False,
        "4.0",
        "  4.0",
    )
    never = run().time_to(1.0)
    assert (never, never.is_bound, repr(never)) == (math.inf, False, "inf")


def test_the_warning_points_to_the_callers_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run().time_to(0.4)
    assert caught[0].filename == __file__


def test_a_marked_time_computes_as_a_number():
    time = Reached(2.0, is_bound=True)
    assert type(2 * time) is float
    assert 2 * time == 4.0
    assert np.array([time, 1.0]).dtype == float
    assert np.mean([time, Reached(4.0)]) == 3.0
    assert pd.DataFrame([{"time": time}])["time"].dtype == float
    assert json.dumps([time]) == "[2.0]"
    assert pickle.loads(pickle.dumps(time)).is_bound


def test_summaries_and_tables_have_a_column(tmp_path):
    summary = run().summary(target=0.4)
    assert summary["reached_at_once"] is True
    assert str(summary["time_to_target"]) == "≤ 2.0"
    assert run().summary(target=0.6)["reached_at_once"] is False
    assert run().summary()["reached_at_once"] is None
    folder = run().save(tmp_path / "run", target=0.4)
    saved = json.loads((folder / "summary.json").read_text())
    assert (saved["time_to_target"], saved["reached_at_once"]) == (2.0, True)
    assert History.load(folder).num_rounds == 6
    frame = table.comparison(
        {"fedrep": [run()], "fedavg": [run(name="fedavg")]}, 0.4, (0,)
    )
    assert frame["reached_at_once"].tolist() == [1, 1]
    advice = "evaluate each early round"
    target = table.Target(0.4, "as asked")
    assert advice in table.render(frame, target)
    frame = table.comparison({"fedrep": [run(eval_round=[1, 4, 6])]}, 0.4, (0,))
    text = table.render(frame, target)
    assert "maybe sooner" in text
    assert advice not in text  # no round is earlier


def test_megabytes_to_the_target_are_marked_as_the_time_beside_them():
    place = fairness.HEADER.index("MB to target")
    texts = {
        target: fairness.texts(fairness.shares([run()], target))[place]
        for target in (0.4, 0.6, 0.95)
    }
    assert texts == {0.4: "≤ 0.00", 0.6: "0.00", 0.95: "not reached"}


def of_groups(**fields):
    """Forty clients, the slow ones learn later: client i is right from evaluation i // 10 on."""
    clients = 40
    scores = np.arange(4)[:, None] >= np.arange(clients) // 10
    return run(
        clients=clients,
        client_time=1.0 + np.arange(clients),
        test_count=np.ones(clients, int),
        eval_round=[1, 2, 4, 6],
        accuracies={"fine_tune": scores.astype(float)},
        **fields,
    )


def test_each_group_has_its_own_time():
    history = of_groups()
    times = {of: history.time_to(0.6, of=of) for of in GROUPS if of != "fastest_quarter"}
    assert times == {
        "mean": 4.0,
        "worst_tenth": 6.0,
        "slowest_tenth": 6.0,
        "second_quarter": 2.0,
        "third_quarter": 4.0,
        "slowest_quarter": 6.0,
    }
    with pytest.warns(UserWarning, match="upper bound"):
        assert history.time_to(0.6, of="fastest_quarter") == 1.0
    sizes = {of: history.group_size(of) for of in GROUPS}
    assert sizes == dict.fromkeys(GROUPS, 10) | {
        "mean": 40,
        "worst_tenth": 4,
        "slowest_tenth": 4,
    }
    with pytest.raises(ValueError, match="of='fast'") as caught:
        history.time_to(0.6, of="fast")
    assert "\n" not in str(caught.value)


def test_a_tenth_of_few_clients_says_how_many_they_are():
    two = made_history(SCORES, [1.0] * 3, clients=20)
    text = fairness.texts(fairness.shares([two, two], 0.6))[0]
    assert text == "90.0 ± 0.0 (2 clients)"
    assert fairness.texts(fairness.shares([run()], 0.6))[0] == "90.0 (1 client)"
