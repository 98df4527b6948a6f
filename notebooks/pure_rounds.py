# %% [markdown]
# # Rounds as pure functions
#
# `srp.simulate` is a loop on the host around a compiled round: it evaluates, saves, stops and reports. `srp.Simulation`
# is the same round without that loop, as three pure functions: `init`, `step` and `score`. JAX's transformations then
# apply to federated learning: `vmap` runs a batch of seeds and rates, a `while_loop` ends at a target, and a result has
# a gradient with respect to a hyper-parameter.

# %%
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt

import fedjax_srp as srp

jax.config.update(
    "jax_enable_x64", True
)  # for the comparison with finite differences at the end

data = srp.data.load("digits", num_clients=12, classes_per_client=4)
model = srp.models.MLP((8, 8), num_classes=10, hidden=(8,), dtype=jnp.float64)
doubling = srp.participation.Doubling(initial=3, rounds_per_stage=2)

# %% [markdown]
# ## Three functions
#
# `init` makes a state from a key, `step` takes a state to the next one and says what the round was, `score` judges
# every client. A state holds everything that the next round needs, its key included. The same key gives the rounds that
# `simulate` computes.


# %%
@jax.jit
def one_round(simulation, state):
    print("JAX compiles a program")  # seen when it does, and never when the program runs
    return simulation.step(state)


simulation = srp.Simulation(
    srp.algorithms.FedAvg(model, srp.Training(srp.SGD(0.1))), data, participation=doubling
)
state = simulation.init(jax.random.key(0))
for _ in range(5):
    state, info = one_round(simulation, state)
    print(
        f"round {state.round}: {info.cohort_size:2d} clients, {info.compute_time:.2f} time units"
    )
print("accuracies", simulation.score(state).round(2))

# %% [markdown]
# The simulation is an argument of the program, and a pytree whose leaves are its numbers and its data. With another
# step size nothing is compiled again:

# %%
faster = srp.Simulation(
    srp.algorithms.FedAvg(model, srp.Training(srp.SGD(0.2))), data, participation=doubling
)
state, info = one_round(faster, state)
print(f"round {state.round}: {info.cohort_size} clients")

# %% [markdown]
# ## Seeds and rates at once
#
# A run is a `scan` over rounds. As a function of a rate and a key it goes through `vmap` twice, and twelve runs are one
# program.


# %%
def curve(rate, key):
    algorithm = srp.algorithms.FedAvg(model, srp.Training(srp.SGD(rate)))
    simulation = srp.Simulation(algorithm, data, participation=doubling)

    def round(state, _):
        state, info = simulation.step(state)
        return state, (info.compute_time, jnp.mean(simulation.score(state)))

    return jax.lax.scan(round, simulation.init(key), length=15)[1]


rates, keys = jnp.array([0.02, 0.05, 0.1, 0.2]), jax.random.split(jax.random.key(1), 3)
seeds_of_rates = jax.vmap(jax.vmap(curve, in_axes=(None, 0)), in_axes=(0, None))
seconds, accuracy = jax.jit(seeds_of_rates)(rates, keys)  # (rates, seeds, rounds)

figure, ax = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
for rate, runs, color in zip(
    rates, accuracy, ("#56B4E9", "#0072B2", "#009E73", "#D55E00"), strict=True
):
    ax.plot(jnp.arange(1, 16), runs.mean(0), color=color, label=f"{rate:g}")
    ax.fill_between(
        jnp.arange(1, 16), runs.min(0), runs.max(0), color=color, alpha=0.15, linewidth=0
    )
ax.set(xlabel="round", ylabel="mean accuracy of the clients")
ax.grid(alpha=0.3)
_ = ax.legend(frameon=False, title="step size; band: lowest to highest seed")

# %% [markdown]
# ## Until a target, inside the program
#
# `while_loop` checks the scores after every round, without returning to the host. It carries the simulated time along,
# so the function returns what the papers measure: the time until the clients are good enough.


# %%
def time_to(target, key, participation):
    algorithm = srp.algorithms.FedAvg(model, srp.Training(srp.SGD(0.1)))
    simulation = srp.Simulation(algorithm, data, participation=participation)

    def goes_on(carry):
        state, _ = carry
        return (jnp.mean(simulation.score(state)) < target) & (state.round < 100)

    def round(carry):
        state, elapsed = carry
        state, info = simulation.step(state)
        return state, elapsed + info.compute_time

    state, elapsed = jax.lax.while_loop(goes_on, round, (simulation.init(key), 0.0))
    return state.round, elapsed


for name, policy in {"doubling": doubling, "everybody": srp.participation.Full()}.items():
    rounds, elapsed = jax.jit(time_to)(0.7, jax.random.key(2), policy)
    print(f"{name:9s} 70 % after {rounds} rounds, {elapsed:.1f} time units")

# %% [markdown]
# ## The gradient of a run
#
# How does the loss after six rounds change with the server's step size in FedGATE? Accuracies have no slope. So
# `srp.data.training_loss` wraps the data: scores become the losses of the training examples.
#
# `jax.jacfwd` goes forward through the rounds as they are. `jax.grad` goes backward and needs loops with a known bound,
# which `reverse_mode=True` gives them. Use forward for one number, backward for many.

# %%
losses = srp.data.training_loss(data, model.loss)


def final_loss(server_step_size, reverse_mode=False):
    algorithm = srp.algorithms.FedGATE(
        model, srp.Training(srp.SGD(0.1)), server_step_size=server_step_size
    )
    simulation = srp.Simulation(
        algorithm, losses, participation=doubling, reverse_mode=reverse_mode
    )
    state = simulation.init(jax.random.key(0))
    state, _ = jax.lax.scan(lambda state, _: simulation.step(state), state, length=6)
    return jnp.mean(simulation.score(state))


forward = jax.jit(lambda gamma: (final_loss(gamma), jax.jacfwd(final_loss)(gamma)))
backward = jax.jit(jax.grad(lambda gamma: final_loss(gamma, reverse_mode=True)))
loss, slope = forward(1.0)
difference = (forward(1.0 + 1e-6)[0] - forward(1.0 - 1e-6)[0]) / 2e-6
print(
    f"loss {loss:.4f}\njacfwd      {slope:.7f}\ngrad        {backward(1.0):.7f}\ndifferences {difference:.7f}"
)

# %% [markdown]
# All three agree. With the slope at hand the step size can be learnt, here by a few steps of gradient descent on the
# loss after six rounds:

# %%
gamma = 1.0
for _ in range(5):
    loss, slope = forward(gamma)
    print(f"server step size {gamma:.3f}: loss {loss:.4f}, slope {slope:+.4f}")
    gamma = gamma - 0.5 * slope

# %% [markdown]
# The slope belongs to this key, these rounds and these clients: it tunes this run. Use `simulate` for what a pure
# function cannot do: several devices, checkpoints, progress, the record of a run.
