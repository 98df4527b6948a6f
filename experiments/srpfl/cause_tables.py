"""Tables of the README from `causes.csv` and `sweep.csv`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments import pages

SCORES = {  # heading -> method, evaluation
    "SRPFL": ("srpfl", "fine_tune"),
    "FLANP-FT": ("flanp_fedavg", "fine_tune"),
    "SRPFL, own heads": ("srpfl", "own_head"),
    "FLANP (FedAvg)": ("flanp_fedavg", "global"),
}


def mean_std(values: pd.Series, digits: int = 1) -> str:
    """Format mean ± standard deviation over seeds (none for one seed); empty for a method that was not run."""
    return pages.pm(values.dropna().to_list(), digits) if values.notna().any() else ""


def last_scores(rows: pd.DataFrame, score: str) -> dict[str, pd.Series]:
    """Return for each heading the score after the last round, by cell and seed."""
    last = rows[rows["round"] == rows["round"].max()]
    by = [name for name in ("setting", "images", "classes", "seed") if name in rows]
    return {
        heading: last[
            (last["method"] == method) & (last["evaluation"] == evaluation)
        ].set_index(by)[score]
        for heading, (method, evaluation) in SCORES.items()
    }


def markdown(frame: pd.DataFrame) -> str:
    """Format a table with the index as its first columns."""
    frame = frame.reset_index()
    return pages.markdown([list(frame.columns), *frame.astype(str).to_numpy().tolist()])


def causes(results: Path) -> str:
    """Table with a row for each setting."""
    files = (results / name for name in ("causes.csv", "causes_gradients.csv"))
    rows, gradients = (pd.read_csv(file) for file in files)
    accuracy, worst = (last_scores(rows, score) for score in ("accuracy", "worst_tenth"))
    columns = dict(accuracy)
    columns |= {f"worst tenth: {name}": worst[name] for name in ("SRPFL", "FLANP-FT")}
    by_setting = pd.DataFrame(columns).groupby("setting", sort=False)
    ran = rows.loc[rows["method"] == "srpfl", "setting"].unique()
    frame = by_setting.agg(mean_std).reindex(ran)
    frame["first gradient"] = gradients.groupby("setting")["below"].agg(
        lambda of: mean_std(of, 3)
    )
    counts = by_setting.count()
    seeds = counts["SRPFL"].astype(str)
    differ = (counts["FLANP-FT"] > 0) & (counts["FLANP-FT"] != counts["SRPFL"])
    seeds[differ] += " and " + counts["FLANP-FT"][differ].astype(str)
    return markdown(frame.join(seeds.rename("seeds")))


def sweep(results: Path) -> str:
    """Table with a row for each cell; differences are taken seed by seed."""
    rows = pd.read_csv(results / "sweep.csv")
    accuracy, worst = (last_scores(rows, score) for score in ("accuracy", "worst_tenth"))
    columns = dict(accuracy)
    for own in ("SRPFL", "SRPFL, own heads"):
        columns[f"{own}, less FLANP-FT"] = accuracy[own] - accuracy["FLANP-FT"]
    columns["worst tenth: SRPFL, less FLANP-FT"] = worst["SRPFL"] - worst["FLANP-FT"]
    by_cell = pd.DataFrame(columns).groupby(["images", "classes"])
    return markdown(by_cell.agg(mean_std).join(by_cell.size().rename("seeds")))
