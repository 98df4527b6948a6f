# %% [markdown]
# # SRPFL on linear models, from zero to the speed-up
#
# Linear models show the whole idea of SRPFL in a form that can be computed by hand: why clients that differ should
# still share something, what waiting for the slowest client costs, and why it pays to begin with a few fast clients.
#
# ## The model
#
# Client $i$ observes $y = \langle B^* w_i^*, x \rangle + z$ with $x \sim N(0, I_d)$ and noise $z \sim N(0, \sigma^2)$.
# The matrix $B^*$ of $d \times k$ orthonormal columns is the same for everybody: the *representation*. The *head*
# $w_i^*$ has only $k$ numbers and is the client's own.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt

import fedjax_srp as srp
from fedjax_srp import theory
from fedjax_srp.linear import draw_batch, orthonormalize, principal_angle_distance

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"

# %%
task = srp.data.linear_task(
    jax.random.key(0), num_clients=256, dim=40, rank=3, noise_std=0.5
)
task

# %% [markdown]
# ## Why share a representation?
#
# Suppose every client holds $m = 20$ samples. On its own it has to find $d = 40$ numbers from them, which is hopeless.
# If it knew $B^*$, it would have to find $k = 3$. Compare the mean error $\|\theta_i - B^* w_i^*\|^2$ of both; guessing
# $\theta_i = 0$ has error $\|w_i^*\|^2 = k = 3$.

# %%
SAMPLES = 20


def batch(i):
    client = task.train_client(i)
    return draw_batch(client.key, client, SAMPLES)


x, y = jax.vmap(batch)(jnp.arange(task.num_clients))  # (clients, m, d) and (clients, m)
truth = task.heads @ task.representation.T  # (clients, d)

alone = jax.vmap(lambda x, y: jnp.linalg.lstsq(x, y)[0])(x, y)
heads = jax.vmap(lambda x, y: jnp.linalg.lstsq(x @ task.representation, y)[0])(x, y)
shared = heads @ task.representation.T

for name, theta in (("alone", alone), ("with B*", shared)):
    print(f"{name:8s} {jnp.mean(jnp.sum((theta - truth) ** 2, axis=1)):.3f}")

# %% [markdown]
# The theory of least squares agrees: a head of $k$ numbers costs about $\sigma^2 k / (m - k - 1) = 0.047$. Nobody knows
# $B^*$, but 256 clients with 20 samples each know it together.
#
# ## One round by hand
#
# A round of FedRep (Algorithm 2 of the SRPFL paper) alternates between what is personal and what is shared. Every
# client fits its head exactly under the current $B$,
#
# $$w_i = \arg\min_w \|y_i - X_i B w\|^2,$$
#
# then takes one gradient step on the representation with this head held fixed,
#
# $$B_i = B + \frac{\eta}{m} X_i^T (y_i - X_i B w_i) w_i^T,$$
#
# and the server averages the $B_i$ and makes the columns orthonormal again.


# %%
def client_round(b, x, y, step_size=0.15):
    w = jnp.linalg.lstsq(x @ b, y)[0]
    return b + step_size / len(y) * jnp.outer(x.T @ (y - x @ b @ w), w)


@jax.jit
def one_round(b, x, y):
    return orthonormalize(
        jnp.mean(jax.vmap(client_round, in_axes=(None, 0, 0))(b, x, y), axis=0)
    )


# %% [markdown]
# The distance of two subspaces is the sine of the largest angle between them: 0 when they are equal, 1 when one has a
# direction perpendicular to the other. Start anywhere and repeat.

# %%
b = orthonormalize(jax.random.normal(jax.random.key(1), (task.dim, task.rank)))
for t in range(121):
    if t % 20 == 0:
        print(
            f"round {t:3d}: distance {principal_angle_distance(b, task.representation):.3f}"
        )
    b = one_round(b, x, y)

# %% [markdown]
# The distance falls by a constant factor per round and then stays at a *noise floor*, because the samples are finite
# and noisy. The package runs the same round for any number of clients with `LinearFedRep`, draws fresh samples in
# every round as the theory does, and keeps the time.
#
# ## Stragglers
#
# Let the times of the clients be exponential with mean 1, drawn anew in every round. A round that waits for everybody
# lasts as long as the slowest. The $i$-th fastest of $N$ needs
# $\mathbb{E}\,T_{(i)} = H_N - H_{N-i}$, with the harmonic numbers $H_n = 1 + 1/2 + \dots + 1/n$.

# %%
N = task.num_clients
times = np.sort(np.random.default_rng(0).exponential(size=(2000, N)), axis=1).mean(axis=0)
order = np.arange(1, N + 1)
expected = [theory.order_statistic_mean(int(i), N) for i in order]

