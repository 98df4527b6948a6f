# %% [markdown]
# # Phones: which answer to stragglers?
#
# You want to train a model on people's phones. They differ in speed and in their networks, they are there only while
# they charge, and some of them leave in the middle of a round. Whom should the server wait for?
#
# This page makes a clock of phones, runs six answers on it, and compares them by the minutes that they take.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedjax_srp as srp
from fedjax_srp import clocks, participation

srp.use_all_cores()
rng, num_phones = np.random.default_rng(0), 50

# %% [markdown]
# ## How fast are they?
#
# `clocks.Devices` computes seconds from work: the operations of a client's training over its speed, and the bytes of
# its messages over its links. The speeds have the deciles of AI-Benchmark's ranking of phones of early 2020, the median
# phone training with 2e9 operations a second; networks are log-normal around 2 MB/s down and 0.5 MB/s up. Give your own
# measurements instead: one number for each phone (`clocks.read_devices` reads files).
#
# The model of this page is small, to run in a minute. The phones are charged for one that is `LARGER` times as large:

# %%
LARGER = 1000
scores = np.array([105, 274, 392, 755, 1327, 1548, 1696, 2035, 2621, 3414, 4310.0])
compute = (
    2e9
    / np.median(scores)
    * np.interp(rng.random(num_phones), np.linspace(0, 1, 11), scores)
)
downlink, uplink = (
    rng.lognormal(np.log(2e6), 0.8, num_phones),
    rng.lognormal(np.log(5e5), 0.8, num_phones),
)
devices = clocks.Devices(
    compute / LARGER,
    downlink / LARGER,
    uplink / LARGER,
    jitter=clocks.LogNormal(1.0, 0.2),
)

# %% [markdown]
# ## When are they there?
#
# A trace says when each phone charges, in seconds. Here it is made up: two hours, with sessions of about 20 minutes.
# `clocks.Intervals` plays it over and over; `clocks.read_availability` reads traces of FLASH, FedScale and FLHetBench.

# %%
period = 7200.0
begin = np.sort(rng.uniform(-1200, period, (num_phones, 4)), axis=1)
end = np.minimum(
    begin + rng.exponential(1200, begin.shape),
    np.column_stack([begin[:, 1:], np.full(num_phones, period)]),
)
begin, end = np.maximum(begin, 0), np.maximum(end, 0)
clock = clocks.Available(devices, clocks.Intervals(begin, end, period))

minutes = np.arange(0, period, 60)
there = ((begin[..., None] <= minutes) & (minutes < end[..., None])).any(axis=1)
print(f"{there.sum(axis=0).mean():.0f} of {num_phones} phones are there on average")

# %% [markdown]
# ## Six answers
#
# All of them train FedRep: a shared representation and a head for each phone. They meet the same phones, the same
# batches and the same sessions. A server never waits for a phone that has left.

# %%
answers = {
    "everybody": participation.Full(),
    "SRPFL: 5, 10, 20, ... fastest": participation.Doubling(
        initial=5, rounds_per_stage=5
    ),
    "10 at random": participation.Uniform(10),
    "first 10 of 15": participation.Fastest(10, pool=15),
    "30 seconds for 15": participation.Deadline(30.0, policy=participation.Uniform(15)),
    "Oort, 10": participation.Oort(10, step=10.0),
}
rounds = dict.fromkeys(answers, 60) | {
    "everybody": 24,
    "SRPFL: 5, 10, 20, ... fastest": 40,
}
data = srp.data.load("digits", num_clients=num_phones, classes_per_client=5)
options = {"hidden": (32,), "learning_rate": 0.05, "epochs": 4, "head_epochs": 8}
runs = {}
for name, policy in answers.items():
    method = srp.methods.get("fedrep", dataset=data, participation=policy, **options)
    given = {
        "num_rounds": rounds[name],
        "eval_every": 2,
        "key": jax.random.key(1),
        "progress": False,
    }
    runs[name] = srp.simulate(method, data, clock=clock, **given)

# %%
figure, ax = plt.subplots(figsize=(7, 4))
for name, run in runs.items():
    ax.plot(run.eval_elapsed() / 60, 100 * run.mean_accuracy, label=name)
ax.set(
    xscale="log",
    xlabel="minutes",
    ylabel="accuracy on a phone's own test data, %",
    ylim=(40, 100),
)
ax.legend(frameon=False, fontsize=9)
ax.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# ## What do they cost?

# %%
target = 0.95 * runs["everybody"].final_accuracy
rows = {}
for name, run in runs.items():
    wasted = run.metrics.get("wasted_time", np.zeros(run.num_rounds)).sum()
    rows[name] = {
        f"minutes to {target:.0%}": run.time_to(target) / 60,
        "accuracy at the end, %": 100 * run.final_accuracy,
        "of the slowest quarter, %": 100 * run.speed_quartiles()[-1],
        "never took part, %": 100 * run.participation.never,
        "phone-hours for nothing": wasted / 3600,
    }
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# Read the table from left to right. The first column is what you wait for. The next three say who pays for it: an
# answer that takes only fast phones may never train on some of the others. Here the deadline and the first 10 of 15
# reach the target first, and leave out the most phones. The last column is work for nothing, by phones that left too
# early or reported too late.
#
# Then change what is yours: `LARGER`, the speeds and networks, the sessions, and the answers' numbers. One seed is an
# anecdote: `srp.simulate_seeds` runs several. `experiments/stragglers` compares answers over clocks, costs and methods.
