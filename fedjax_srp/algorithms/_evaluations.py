"""How methods with a global model are judged: as it is, and "+FT", tuned on the client."""

from __future__ import annotations

from typing import Any

from fedjax_srp._checks import check_choice
from fedjax_srp.algorithms.local import LocalTraining, example_loss, local_sgd, with_tuned_head
from fedjax_srp.base import Examples, Key, Personalize, named_key
from fedjax_srp.models.split import SplitModel

EVALUATIONS = ("global", "fine_tune", "fine_tune_all")


def global_evaluations(model: SplitModel, tuning: LocalTraining, evaluation: str = "global") -> dict[str, Personalize]:
    """Evaluations of `server.params`: `global`, `fine_tune` (the head) and `fine_tune_all` (all layers).

    Args:
        model: where it is cut matters to `fine_tune` alone.
        tuning: how the client fine-tunes, see `local.fine_tuning`.
        evaluation: the default one, which comes first.

    Raises:
        ValueError: no such evaluation.
    """
    check_choice("evaluation", evaluation, EVALUATIONS)
    loss = example_loss(model)

    def as_it_is(key: Key, server: Any, state: Any, examples: Examples):
        """The global model as it is."""
        return lambda x: model.logits(server.params, x)

    def fine_tune(key: Key, server: Any, state: Any, examples: Examples):
        """The global model, its head (the last layer) trained on the client."""
        return with_tuned_head(key, model, server.params, examples, tuning)

    def fine_tune_all(key: Key, server: Any, state: Any, examples: Examples):
        """The global model, all layers trained on the client."""
        params = local_sgd(named_key(key, "local"), loss, server.params, (), examples, tuning)
        return lambda x: model.logits(params, x)

    made: dict[str, Personalize] = dict(zip(EVALUATIONS, (as_it_is, fine_tune, fine_tune_all), strict=True))
    return {evaluation: made.pop(evaluation)} | made
