"""The template that authors copy: a round by hand, and a copy under another name runs."""

import doctest
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from algorithm_table import classification
from reference.small import KEY, Run, assert_close, changed, clients_of, federation, model

import fedjax_srp as srp
from fedjax_srp.algorithms import _template
from fedjax_srp.algorithms._template import Template


def test_a_round_of_one_client_and_one_batch_is_a_step_of_gradient_descent():
    """(w, b) <- (w, b) - eta grad of the model's loss and the penalty, without the package's loops."""
    with jax.enable_x64(True):
        [client] = clients_of((6,), (2,), dtype=np.float64)
        split_model, eta, penalty = model(dtype=jnp.float64), 0.3, 0.5
        split_model = changed(
            split_model,
            loss=lambda outputs, y: 2.0 * srp.models.cross_entropy(outputs, y),
        )
        algorithm = Template(
            split_model, srp.Training(srp.SGD(eta), batch_size=6), penalty=penalty
        )
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
            log_p = jax.nn.log_softmax(
                split_model.logits(params, jnp.asarray(client.x)) + bias[None]
            )
            return (
                -2.0 * log_p[np.arange(6), client.y].mean()
                + penalty / 2 * (bias**2).sum()
            )

        by_hand = jax.tree.map(
            lambda p, g: p - eta * g,
            (params, bias),
            jax.jit(jax.grad(objective, (0, 1)))(params, bias),
        )
        state = run.host_state()
        assert_close(state.server.params, by_hand[0], 1e-9)
        assert_close(state.clients.bias[0], by_hand[1], 1e-9)


def test_a_copy_under_another_name_runs(tmp_path, monkeypatch):
    code = Path(_template.__file__).read_text()
    (tmp_path / "my_method.py").write_text(
        code.replace("template", "my_method").replace("Template", "MyMethod")
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_method")
    assert doctest.testmod(module).failed == 0
    algorithm = module.MyMethod(model())
    assert algorithm.name == "my_method"
    history = srp.simulate(
        algorithm, classification(), num_rounds=1, key=KEY, progress=False
    )
    assert history.name == "my_method"
