# %% [markdown]
# # A grid and its report
#
# A comparison needs many runs: methods, rates, clocks and seeds. A grid makes them from one description, and its tables
# show which differences are larger than those between seeds.

# %%
import tempfile
from pathlib import Path

import fedjax_srp as srp

srp.use_all_cores()
folder = Path(tempfile.mkdtemp()) / "rates"

# %% [markdown]
# Names and values are the options of `fedjax-srp run`. Options apply to all runs, axes make one run per combination;
# what a method does not read (`initial`, for FedRep) is left out of its runs.

# %%
grid = srp.grid(
    options={
        "dataset": "digits",
        "num_clients": 30,
        "classes_per_client": 3,
        "hidden": [32],
        "epochs": 5,
        "initial": 4,
        "rounds_per_stage": 6,
        "num_rounds": 24,
        "eval_every": 6,
    },
    axes={"method": ["srpfl", "fedrep"], "learning_rate": [0.02, 0.1], "seed": range(3)},
    out=folder,
    batch=6,
    progress=False,
)
grid.summary().round(3)

# %% [markdown]
# Twelve runs and two programs: `batch=6` makes one program of the runs that differ in seed and learning rate alone.
# Without `batch` the grid does so if there are enough rounds for it to pay. Each run still has its own folder. Called
# again, the same grid finds everything finished; with another rate on the axis it runs only the new ones.
#
# ## Tables
#
# One row a run and round, with the options that differ in front:

# %%
frame = grid.to_frame()
frame.tail(3)

# %%
last = frame[frame["round"] == 24].groupby(["method", "learning_rate"])[
    "accuracy_fine_tune"
]
last.agg(["mean", "std"]).round(3)

# %% [markdown]
# ## Pictures
#
# Each entry of a dict is one line with a band: here the runs that differ only in their seed.

# %%
lines = {}
for history in grid.histories.values():
    rate = history.method.algorithm.training.optimizer.learning_rate
    lines.setdefault(f"{srp.methods.label(history.name)}, rate {rate:g}", []).append(
        history
    )
srp.plots.accuracy_over_time(lines)

# %% [markdown]
# ## One page for everything
#
# The page is one file that needs no network, with sliders for the communication cost and the target: open it in a
# browser, send it to a colleague. On the command line, `fedjax-srp report FOLDER` writes the same.

# %%
page = folder / "report.html"
srp.plots.report_page(grid.histories, page)
print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB, {len(grid.histories)} runs")

# %% [markdown]
# Grids in files, worker processes, Slurm, exclusions and what happens on failure: *Grids* in the manual.
