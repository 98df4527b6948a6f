"""Page with every claim of the four papers, written from the committed results.

    python experiments/claims.py

Writes `experiments/README.md` and the manual's picture of the verdicts. The claims of a paper are in the `claims_*.py`
of its folder's name. A `Claim` (`claim.py`) has the paper's words and their place in it, a verdict, a function that
reads the numbers from files below `experiments/`, the size and setting of the runs, and the files and the script that
made them. Numbers are read from files, but verdicts are judgements by people: when a result changes, check its verdict.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.claim import FAILS, HOLDS, IN_PART, NOT_FOUND, NOT_RUN, VERDICTS, Claim
from experiments.claims_fedavg_representation import REPRESENTATION
from experiments.claims_fedrep import FEDREP
from experiments.claims_flanp import FLANP
from experiments.claims_srpfl import SRPFL
from experiments.curves import save_picture
from experiments.pages import markdown

HERE = Path(__file__).parent
PAPERS = {
    "srpfl": ("SRPFL", SRPFL),
    "flanp": ("FLANP", FLANP),
    "fedrep": ("FedRep", FEDREP),
    "fedavg_representation": ("FedAvg as a representation learner", REPRESENTATION),
}
INTRODUCTION = """# Every claim of the four papers

Written by `python experiments/claims.py` from the files in `experiments/*/results`; do not edit. A row is a claim;
quotation marks enclose the paper's own words. Verdicts:

- *holds*, *fails*: at the size and in the setting of the row, which says whether they are the paper's;
- *not found at this scale*: a no of networks, data or numbers of steps smaller than the paper's, which says little
  about the paper's own;
- *in part*: for some of the data, targets or readings, see the folder's README;
- *not run*: there is no result; the last column names the script that would make one, where there is one.

Numbers are means ± standard deviations over seeds, or means with the lowest and the highest trial in brackets. Seeds
share one division of the data in SRPFL's rows on images and digits and in FedRep's table 1 and figure 5. "Text" and
"code": the setting of the paper's text, or that of its authors' code where the two differ
([Methods](../docs/methods.md)).
"""


def page() -> str:
    counts, sections = [["paper", *VERDICTS]], []
    for folder, (title, claims) in PAPERS.items():
        verdicts = Counter(claim.verdict for claim in claims)
        counts.append([title, *(verdicts[verdict] for verdict in VERDICTS)])
        rows = [
            [
                "claim",
                "where",
                "verdict",
                "found",
                "size and setting",
                "results",
                "script",
            ]
        ]
        made = markdown(rows + [claim_row(claim, folder) for claim in claims])
        sections.append(
            f"## {title}\n\n[Settings, variations and figures]({folder}/README.md).\n\n{made}"
        )
    return "\n\n".join([INTRODUCTION.rstrip(), markdown(counts), *sections]) + "\n"


def claim_row(claim: Claim, folder: str) -> list[str]:
    """Return the cells of a claim."""
    quote = claim.quote if claim.quote.startswith("(") else f'"{claim.quote}"'
    found = claim.found if isinstance(claim.found, str) else claim.found()
    links = [
        f"[{Path(name).name}]({posixpath.normpath(f'{folder}/results/{name}')})"
        for name in claim.files
    ]
    command = "none"
    if claim.command:
        command = f"`{posixpath.normpath(f'{folder}/{claim.command}')}`"
    shown_files = ", ".join(links) or "none"
    return [quote, claim.place, claim.verdict, found, claim.size, shown_files, command]


COLORS = {
    HOLDS: "#0072B2",
    IN_PART: "#56B4E9",
    FAILS: "#D55E00",
    NOT_FOUND: "#F0B98D",
    NOT_RUN: "#CCCCCC",
}


def draw(path: Path) -> None:
    """Draw a bar for each paper with the numbers of its verdicts."""
    figure = Figure(figsize=(7, 2.4), layout="constrained")
    ax = figure.subplots()
    names = [title for title, _ in reversed(PAPERS.values())]
    left = np.zeros(len(names))
    for verdict, color in COLORS.items():
        counts = np.array(
            [
                sum(c.verdict == verdict for c in claims)
                for _, claims in reversed(PAPERS.values())
            ]
        )
        dark = verdict in (HOLDS, FAILS)
        bars = ax.barh(names, counts, left=left, color=color, label=verdict, height=0.7)
        labels = [str(count) if count else "" for count in counts]
        ax.bar_label(
            bars, labels, label_type="center", color="w" if dark else "k", fontsize=9
        )
        left += counts
    ax.set_xlabel("claims")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=len(VERDICTS), frameon=False)
    save_picture(figure, path, dpi=110)


if __name__ == "__main__":
    (HERE / "README.md").write_text(page(), "utf-8")
    draw(HERE.parent / "docs/_static/claims.png")
    print(f"wrote {HERE / 'README.md'}")