figure, ax = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
ax.plot(order, times, ".", color=BLUE, label="mean of 2000 draws")
ax.plot(order, expected, color=ORANGE, label="$H_N - H_{N-i}$")
ax.set(xlabel="i-th fastest client", ylabel="expected time (time units)")
ax.grid(alpha=0.3)
_ = ax.legend(frameon=False)

# %%
for i in (16, 64, 128, 256):
    print(
        f"waiting for the {i:3d} fastest of 256 takes {theory.order_statistic_mean(i, N):.2f}"
    )

# %% [markdown]
# The fastest 16 answer about a hundred times sooner than everybody, and the last few clients cost most of the round. So
# why wait at all?
#
# ## Few clients are fast, many are accurate
#
# Averaging over $n$ clients divides the noise of the representation by $\sqrt{n}$. Here are runs with the fastest 16,
# the fastest 64 and all 256 clients of every round, over rounds and over simulated time.

# %%
STEP, ROUNDS = 0.15, 150
algorithm = srp.algorithms.LinearFedRep(task, step_size=STEP, samples_per_round=SAMPLES)
clock = srp.clocks.Dynamic(srp.clocks.Exponential(1.0))
common = {
    "clock": clock,
    "num_rounds": ROUNDS,
    "eval_every": ROUNDS,
    "evaluations": (),  # the distance is recorded in every round anyway
    "keys": jax.random.split(jax.random.key(2), 3),
    "progress": False,
}
runs = {
    f"{n} fastest": srp.simulate_seeds(
        algorithm, task, participation=srp.participation.Fastest(n), **common
    )
    for n in (16, 64, 256)
}

figure, (by_round, by_time) = plt.subplots(
    1, 2, figsize=(9, 3.6), sharey=True, layout="constrained"
)
for (label, histories), color in zip(runs.items(), (GREEN, BLUE, ORANGE), strict=True):
    for history in histories:
        by_round.plot(history.round, history.metrics["distance"], color=color, alpha=0.6)
        by_time.plot(
            history.elapsed(), history.metrics["distance"], color=color, alpha=0.6
        )
    by_round.plot([], [], color=color, label=label)
by_round.set(xlabel="round", ylabel="distance", yscale="log")
by_time.set(xlabel="simulated time (time units)", xscale="log")
for ax in (by_round, by_time):
    ax.grid(alpha=0.3)
_ = by_round.legend(frameon=False, title="one line a seed")

# %%
floors = {
    label: np.mean([history.metrics["distance"][-50:].mean() for history in histories])
    for label, histories in runs.items()
}
for label, floor in floors.items():
    print(f"{label:11s} floor {floor:.4f}")

# %% [markdown]
# Four times the clients, half the floor. Over rounds more clients are never worse. Over time the small group is faster
# at first: as long as the distance is far above its floor, it reaches each distance much sooner.
#
# ## Doubling
#
# SRPFL combines both. It begins with the $n_0$ fastest; whenever their floor is near, it doubles $n$ and goes on from
# the representation it has. Nothing else changes: SRPFL is `LinearFedRep` with another participation.

# %%
srpfl = srp.participation.Doubling(initial=16, rounds_per_stage=20)
runs = {
    "SRPFL": srp.simulate_seeds(algorithm, task, participation=srpfl, **common),
    "FedRep": runs["256 fastest"],
}
figure = srp.plots.metric_over_time(runs)
figure.axes[0].set_xscale("log")
figure.axes[0].set_xlim(0.5)
figure

# %%
floor = floors["256 fastest"]
for factor in (2.0, 1.3, 1.1):
    slow, fast = (
        np.mean(
            [history.time_to(factor * floor, metric="distance") for history in runs[name]]
        )
        for name in ("FedRep", "SRPFL")
    )
    print(
        f"to {factor:g} times FedRep's floor: FedRep {slow:6.1f}, SRPFL {fast:6.1f}, ratio {fast / slow:.2f}"
    )

# %% [markdown]
# ## What the theory predicts
#
# Theorem 4.5 of the paper bounds a round with $n$ participants:
#
# $$\mathrm{dist}^+ \le \mathrm{dist}\,\sqrt{1-a} + \frac{a}{\sqrt{(n/n_0)(1-a)}}, \qquad
# a = \tfrac12\,\eta\,E_0\,\sigma_{\min}^2.$$
#
# The first term contracts and the second is the noise, which falls with $\sqrt n$. The theorem ties $n_0$ to constants
# that nobody knows; here it is chosen such that the predicted floor with all clients is the measured one, so that the
# figure compares the *rate* of contraction and how floors fall from stage to stage. And sigma_min is that of all heads
# together, where the theorem takes the smallest over every set of at least $n_0$ clients: our $a$ is larger than the
# theorem's, and the curve falls faster than what it promises.

