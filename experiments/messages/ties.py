"""Times of the runs in `methods.csv` under every clock, and where doubling and everybody tie.

A stage has the n fastest of N clients, and who is fast does not depend on the data. So a run's rounds are a sample of
those under every clock that ranks clients independently of their data, and a round of n clients takes the mean of the
n-th smallest of N times, for `DRAWS` draws of them. Times are in units of the mean time of the slowest client without
messages.

    python experiments/messages/ties.py [--out experiments/messages/results]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import curves, pages, scripts
from experiments.messages import break_even
from experiments.messages.break_even import tie_of

HERE = Path(__file__).parent
CODES = {
    "none": "none",
    "bits8": "8 bits, both ways",
    "top1": "largest 1 %, error feedback",
}
# With everybody and with doubling cohorts.
PAIRS = {
    "FedRep": ("fedrep", "srpfl"),
    "FedAvg-FT": ("fedavg_ft", "flanp_fedavg_ft"),
    "LG-FedAvg": ("lg_fedavg", "lg_srpfl"),
}
COLORS = {
    "FedRep": curves.BLUE,
    "FedAvg-FT": curves.ORANGE,
    "LG-FedAvg": curves.GREEN,
}
SHARES = (0.95, 0.99)  # of the final accuracy of everybody without a code
DRAWS = 4000
SPREAD = 0.7  # of the logarithms of phones' speeds and links

Sample = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


class Run(NamedTuple):
    """One run under one evaluation."""

    accuracies: np.ndarray  # (rounds,) in %
    sizes: np.ndarray  # (rounds,) of cohorts
    seconds: np.ndarray  # (rounds,) in the run's own draw
    bytes_up: int
    bytes_down: int
    worst_tenth: float

    def rounds_to(self, target: float) -> int | None:
        """Return the number of rounds until the target; None if it is not reached."""
        reached = np.flatnonzero(self.accuracies >= target)
        return int(reached[0]) + 1 if reached.size else None


class Setting(NamedTuple):
    """What is compared: a pair of methods at a scale, under an evaluation, to a share."""

    scale: str
    pair: str
    evaluation: str
    share: float


@functools.cache
def table() -> pd.DataFrame:
    """Load the table of all runs."""
    return pages.csv("messages/results/methods.csv")


def run_of(row: pd.Series) -> Run:
    """Read a run from a row of the table."""
    stages = [stage.split(":") for stage in row["stages"].split()]
    sizes, counts, seconds = (list(column) for column in zip(*stages, strict=True))
    numbers = np.array(counts, int)
    return Run(
        np.array(row["accuracies"].split(), float),
        np.repeat(np.array(sizes, int), numbers),
        np.repeat(np.array(seconds, float), numbers),
        int(row["bytes_up"]),
        int(row["bytes_down"]),
        float(row["worst_tenth"]),
    )


@functools.cache
def runs(scale: str, method: str, code: str, evaluation: str) -> tuple[Run, ...]:
    """Return the runs of a method under a code, one for each seed."""
    frame = table()
    wanted = {"scale": scale, "method": method, "code": code, "evaluation": evaluation}
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    return tuple(run_of(row) for _, row in frame.sort_values("seed").iterrows())


def settings(scales: Iterable[str]) -> list[Setting]:
    """Return the comparisons that the table has without a code."""
    found = []
    for scale in scales:
        for pair, (everybody, _) in PAIRS.items():
            frame = table()
            frame = frame[(frame["scale"] == scale) & (frame["method"] == everybody)]
            for evaluation in frame["evaluation"].unique():
                found += [Setting(scale, pair, evaluation, share) for share in SHARES]
    return found


def codes_of(setting: Setting) -> list[str]:
    """Return the codes under which both methods of a setting were run, with the same number of seeds."""
    found = []
    for code in CODES:
        everybody, doubling = (
            len(runs(setting.scale, method, code, setting.evaluation))
            for method in PAIRS[setting.pair]
        )
        if everybody == doubling > 0:
            found.append(code)
    return found


def target_of(setting: Setting) -> float:
    """Return the target: a share of the mean final accuracy of everybody without a code."""
    everybody = runs(setting.scale, PAIRS[setting.pair][0], "none", setting.evaluation)
    return setting.share * float(np.mean([run.accuracies[-1] for run in everybody]))


# ---- clocks ---------------------------------------------------------------------------


def exponential(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw the times of Exp(1)."""
    return random.exponential(size=shape)


