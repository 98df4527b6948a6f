# %% [markdown]
# # Quickstart
#
# Fifty clients hold handwritten digits, each only three of the ten classes. They differ in speed: the time of a round
# is the time of its slowest participant. How long until every client has a good model of its own?

# %%
import jax

import fedjax_srp as srp

srp.use_all_cores()

# %%
data = srp.data.load("digits", num_clients=50, classes_per_client=3)
data

# %% [markdown]
# A method is an algorithm with a participation policy. FedRep trains a shared representation with everybody; SRPFL does
# the same with the 5 fastest clients, then 10, 20, 40 and all 50.

# %%
names = ("srpfl", "fedrep", "flanp_fedavg", "fedavg")
options = {
    "hidden": (64, 32),
    "learning_rate": 0.05,
    "epochs": 5,
    "initial": 5,
}  # each takes its own
methods = [srp.methods.get(name, dataset=data, shared=options) for name in names]
clock = srp.clocks.Fixed(srp.clocks.Exponential(1.0))

histories = [
    srp.simulate(
        method,
        data,
        clock=clock,
        num_rounds=60,
        eval_every=2,
        key=jax.random.key(0),
        progress=False,
    )
    for method in methods
]
srp.plots.accuracy_over_time(histories)

# %% [markdown]
# Every method met the same stragglers, because they come from the same key. A history can add any communication cost
# afterwards, without running anything again.

# %%
for history in histories:
    times = [f"{history.time_to(0.9, communication=cost):8.1f}" for cost in (0, 10, 100)]
    print(
        f"{history.name:14s} final {history.final_accuracy:.3f}  time to 0.90 at C = 0, 10, 100: {' '.join(times)}"
    )

# %% [markdown]
# Does starting with the fast clients hurt the slow ones? Final accuracy by quartile of speed, fastest first:

# %%
for history in histories[:2]:
    print(
        f"{history.name:8s}",
        history.speed_quartiles().round(3),
        " worst tenth of the clients:",
        history.worst_decile[-1].round(3),
    )

# %% [markdown]
# ## Your own arrays
#
# Any arrays will do, with a list of example indices for each client. Clients may have any number of examples.

# %%
import numpy as np

rng = np.random.default_rng(0)
centres = rng.normal(size=(4, 8))
labels = rng.integers(0, 4, 400)
inputs = (centres[labels] + 0.5 * rng.normal(size=(400, 8))).astype(np.float32)

owners = np.array_split(
    np.arange(300), np.cumsum([5, 20, 75, 100])
)  # five clients with 5, 20, 75, 100 and 100 examples
own_data = srp.data.from_arrays(
    inputs,
    labels,
    inputs,
    labels,
    train_indices=owners,
    test_indices=np.array_split(np.arange(300, 400), 5),
)
model = srp.models.MLP((8,), num_classes=4, hidden=(16,))
history = srp.simulate(
    srp.algorithms.FedRep(model, srp.Training(srp.SGD(0.1))),
    own_data,
    participation=srp.participation.Fastest(3),
    clock=srp.clocks.Dynamic(srp.clocks.Exponential(srp.clocks.Uniform(0.2, 1.0))),
    num_rounds=20,
    eval_every=5,
    key=jax.random.key(1),
    evaluations="all",
    progress=False,
)
history.to_frame().tail(3)

# %% [markdown]
# ## Many seeds at once
#
# `simulate_seeds` runs a batch of keys as one compiled program.

# %%
seeds = srp.simulate_seeds(
    methods[0],
    data,
    num_rounds=40,
    eval_every=2,
    keys=jax.random.split(jax.random.key(2), 4),
    progress=False,
)
srp.plots.accuracy_over_time(seeds)
