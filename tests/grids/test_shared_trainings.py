"""Runs of a grid that differ only in evaluation share a training."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference.small import refused
from small_grid import OPTIONS, grid, members_of, planned

import fedjax_srp as srp
from fedjax_srp import ClientOutput, FederatedAlgorithm
from fedjax_srp.driver import simulate


@pytest.fixture
def trained(monkeypatch):
    """Number of trainings of each program, in the order of the programs."""
    found = []

    def counted(train):
        def call(**given):
            found.append(len(given.get("keys", [0])))
            return train(**given)

        return call

    monkeypatch.setattr(
        "fedjax_srp.lab.grids.work.simulate_seeds", counted(simulate.simulate_seeds)
    )
    for place in ("grids.work", "runs.folder"):
        monkeypatch.setattr(
            f"fedjax_srp.lab.{place}.simulate", counted(simulate.simulate)
        )
    return found


JUDGED = {
    "method": ["fedavg", "fedavg_ft"],
    "evaluations": [["fine_tune_all", "global"], ["fine_tune"]],
}


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 16])
def test_runs_that_differ_only_in_evaluation_share_a_training(tmp_path, trained, batch):
    """Their histories and records equal those of separate grids."""
    names = ("fedavg", "fedavg_ft")
    axes = {"method": [*names, "flanp_fedavg_ft"], "seed": [0, 1]}
    options = {"initial": 2}
    found = grid(tmp_path / "all", axes, options=options, batch=batch)
    trainings = [1, 1, 1, 1] if batch == 1 else [2, 2]
    assert sorted(trained) == trainings
    assert members_of(tmp_path / "all") == ([2, 2, 1, 1] if batch == 1 else [4, 2])
    finals = set()
    for name in names:
        alone = grid(tmp_path / name, {"method": [name]}, options={"seed": 1})
        (expected,) = alone.histories.values()
        history = found.histories[f"{name}, seed=1"]
        np.testing.assert_array_equal(history.compute_time, expected.compute_time)
        np.testing.assert_allclose(history.accuracy, expected.accuracy, atol=1e-5)
        assert [*history.accuracies] == [*expected.accuracies]
        machine = history.config["machine"]
        assert history.config == {**expected.config, "machine": machine}
        finals.add(history.final_accuracy)
    assert len(finals) == 2
    trained.clear()
    longer = grid(
        tmp_path / "all", axes, options=options | {"num_rounds": 3}, batch=batch
    )
    assert {history.num_rounds for history in longer.histories.values()} == {3}
    assert sorted(trained) == trainings


def test_several_evaluations_share_a_training_and_an_unknown_one_is_refused(
    tmp_path, trained, capsys
):
    found = srp.grid(axes=JUDGED, options=OPTIONS, out=tmp_path)
    assert not found.failures
    assert trained == [1]
    assert "4 to run as 1 program" in capsys.readouterr().err
    for name, history in found.histories.items():
        several = ["fine_tune_all", "global"] if "global" in name else ["fine_tune"]
        assert [*history.accuracies] == history.config["evaluations"] == several
        own = "fine_tune" if name.startswith("fedavg_ft") else "global"
        assert history.method.algorithm.evaluation == own
    assert len({folder.name for folder in found.folders.values()}) == 4
    with refused("fedavg, evaluations=nope: unknown .*; fedavg_ft, evaluations=nope"):
        grid(tmp_path, JUDGED | {"evaluations": [["global"], ["nope"]]})


@pytest.mark.parametrize(
    "options", [{"target": 0.01}, {"evaluations": []}, {"tensorboard": "logs"}]
)
def test_some_evaluations_prevent_a_shared_training(tmp_path, options):
    """Runs with a target, without evaluations, or with a log do not share a training."""
    axes = {"method": ["fedavg", "fedavg_ft"], "seed": [0, 1]}
    assert max(len(unit.members) for unit in planned(tmp_path, axes)) == 4
    for unit in planned(tmp_path, axes, **options):
        assert len(unit.trainings()) == len(unit.members) <= 2
    (first, second) = planned(
        tmp_path / "time", axes, time_limit=5.0
    )  # which ends them together
    assert [len(first.members), len(first.trainings()), len(second.members)] == [2, 1, 2]


@srp.part
class Counter(FederatedAlgorithm):
    """Counts rounds in steps."""

    model: srp.models.SplitModel
    step: int | float = 1
    evaluation: int = 1  # means something else than FedAvg's

    def init(self, key, data):
        return jnp.zeros(())

    def client(self, key, broadcast, state, data, context):
        return ClientOutput(broadcast + 1.0 * self.step * self.evaluation)

    def server(self, key, server, mean, context):
        return mean

    def metrics(self, server, data):
        return {"count": server}

    @srp.evaluation
    def zero(self, key, server, state, data):
        return lambda x: jnp.zeros((x.shape[0], 10))


@pytest.mark.short("objects-step", "texts-evaluation")
@pytest.mark.parametrize("field", ["step", "evaluation"])
@pytest.mark.parametrize("as_objects", [True, False], ids=["objects", "texts"])
def test_integers_and_a_users_field_called_evaluation_have_trainings_of_their_own(
    tmp_path, field, as_objects
):
    srp.methods.register("counter", Counter)
    model = srp.models.MLP((8, 8), 10, (4,))
    data = srp.data.load("digits", num_clients=6, classes_per_client=3)
    axes = {"method": ["counter"], field: [1, 2]}
    if as_objects:
        axes = {"method": {str(n): Counter(model, **{field: n}) for n in (1, 2)}}
    options = {"data": data, "num_rounds": 3}
    found = srp.grid(axes=axes, options=options, out=tmp_path, batch=16, progress=False)
    counts = [history.metrics["count"][-1] for history in found.histories.values()]
    assert counts == [3, 6]