# %%
distance = float(np.mean([history.metrics["distance"][0] for history in runs["SRPFL"]]))
sigma_min = float(jnp.linalg.svd(task.heads, compute_uv=False)[-1] / np.sqrt(N))
a = theory.contraction_rate(STEP, distance, sigma_min)
initial = N * (floor / theory.fixed_point(a, 1.0)) ** 2
print(
    f"a = {a:.4f}: at least {1 - np.sqrt(1 - a):.1%} closer per round; effective n0 = {initial:.2g}"
)
srp.plots.contraction_over_run(runs["SRPFL"], a, initial)

# %% [markdown]
# The bound holds and is loose, as a worst case over all directions may be: the run contracts faster than predicted. Its
# shape is right, a straight line towards a floor that sinks by $\sqrt2$ with every doubling.
#
# Given $a$, the theory also says when to double: as soon as the larger cohort makes more progress per unit of *time*.
# `theory.schedule` computes the plan and `participation.doubling` follows it.

# %%
plan = theory.schedule(a=0.02, num_clients=256, initial=1, chat=1.1)
for n, rounds, time in zip(
    plan.cohort_sizes, plan.rounds_per_stage, plan.stage_times, strict=True
):
    print(f"n = {n:3d}: {rounds:3d} rounds of expected time {time:.3f}")
print(
    f"SRPFL {plan.time:.0f}, FedRep {theory.fedrep_time(0.02, 256, 1, 1.1):.0f} time units"
)
srp.participation.Doubling(initial=1, rounds_per_stage=plan.rounds_per_stage).name

# %% [markdown]
# The first stages get no rounds at all: their clients are fast, but their noise is above what is reached already.
#
# ## Speed-up against the number of clients
#
# FedRep's round costs $H_N \approx \ln N$, and the lower its floor lies the more rounds it needs, some $\ln N$ again.
# SRPFL spends most of its rounds on few clients, and theory lets its time grow with $\ln N$ only: the more clients, the
# more doubling helps. To see it, start from a random subspace, at a distance near 1 for every $N$. (The method of
# moments starts closer the more clients there are, which hides the effect.)

# %%
CLIENTS, FACTORS, INITIAL, SEEDS = (32, 128, 512), (2.0, 1.3), 16, 4
times = {"FedRep": [], "SRPFL": []}  # (clients, factors, seeds)
for n in CLIENTS:
    many = srp.data.linear_task(
        jax.random.key(3), num_clients=n, dim=40, rank=3, noise_std=0.5
    )
    random_start = srp.algorithms.LinearFedRep(
        many, step_size=STEP, samples_per_round=SAMPLES, start="random"
    )
    lengths = [
        20 + 60,
        *[20] * int(np.log2(n / INITIAL) - 1),
    ]  # 60 rounds to get under way
    common |= {
        "keys": jax.random.split(jax.random.key(n), SEEDS),
        "num_rounds": 220,
        "eval_every": 220,
    }
    fedrep = srp.simulate_seeds(random_start, many, **common)
    srpfl = srp.simulate_seeds(
        random_start,
        many,
        participation=srp.participation.Doubling(INITIAL, lengths),
        **common,
    )
    targets = [history.metrics["distance"][-30:].mean() for history in fedrep]
    for name, histories in (("FedRep", fedrep), ("SRPFL", srpfl)):
        times[name].append([
            [history.time_to(factor * target, metric="distance")
             for history, target in zip(histories, targets, strict=True)]
            for factor in FACTORS
        ])  # fmt: skip

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for (name, values), color in zip(times.items(), (ORANGE, BLUE), strict=True):
    values = np.array(values)[:, 1]
    left.plot(CLIENTS, values.mean(axis=1), "o-", color=color, label=name)
    left.plot(np.repeat(CLIENTS, SEEDS), values.ravel(), ".", color=color, alpha=0.4)
ratios = np.array(times["SRPFL"]) / np.array(times["FedRep"])
for i, (factor, color) in enumerate(zip(FACTORS, (GREEN, GREY), strict=True)):
    right.plot(
        CLIENTS,
        ratios[:, i].mean(axis=1),
        "o-",
        color=color,
        label=f"to {factor:g} times FedRep's floor",
    )
    right.plot(
        np.repeat(CLIENTS, SEEDS), ratios[:, i].ravel(), ".", color=color, alpha=0.4
    )
left.set(ylabel="time to 1.3 times FedRep's floor (time units)", ylim=(0, None))
right.set(ylabel="time of SRPFL / time of FedRep", ylim=(0, None))
for ax in (left, right):
    ax.set_xscale("log", base=2)
    ax.set_xlabel("clients N (dots: one seed)")
    ax.grid(alpha=0.3)
    _ = ax.legend(frameon=False)

# %% [markdown]
# FedRep's time grows with the number of clients and SRPFL's hardly does. Times to a target just above the floor vary
# from seed to seed, so that a trend needs many of them: `experiments/srpfl/linear_speedup.py` measures up to 65,536
# clients, beside the recursion of the theory and the bounds as the paper prints them.