def log_normal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Draw factors of phones: their median is 1."""
    return np.exp(SPREAD * random.standard_normal(shape))


@functools.cache
def slowest(num_clients: int, work: Sample) -> float:
    """Return the mean time that work takes the slowest client."""
    return float(work(np.random.default_rng(0), (DRAWS, num_clients)).max(1).mean())


@functools.cache
def order_statistics(
    num_clients: int, work: Sample, links: tuple[float, ...] = ()
) -> np.ndarray:
    """Return the mean of the n-th smallest of N times, n = 1, ..., N.

    A time is that of work, and of messages over links: each has a time for a link of
    median speed, in the unit of work, and factors of its own. Times are divided by the
    mean work of the slowest client.
    """
    random = np.random.default_rng(0)
    shape = (DRAWS, num_clients)
    times = work(random, shape)
    for link in links:
        times = times + link * log_normal(random, shape)
    return np.sort(times, axis=1).mean(axis=0) / slowest(num_clients, work)


def time_to(run: Run, target: float, of_sizes: np.ndarray) -> float:
    """Return the time to the target without messages; inf if it is not reached."""
    rounds = run.rounds_to(target)
    if rounds is None:
        return np.inf
    return float(of_sizes[run.sizes[:rounds] - 1].sum())


def charged(run: Run, uncoded: Run, directions: str) -> float:
    """Return the bytes of a code over those of uncoded messages, of uploads or of both directions."""
    if directions == "up":
        return run.bytes_up / uncoded.bytes_up
    return (run.bytes_up + run.bytes_down) / (uncoded.bytes_up + uncoded.bytes_down)


class Compared(NamedTuple):
    """Times to the target without messages, and rounds, of everybody and of doubling, a row for each seed.

    A run that misses the target has an infinite time and 0 rounds.
    """

    times: np.ndarray  # (seeds, 2)
    rounds: np.ndarray  # (seeds, 2)

    def tie(self) -> float:
        """Return the cost of a round at which the mean times are equal; nan if a run misses the target, inf if none."""
        return tie_of(self.times.mean(axis=0), self.rounds.mean(axis=0))

    def ties(self) -> list[float]:
        """Return the tie of each seed."""
        return [*map(tie_of, self.times, self.rounds)]


def compare(
    setting: Setting,
    code: str,
    work: Sample = exponential,
    links: tuple[float, ...] = (),
) -> Compared:
    """Return times and rounds of both methods of a setting under a code."""
    target = target_of(setting)
    of_methods = [
        runs(setting.scale, method, code, setting.evaluation)
        for method in PAIRS[setting.pair]
    ]
    num_clients = int(of_methods[0][0].sizes.max())
    of_sizes = order_statistics(num_clients, work, links)
    times = [
        [time_to(run, target, of_sizes) for run in of_method] for of_method in of_methods
    ]
    rounds = [
        [run.rounds_to(target) or 0 for run in of_method] for of_method in of_methods
    ]
    return Compared(np.array(times, float).T, np.array(rounds, float).T)


def share_of(setting: Setting, code: str, directions: str) -> float:
    """Return the bytes of a code over those of uncoded messages in a setting."""
    method = PAIRS[setting.pair][0]
    uncoded = runs(setting.scale, method, "none", setting.evaluation)[0]
    coded = runs(setting.scale, method, code, setting.evaluation)[0]
    return charged(coded, uncoded, directions)


# ---- the rule -------------------------------------------------------------------------


def measured_ties(scale: str) -> list[float]:
    """Return the ties of all settings and codes of a scale, in times of the slowest client."""
    found = []
    for setting in settings([scale]):
        found += [compare(setting, code).tie() for code in codes_of(setting)]
    return found


def rule() -> float:
    """Return the cost of a coded message below which to double: the median of all ties but of missed targets."""
    ties = [tie for tie in measured_ties("cpu") if not np.isnan(tie)]
    return float(np.median(ties))


COSTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of an uncoded message, in such times
CHOOSERS = ("rule", "doubling", "everybody")


class Choice(NamedTuple):
    """One choice between everybody and doubling.

    Attributes:
        times: mean times of everybody and of doubling; inf if a seed misses the target.
        doubles: the rule doubles.
    """

    times: np.ndarray
    doubles: bool


class Checked(NamedTuple):
    """Choices of the rule, of always doubling, and of always everybody."""

    cases: int
    right: dict[str, int]  # the faster method
    missed: dict[str, int]  # a method that misses the target, where the other reaches it
    factors: list[float]  # on the shorter time, of the rule's other wrong choices


def choices(
    some: Iterable[Setting], work: Sample, directions: str, threshold: float
) -> list[Choice]:
    """Return the rule's choice in each setting, under each code, at each cost, if a method reaches the target."""
    found = []
    for setting in some:
        for code in codes_of(setting):
            compared = compare(setting, code, work)
            part = share_of(setting, code, directions)
            for cost in COSTS:
                times = (compared.times + cost * part * compared.rounds).mean(axis=0)
                if np.isfinite(times).any():
                    found.append(Choice(times, cost * part < threshold))
    return found


