# %% [markdown]
# # Your own algorithm in 40 lines
#
# FedBABU (Oh, Kim and Yun, 2022) trains only the body of the network, under a head that stays as it was drawn; the head
# is trained when a client asks for its own model. The package has it as `srp.algorithms.FedBABU`; here it is written
# anew, whole, and compared with that one at the end.

# %%
from typing import Annotated

import jax
import numpy as np

import fedjax_srp as srp
from fedjax_srp.algorithms import local

srp.use_all_cores()


# %%
@srp.part
class MyFedBABU(srp.FederatedAlgorithm):
    """Only the body is trained; the head stays as it was drawn."""

    model: srp.models.SplitModel
    training: srp.Training = srp.Training(weighting="num_examples")
    fine_tune_epochs: Annotated[int, srp.AtLeast(0)] = 10

    def init(self, key, data):
        return self.model.init(key)  # body and head; the head never changes

    def client(self, key, params, state, examples, context):
        body = local.fit_representation(
            key,
            self.model,
            params.representation,
            params.head,
            examples,
            self.training.in_round(context),
        )
        return srp.ClientOutput(
            body.params, weight=self.training.weight(examples), loss=body.loss
        )

    def server(self, key, params, mean_body, context):
        return params._replace(representation=mean_body)

    @srp.evaluation
    def fine_tune(self, key, params, state, examples):
        tuning = self.training.alone(epochs=self.fine_tune_epochs)
        return local.with_tuned_head(key, self.model, params, examples, tuning)

    @srp.evaluation("global")
    def global_model(self, key, params, state, examples):
        return lambda x: self.model.logits(params, x)


# %% [markdown]
# A class with `@srp.part` is a value: its fields are the hyper-parameters, checked when it is built, and its methods
# are pure functions of ONE client and of the server. The engine gives them a client axis, a clock, any participation,
# checkpoints and devices. Floats among the fields, here the step size within `training`, are arguments of the compiled
# program: another value compiles nothing.

# %%
MyFedBABU(srp.models.MLP((8, 8), num_classes=10), srp.Training(srp.SGD(0.05), epochs=5))

# %% [markdown]
# Registering gives the method options, a label and a place in tables and figures; with these lines in a file,
# `fedjax-srp run --load my_methods.py --method my_fedbabu` works. The options are the fields, and those of `training`.

# %%
srp.methods.register("my_fedbabu", MyFedBABU, label="my FedBABU", source="Oh et al. 2022")
srp.methods.register(
    "my_fedbabu_doubling",
    MyFedBABU,
    participation="doubling",
    twin="my_fedbabu",
    label="my FedBABU, doubling",
)

data = srp.data.load("digits", num_clients=50, classes_per_client=3)
shared = {"hidden": (64, 32), "learning_rate": 0.05, "epochs": 5, "initial": 5}
names = ("my_fedbabu", "my_fedbabu_doubling", "srpfl")
methods = {name: srp.methods.get(name, dataset=data, shared=shared) for name in names}
keys = jax.random.split(jax.random.key(0), 3)
histories = {
    name: srp.simulate_seeds(
        method, data, num_rounds=40, eval_every=1, keys=keys, progress=False
    )
    for name, method in methods.items()
}
srp.plots.accuracy_over_time([history for runs in histories.values() for history in runs])

# %% [markdown]
# Does doubling help it? Simulated time until 80 % of the test points are right, at two costs of communication, three
# seeds each (inf: never). FedBABU is behind SRPFL here; its paper trains other networks on other data, for longer.

# %%
for name, runs in histories.items():
    times = {
        cost: [f"{run.time_to(0.8, communication=cost):.1f}" for run in runs]
        for cost in (0, 10)
    }
    print(
        f"{name:20s} final {np.mean([run.final_accuracy for run in runs]):.3f}  {times}"
    )

# %% [markdown]
# ## What could be wrong with it
#
# Mistakes against the contract are refused before the first round, in one line that names the function:


# %%
@srp.part
class Wrong(MyFedBABU):
    def server(self, key, params, mean_body, context):
        return mean_body  # and where is the head?


wrong = Wrong(srp.models.MLP((8, 8), num_classes=10, hidden=(16,)))
try:
    srp.simulate(wrong, data, num_rounds=1, key=jax.random.key(0), progress=False)
except ValueError as error:
    print(error)

# %% [markdown]
# Mistakes in the mathematics are not. Compare with a limit you know: with an empty head there is nothing to freeze, and
# FedBABU is FedAvg, bit for bit, because equal work draws equal batches. Or with somebody else's code: here the
# package's own.


# %%
def equal(ours, theirs):
    """Whether two runs ended with the same accuracies, bit for bit."""
    runs = [
        srp.simulate(
            algorithm,
            data,
            num_rounds=3,
            key=jax.random.key(0),
            evaluations=("global",),
            progress=False,
        )
        for algorithm in (ours, theirs)
    ]
    return np.array_equal(runs[0].accuracy, runs[1].accuracy)


cut = srp.models.MLP((8, 8), num_classes=10, hidden=(16,))
uncut = srp.models.MLP((8, 8), num_classes=10, hidden=(16,), cut=None)
training = srp.Training(weighting="num_examples")
{
    "FedAvg, nothing frozen": equal(
        MyFedBABU(uncut), srp.algorithms.FedAvg(uncut, training)
    ),
    "the package's FedBABU": equal(MyFedBABU(cut), srp.algorithms.FedBABU(cut, training)),
}

# %% [markdown]
# *Writing an algorithm* in the manual has the contract, a skeleton with personal state, and the pitfalls.
