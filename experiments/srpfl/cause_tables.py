"""Tables of the README from `causes.csv` and `sweep.csv`.

    python experiments/srpfl/cause_tables.py

The README has `<!-- begin NAME -->` and `<!-- end NAME -->` around a table that is made here; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
SCORES = {  # heading -> method, evaluation
    "SRPFL": ("srpfl", "fine_tune"),
    "FLANP-FT": ("flanp_fedavg", "fine_tune"),
    "SRPFL, own heads": ("srpfl", "own_head"),
    "FLANP (FedAvg)": ("flanp_fedavg", "global"),
}


def spread(values: pd.Series, digits: int = 1) -> str:
    """Mean and standard deviation over seeds, of one value without; nothing for a method that was not run."""
    if values.isna().all():
        return ""
    return f"{values.mean():.{digits}f}" + (f" ± {values.std():.{digits}f}" if len(values) > 1 else "")


def last_scores(rows: pd.DataFrame, score: str) -> dict[str, pd.Series]:
    """A score after the last round, heading -> values by cell and seed."""
    last = rows[rows["round"] == rows["round"].max()]
    by = [name for name in ("setting", "images", "classes", "seed") if name in rows]
    return {
        heading: last[(last["method"] == method) & (last["evaluation"] == evaluation)].set_index(by)[score]
        for heading, (method, evaluation) in SCORES.items()
    }


def markdown(frame: pd.DataFrame) -> str:
    """A table with the index as its first columns."""
    frame = frame.reset_index()
    rows = [list(frame.columns), ["---"] * frame.shape[1], *frame.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def causes(results: Path) -> str:
    """A row a setting."""
    rows, gradients = pd.read_csv(results / "causes.csv"), pd.read_csv(results / "causes_gradients.csv")
    accuracy, worst = (last_scores(rows, score) for score in ("accuracy", "worst_tenth"))
    columns = dict(accuracy)
    columns |= {f"worst tenth: {name}": worst[name] for name in ("SRPFL", "FLANP-FT")}
    by_setting = pd.DataFrame(columns).groupby("setting", sort=False)
    frame = by_setting.agg(spread).reindex(rows["setting"].unique())
    frame["first gradient"] = gradients.groupby("setting")["below"].agg(lambda of: spread(of, 3))
    return markdown(frame.join(by_setting.size().rename("seeds")))


def sweep(results: Path) -> str:
    """A row a cell; differences are taken seed by seed."""
    rows = pd.read_csv(results / "sweep.csv")
    accuracy, worst = (last_scores(rows, score) for score in ("accuracy", "worst_tenth"))
    columns = dict(accuracy)
    for own in ("SRPFL", "SRPFL, own heads"):
        columns[f"{own}, less FLANP-FT"] = accuracy[own] - accuracy["FLANP-FT"]
    columns["the same, worst tenth"] = worst["SRPFL"] - worst["FLANP-FT"]
    by_cell = pd.DataFrame(columns).groupby(["images", "classes"])
    return markdown(by_cell.agg(spread).join(by_cell.size().rename("seeds")))


TABLES: dict[str, Callable[[Path], str]] = {"causes": causes, "sweep": sweep}


def page(text: str, results: Path) -> str:
    """A README with its tables as the files have them."""
    for name, make in TABLES.items():
        made = make(results) if (results / f"{name}.csv").is_file() else "Not run yet."
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, b=begin, m=made, e=end: f"{b}\n{m}\n{e}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(page(readme.read_text("utf-8"), HERE / "results"), "utf-8")
