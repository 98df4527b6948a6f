# %% [markdown]
# # Your own clock, from a device trace
#
# Papers draw client times from Exp(1). Are real devices like that? In the ranking of AI-Benchmark of early 2020
# (ai-benchmark.com, float inference on the CPU of 333 phones) the slowest phone needs 41 times as long as the fastest,
# and half of all phones less than half of the mean time.
#
# This page makes a clock of such measurements and asks whether doubling cohorts pays on it as much as on the paper's.

# %%
import tempfile
from pathlib import Path

import jax
import numpy as np
import pandas as pd

import fedjax_srp as srp

srp.use_all_cores()

# %% [markdown]
# ## Measurements
#
# Your file has a row for each measured round and a column for each device, or a row for each device and round. Here we
# write one: eighty rounds of fifty phones, whose speeds have the deciles of that ranking, and which are now and then
# busy with something else.

# %%
scores = np.array(
    [105, 274, 392, 755, 1327, 1548, 1696, 2035, 2621, 3414, 4310.0]
)  # deciles, higher is faster
rng = np.random.default_rng(0)
speed = np.interp(rng.random(50), np.linspace(0, 1, 11), scores)
busy = np.where(rng.random((80, 50)) < 0.1, rng.uniform(2, 5, (80, 50)), 1)
seconds = 1500 / speed * busy * rng.lognormal(0, 0.1, (80, 50))

path = Path(tempfile.mkdtemp()) / "rounds.csv"
table = pd.DataFrame(
    seconds,
    index=pd.RangeIndex(80, name="round"),
    columns=pd.RangeIndex(50, name="device"),
)
table.stack().rename("seconds").reset_index().to_csv(path, index=False)
pd.read_csv(path).head(3)

# %% [markdown]
# ## A clock
#
# `srp.clocks.Trace` plays them round after round, and starts again at the end. Each time is that of a round's local
# work; if you measured something else, give a factor, `work=`.

# %%
measured = (
    pd.read_csv(path).pivot(index="round", columns="device", values="seconds").to_numpy()
)
phones = srp.clocks.Trace(measured)
exponential = srp.clocks.Fixed(
    srp.clocks.Exponential(1 / measured.mean())
)  # Exp with the same mean
slowest = measured.mean(axis=0).max() / measured.mean()
print(
    f"phones: the slowest needs {slowest:.1f} times the mean; of 50 exponential times the largest is 4.5 times it"
)

# %% [markdown]
# ## Does doubling pay?
#
# Three seeds on each clock. The partition of the data is the same, so are the batches; only times differ.

# %%
data = srp.data.load("digits", num_clients=50, classes_per_client=3)
options = {"hidden": (64, 32), "learning_rate": 0.05, "epochs": 5, "initial": 5}
keys = jax.random.split(jax.random.key(0), 3)
rows = []
for clock_name, clock in {"exponential": exponential, "phones": phones}.items():
    for name in ("fedrep", "srpfl"):
        method = srp.methods.get(name, dataset=data, shared=options)
        runs = srp.simulate_seeds(
            method,
            data,
            clock=clock,
            num_rounds=40,
            eval_every=2,
            keys=keys,
            progress=False,
        )
        for cost in (0, 10, 100):
            times = [run.time_to(0.9, communication=cost) for run in runs]
            rows.append((clock_name, f"C = {cost} s", name, np.mean(times)))
times = pd.DataFrame(rows, columns=["clock", "communication", "method", "seconds"])
times = times.pivot(index=["clock", "communication"], columns="method", values="seconds")
times.assign(ratio=times.fedrep / times.srpfl).round(1)

# %% [markdown]
# Seconds until 90 % of the test points are classified correctly, and FedRep's time over SRPFL's (below 1: SRPFL is
# slower).
#
# ## Who waits for whom
#
# A policy that ranks by realised times selects other phones in other rounds, because busy ones are not among the
# fastest:

# %%
fastest = [frozenset(np.argsort(row)[:5]) for row in measured]
print(
    f"{len(set(fastest))} different cohorts of the five fastest in 80 rounds, {len(frozenset().union(*fastest))} phones"
)

# %% [markdown]
# Any other clock, with rush hours for instance, is a class with two methods: see *Writing a clock* in the manual.
