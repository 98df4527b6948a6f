"""The template that authors copy passes the tests of every algorithm, and a copy under another name runs."""

import doctest
import importlib
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_common as common
from algorithm_table import TABLE, small
from reference.small import KEY, Run, assert_close, changed, clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp.algorithms import _template
from fedjax_srp.algorithms._template import Template

ROW = small(Template, {"penalty": -0.1}, weighting="num_examples")
INHERITED = (
    common.test_protocol,
    common.test_built_again_it_is_equal_and_its_floats_are_its_leaves,
    common.test_fine_tuning_may_have_its_own_optimizer,
    common.test_states_keep_their_types_and_nothing_is_traced_twice,
    common.test_training_does_something_to_server_and_clients,
    common.test_the_same_run_has_the_same_bits,
    common.test_chunks_and_devices_do_not_matter,
    common.test_the_order_of_the_cohort_does_not_matter,
    common.test_padding_of_examples_does_not_matter,
    common.test_clients_that_take_no_part_are_neither_read_nor_written,
)


@pytest.fixture(autouse=True, scope="module")
def _has_a_row():
    """Add the template to the table for the tests of this file."""
    TABLE["template"] = ROW
    yield
    del TABLE["template"]


@pytest.mark.parametrize("inherited", INHERITED, ids=lambda test: test.__name__.removeprefix("test_"))
def test_the_template_passes_the_common_tests(inherited):
    takes_a_layout = "layout_name" in inspect.signature(inherited).parameters
    inherited("template", *common.OTHERS[:1] if takes_a_layout else ())  # `common.spread` skips the other layouts


def test_a_negative_penalty_is_refused():
    common.test_refusals_name_argument_and_value(ROW.make, {"penalty": -0.1})


def test_documentation_names_every_field_and_its_examples_run():
    common.check_documentation(Template)
    common.check_examples(Template)


def test_a_round_of_one_client_and_one_batch_is_a_step_of_gradient_descent():
    """(w, b) <- (w, b) - eta grad of the model's loss and the penalty, without the package's loops."""
    with jax.enable_x64(True):
        [client] = clients_of((6,), (2,), dtype=np.float64)
        split_model, eta, penalty = model(dtype=jnp.float64), 0.3, 0.5
        split_model = changed(split_model, loss=lambda outputs, y: 2.0 * srp.models.cross_entropy(outputs, y))
        algorithm = Template(split_model, srp.Training(srp.SGD(eta), batch_size=6), penalty=penalty)
        run = Run(algorithm, federation([client]), srp.participation.Full())
        params, bias = split_model.init(KEY), jnp.asarray([0.3, -0.2, 0.1, 0.0])
        start = run.host_state()
        run.place(
            start._replace(
                server=start.server._replace(params=params),
                clients=_template.TemplateClientState(np.asarray(bias)[None]),
            )
        )
        run.rounds()

        def objective(params, bias):
            log_p = jax.nn.log_softmax(split_model.logits(params, jnp.asarray(client.x)) + bias[None])
            return -2.0 * log_p[np.arange(6), client.y].mean() + penalty / 2 * (bias**2).sum()

        by_hand = jax.tree.map(lambda p, g: p - eta * g, (params, bias), jax.grad(objective, (0, 1))(params, bias))
        state = run.host_state()
        assert_close(state.server.params, by_hand[0], 1e-9)
        assert_close(state.clients.bias[0], by_hand[1], 1e-9)


def test_a_copy_under_another_name_runs(tmp_path, monkeypatch):
    code = Path(_template.__file__).read_text()
    (tmp_path / "my_method.py").write_text(code.replace("template", "my_method").replace("Template", "MyMethod"))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_method")
    assert doctest.testmod(module).failed == 0
    algorithm = module.MyMethod(model())
    assert algorithm.name == "my_method"
    history = srp.simulate(algorithm, ROW.data(), num_rounds=1, key=KEY, progress=False)
    assert history.name == "my_method"
