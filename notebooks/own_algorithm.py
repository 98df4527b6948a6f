# %% [markdown]
# # Your own algorithm in 40 lines
#
# FedBABU (Oh, Kim and Yun, 2022) trains only the body of the network, under a head that stays as it was drawn; the head
# is trained when a client asks for its own model. The package does not have it. Here it is, whole.

# %%
import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp.algorithms import local

srp.use_all_cores()


# %%
@srp.recorded  # the arguments stand in the record of every run
def fedbabu(model, optimizer=None, batch_size: int = 10, local_epochs: int = 1, fine_tune_epochs: int = 10):
    training = local.local_training(optimizer, batch_size, local_epochs)
    tuning = local.fine_tuning(None, optimizer, batch_size, fine_tune_epochs)

    def init(key, data):
        return model.init(key)  # body and head; the head never changes

    def client(key, params, state, examples, context):
        body = local.fit_representation(
            key, model, params.representation, params.head, examples, training.in_round(context)
        )
        return srp.ClientOutput(body, weight=local.client_weight("num_examples", examples))

    def server(key, params, mean_body, context):
        return params._replace(representation=mean_body)

    def tuned(key, params, state, examples):
        return local.with_tuned_head(key, model, params, examples, tuning)

    return srp.FederatedAlgorithm(
        name="fedbabu",
        init=init,
        init_client=lambda key, server, examples: (),
        round=srp.Phase(lambda server, context: server, client, server),
        evaluations={
            "fine_tune": tuned,
            "global": lambda key, server, state, examples: lambda x: model.logits(server, x),
        },
    )


# %% [markdown]
# These are functions of ONE client and of the server. The engine gives them a client axis, a clock, any participation,
# checkpoints and devices. Registered, the method has options, a label and a place in tables and figures; a file with
# these lines makes `fedjax-srp run --load my_methods.py --method fedbabu` work.

# %%
srp.methods.register("fedbabu", fedbabu, label="FedBABU", source="Oh et al. 2022")
srp.methods.register("fedbabu_doubling", fedbabu, participation="doubling", twin="fedbabu", label="FedBABU, doubling")

data = srp.data.load("digits", num_clients=50, classes_per_client=3)
shared = {"hidden": (64, 32), "learning_rate": 0.05, "local_epochs": 5, "initial": 5}
names = ("fedbabu", "fedbabu_doubling", "srpfl")
methods = {name: srp.methods.get(name, dataset=data, shared=shared) for name in names}
keys = jax.random.split(jax.random.key(0), 3)
histories = {
    name: srp.simulate_seeds(method, data, num_rounds=40, eval_every=4, keys=keys, progress=False)
    for name, method in methods.items()
}
srp.plots.accuracy_over_time([history for runs in histories.values() for history in runs])

# %% [markdown]
# Does doubling help it? Simulated time until 80 % of the test points are right, at two costs of communication, three
# seeds each (inf: never). FedBABU is behind SRPFL here; its paper trains other networks on other data, for longer.

# %%
for name, runs in histories.items():
    times = {cost: [f"{run.time_to(0.8, communication=cost):.1f}" for run in runs] for cost in (0, 10)}
    print(f"{name:18s} final {np.mean([run.final_accuracy for run in runs]):.3f}  {times}")

# %% [markdown]
# ## What could be wrong with it
#
# Mistakes against the contract are refused before the first round, in one line that names the function:

# %%
wrong = fedbabu(srp.models.mlp((8, 8), num_classes=10, hidden=(16,)))
wrong = wrong._replace(round=wrong.round._replace(server=lambda key, params, mean_body, context: mean_body))
try:
    srp.simulate(wrong, data, num_rounds=1, key=jax.random.key(0), progress=False)
except ValueError as error:
    print(error)

# %% [markdown]
# Mistakes in the mathematics are not. Compare with a limit you know: with an empty head there is nothing to freeze, and
# FedBABU is FedAvg, bit for bit, because equal work draws equal batches.

# %%
uncut = srp.models.mlp((8, 8), num_classes=10, hidden=(16,), cut=None)
ours, theirs = (
    srp.simulate(algorithm, data, num_rounds=3, key=jax.random.key(0), evaluations=("global",), progress=False)
    for algorithm in (fedbabu(uncut), srp.algorithms.fedavg(uncut, client_weighting="num_examples"))
)
(
    np.array_equal(ours.accuracy, theirs.accuracy),
    [
        bool((a == b).all())
        for a, b in zip(jax.tree.leaves(ours.server_state), jax.tree.leaves(theirs.server_state), strict=True)
    ],
)

# %% [markdown]
# *Writing an algorithm* in the manual has the contract, a skeleton with personal state, and the pitfalls.
