# %% [markdown]
# # Why does FedAvg learn a representation?
#
# FedAvg trains one model for everybody, and no layer of it is meant to be shared more than another. Still its first
# layers are good for clients who fine-tune them. The paper "FedAvg with fine tuning: local updates lead to
# representation learning" says why: because clients make more than one local step between two averages. With a single
# step, distributed gradient descent, nothing of the kind happens.

# %%
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt

import fedjax_srp as srp

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"

# %% [markdown]
# ## The model
#
# Client $i$ has the loss $f_i(B, w) = \frac12 \|B w - B^* w_i^*\|^2$ over $B$ of $d \times k$ and a head $w$ of $k$
# numbers. Both are averaged. A local step descends both from the same point:
#
# $$w' = w - \alpha B^T (B w - B^* w_i^*), \qquad B' = B - \alpha (B w - B^* w_i^*) w^T.$$

# %%
CLIENTS, DIM, RANK, ALPHA = 40, 100, 5, 0.4
task = srp.data.linear_task(jax.random.key(0), CLIENTS, DIM, RANK, heads="gaussian")


def local_steps(b, w, truth, steps):
    """Return B and w after local steps of a client."""
    for _ in range(steps):
        residual = b @ w - truth
        step_w = ALPHA * b.T @ residual
        step_b = ALPHA * jnp.outer(residual, w)
        w = w - step_w
        b = b - step_b
    return b, w


def one_round(b, w, steps):
    """Return the mean of all clients' models."""
    truths = task.heads @ task.representation.T
    of_clients = jax.vmap(lambda truth: local_steps(b, w, truth, steps))
    local_b, local_w = of_clients(truths)
    return local_b.mean(axis=0), local_w.mean(axis=0)


# %% [markdown]
# ## The mechanism, in one round
#
# Follow one client from $w = 0$ and $\alpha B^T B = I$. In the first local step the residual of $B$ is multiplied by
# $w = 0$, so that $B$ stays where it is, and $w$ becomes $\alpha B^T B^* w_i^*$: the client's own head, as far as $B$
# can express it. In the second step $B$ moves along $B^* w_i^* w^T$, and the mean over clients is
# $B^* \Lambda (B^*)^T B$ with $\Lambda = \frac1M \sum_i w_i^* {w_i^*}^T$: towards the truth in *all* $k$ directions,
# if the clients' heads are diverse. With one step a round every client starts from the same averaged $w$, and $B$ only
# ever moves along $w^T$, in one direction of $k$.

# %%
start = srp.algorithms.LinearFedAvg(task, step_size=ALPHA).init(jax.random.key(1), task)
b0, w0 = start.representation, start.head
for steps in (1, 2):
    b, w = b0, w0
    for _ in range(3):
        b, w = one_round(b, w, steps)
    moved = jnp.linalg.svd(b - b0, compute_uv=False)
    print(f"{steps} local steps, 3 rounds: B moved by {np.round(moved, 4)}")

# %% [markdown]
# How different are the heads of the clients when the second local step begins? The proof needs them as diverse as the
# true ones. Here are the singular values of both after 100 rounds, over the root of the number of clients:

# %%
for _ in range(100):
    b0, w0 = one_round(b0, w0, 2)
heads_of = jax.vmap(lambda truth: local_steps(b0, w0, truth, 1)[1])
local_heads = heads_of(task.heads @ task.representation.T)
for name, heads in (
    ("true heads", np.sqrt(ALPHA) * task.heads),
    ("local heads", local_heads),
):
    print(
        f"{name:12s}", np.linalg.svd(heads / np.sqrt(CLIENTS), compute_uv=False).round(3)
    )

# %% [markdown]
# (The true ones times $\sqrt\alpha$, as $B$ has the norm $1 / \sqrt\alpha$.)
#
# ## 250 rounds
#
# `LinearFedAvg` is this algorithm; `local_steps=1` is distributed gradient descent, D-GD. The distance is the sine of
# the largest angle between the columns of $B$ and of $B^*$. Double precision shows how straight the line is.

# %%
COLORS = {1: ORANGE, 2: BLUE}
with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
    precise = srp.data.linear_task(
        jax.random.key(0), CLIENTS, DIM, RANK, heads="gaussian"
    )
    runs = {}
    for steps in COLORS:
        runs[steps] = srp.simulate(
            srp.algorithms.LinearFedAvg(precise, step_size=ALPHA, local_steps=steps),
            precise,
            num_rounds=250,
            eval_every=250,
            evaluations=(),
            key=jax.random.key(1),
            progress=False,
        )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
names = {1: "D-GD, 1 local step", 2: "FedAvg, 2 local steps"}
for steps, run in runs.items():
    left.semilogy(
        run.round, run.metrics["distance"], color=COLORS[steps], label=names[steps]
    )
    right.semilogy(run.round, run.metrics["gradient_norm"], color=COLORS[steps])
left.set(xlabel="round", ylabel="distance of $B$ from $B^*$")
right.set(xlabel="round", ylabel="gradient norm of the global loss")
left.legend(frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# D-GD does what it promises: the gradient of the *global* loss becomes small. Its $B$ is useless for anybody else.
# FedAvg does not converge to a stationary point of the global loss at all, its gradient stays large, and it finds the
# subspace (figures 1 and 3 of the paper).
#
# ## What a new client gets
#
# A client with a head that nobody had fine-tunes $B$ and $w$ on its own samples, 200 steps of gradient descent.

# %%
draw = srp.data.linear_task(
    jax.random.key(7), 20, DIM, RANK, noise_std=0.1, heads="gaussian"
)
truth = np.asarray(precise.representation, np.float32)  # that of the runs
new = dataclasses.replace(draw, representation=truth, options=None)
COUNTS = (25, 50, 100, 200, 300)
for steps, run in runs.items():
    state = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), run.server_state)
    errors = []
    for count in COUNTS:
        algorithm = srp.algorithms.LinearFedAvg(
            task, step_size=ALPHA, local_steps=steps, fine_tune_samples=count
        )
        scores = srp.evaluate(algorithm, new, state, key=jax.random.key(8))
        errors.append(np.mean(scores["fine_tune"]))
    shown = "  ".join(f"{n}: {e:.3f}" for n, e in zip(COUNTS, errors, strict=True))
    print(f"{names[steps]:22s} error by samples  {shown}")

# %% [markdown]
# One model cannot serve clients that differ: what counts is how many samples fine-tuning needs, and FedAvg's model
# needs far fewer. `experiments/fedavg_representation` has ten trials of this, the rates of the theory over $\alpha$ and
# $\tau$, and networks on images, where the effect is there and smaller.
