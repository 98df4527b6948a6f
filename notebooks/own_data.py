# %% [markdown]
# # Your own data, your own model
#
# Twelve clinics look at the same thirty measurements of tumours. Large tumours end up in some clinics, small ones in
# others, so clinics differ: a model of its own may serve each better than one for all. This page goes from a table to
# that answer, with a network that the package does not have.

# %%
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import fedjax_srp as srp

srp.use_all_cores()

# %% [markdown]
# ## From a table to a federation
#
# You need arrays and, for each client, the numbers of its rows. Clients may be of any size.

# %%
table = load_breast_cancer()
inputs = ((table.data - table.data.mean(axis=0)) / table.data.std(axis=0)).astype(
    np.float32
)
labels = table.target  # 0 malignant, 1 benign

rng = np.random.default_rng(0)
size = inputs[:, 0] + 0.5 * rng.normal(
    size=len(inputs)
)  # the radius decides, not alone, which clinic it is
clinic = np.searchsorted(np.quantile(size, np.linspace(0, 1, 13)[1:-1]), size)
is_test = rng.random(len(inputs)) < 0.3


def federation(labels):
    return srp.data.from_arrays(
        inputs,
        labels,
        inputs,
        labels,
        train_indices=[np.flatnonzero((clinic == i) & ~is_test) for i in range(12)],
        test_indices=[np.flatnonzero((clinic == i) & is_test) for i in range(12)],
        name="clinics",
    )


data = federation(labels)
data

# %% [markdown]
# The same from a file, which the command line reads too (`fedjax-srp run --dataset clinics.npz`): a column says who
# owns a row.

# %%
folder = Path(tempfile.mkdtemp())
np.savez(
    folder / "clinics.npz",
    x_train=inputs[~is_test],
    y_train=labels[~is_test],
    x_test=inputs[is_test],
    y_test=labels[is_test],
    user_train=clinic[~is_test],
    user_test=clinic[is_test],
)
srp.data.load(folder / "clinics.npz")

# %% [markdown]
# ## A model of your own
#
# A model is a list of named layers of flax. Where it is cut, the representation ends and the head begins: FedRep shares
# the representation and keeps the head personal.


# %%
class Residual(nn.Module):
    """x + W2 relu(W1 x)."""

    width: int

    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(x.shape[-1])(nn.relu(nn.Dense(self.width)(x)))


layers = [
    srp.models.Layer("project", nn.Dense(16), nn.relu),
    srp.models.Layer("block", Residual(32)),
    srp.models.Layer("out", nn.Dense(2)),
]
model = srp.models.Split((30,), 2, layers, name="residual")
{
    name: jax.tree.map(np.shape, part)
    for name, part in model.init(jax.random.key(0))._asdict().items()
}

# %% [markdown]
# ## Alone, together, or both?
#
# Five seeds each, as one compiled program per method.

# %%
algorithms = srp.algorithms
sgd = srp.SGD(0.05, momentum=0.5)
rivals = {
    "alone": algorithms.LocalOnly(model, srp.Training(sgd)),
    "one model for all": algorithms.FedAvg(model, srp.Training(sgd)),
    "shared representation, own heads": algorithms.FedRep(
        model, srp.Training(sgd), head_epochs=5
    ),
}
keys = jax.random.split(jax.random.key(1), 5)


def compare(data):
    options = {
        "num_rounds": 30,
        "eval_every": 30,
        "keys": keys,
        "evaluations": "all",
        "progress": False,
    }
    histories = {
        name: srp.simulate_seeds(algorithm, data, **options)
        for name, algorithm in rivals.items()
    }
    for name, runs in histories.items():
        final = [run.final_accuracy for run in runs]
        worst = [run.worst_decile[-1] for run in runs]
        print(
            f"{name:34s} accuracy {np.mean(final):.3f} ± {np.std(final):.3f}   worst clinic {np.mean(worst):.3f}"
        )
    return histories


histories = compare(data)

# %% [markdown]
# One model for all wins: personalization is no free gain. The clinics see different patients, but the same measurements
# mean the same everywhere. Let them disagree about that: every second clinic codes its outcomes the other way round.

# %%
histories = compare(federation(np.where(clinic % 2, 1 - labels, labels)))

# %% [markdown]
# A mean hides who wins and who loses. Every client's accuracy at every evaluation is in the history; a clinic has few
# test rows, and the differences below are as coarse as that.

# %%
pd.DataFrame(
    {
        name: np.mean([run.accuracy[-1] for run in runs], axis=0)
        for name, runs in histories.items()
    },
    index=pd.Index(range(12), name="clinic"),
).assign(test_rows=data.test_counts).round(2)

# %% [markdown]
# Which model was judged? Each evaluation has a name; the first is the method's default, and `evaluations="all"` kept
# the others. Here FedRep's clients are judged with the head that they trained themselves, and with the mean head tuned
# on them:

# %%
run = histories["shared representation, own heads"][0]
{name: run.mean_scores(name)[-1].round(3) for name in run.accuracies}