def check(some: Sequence[Choice]) -> Checked:
    """Count which choices were right."""
    right = dict.fromkeys(CHOOSERS, 0)
    missed = dict.fromkeys(CHOOSERS, 0)
    factors = []
    for times, by_rule in some:
        is_faster = bool(times[1] < times[0])
        doubles = dict(zip(CHOOSERS, (by_rule, True, False), strict=True))
        for chooser, chosen in doubles.items():
            right[chooser] += chosen == is_faster
            missed[chooser] += not np.isfinite(times[int(chosen)])
        if by_rule != is_faster and np.isfinite(times).all():
            factors.append(float(times.max() / times.min()))
    return Checked(len(some), right, missed, factors)


# ---- the figure -----------------------------------------------------------------------

BESIDE = {"FedRep": 1.0, "FedAvg-FT": 1.12, "LG-FedAvg": 0.89}  # so that all are seen
LOWEST = 0.05  # tie that is drawn
LATENCIES = {0.0: "none of C is latency", 0.1: "10 % of C is latency"}


def of_nine_codes(latency: float) -> np.ndarray:
    """Return compression and tie, (codes, 2), of the runs of FedRep in `break_even.json`, in the same units."""
    found = pages.load_results("messages/results/break_even.json")
    everybody = found["none"]["everybody"]
    slowest_time = np.mean([float(run["time"]) / run["rounds"] for run in everybody])
    points = []
    for name in found:
        part = break_even.share(found, name, "up")
        tie = break_even.break_even(found, name, latency + (1 - latency) * part)
        points.append((1 / part, tie / slowest_time))
    return np.array(points)


def draw() -> Figure:
    """Draw the tie over the compression of uploads, beside the rule's line."""
    figure, axes = curves.panels(2, width=4.8, height=4.2, sharey=True)
    threshold = rule()
    for ax, (latency, title) in zip(axes, LATENCIES.items(), strict=True):
        rates = np.geomspace(1, 100, 50)
        line = threshold / (latency + (1 - latency) / rates)
        ax.plot(rates, line, color=curves.GREY, linewidth=1.2, label="the rule")
        ax.plot(*of_nine_codes(latency).T, "kx", markersize=6, zorder=3)
        for setting in settings(["cpu"]):
            points = []
            for code in codes_of(setting):
                part = share_of(setting, code, "up")
                tie = compare(setting, code).tie() / (latency + (1 - latency) * part)
                points.append((BESIDE[setting.pair] / part, tie))
            shown = np.array([point for point in points if np.isfinite(point[1])])
            if not shown.size:
                continue
            is_first = setting.evaluation == "fine_tune"
            ax.plot(
                *shown.T,
                "o" if setting.share == SHARES[0] else "s",
                color=COLORS[setting.pair],
                markerfacecolor=COLORS[setting.pair] if is_first else "white",
                markersize=6,
            )
        ax.loglog()
        ax.set_ylim(LOWEST, None)
        ax.set(title=title, xlabel="compression: uncoded over coded bytes up")
    axes[0].set_ylabel("C of a tie, in times of the slowest client")
    for pair, color in COLORS.items():
        axes[0].plot([], [], "o", color=color, label=pair)
    axes[0].plot([], [], "kx", label="FedRep, 91.6 %, nine codes")
    axes[0].plot([], [], "o", color="black", label="95 % of the final accuracy")
    axes[0].plot([], [], "s", color="black", label="99 % of it")
    axes[0].plot(
        [],
        [],
        "o",
        color="black",
        markerfacecolor="white",
        label="by the other evaluation",
    )
    curves.legend(figure, axes[:1], 4, title=None)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = scripts.parser(__doc__, (), str(HERE / "results"))
    args = parser.parse_args(arguments)
    file = scripts.results_folder(args) / "ties.png"
    curves.save_picture(draw(), file)
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
