"""Tables of the README and of the manual's page on messages, from the committed results.

python experiments/messages/readme_tables.py
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_srp as srp
from experiments.messages import ties
from experiments.messages.break_even import POLICIES, TARGET, break_even, share, times
from experiments.messages.privacy import TARGET as PRIVATE_TARGET
from experiments.pages import load_results, markdown, pm, reached_mean, wrapped, write

HERE = Path(__file__).parent
COSTS = (0, 1, 10, 100)


def results() -> dict[str, Any]:
    """Load the results of the study."""
    return load_results("messages/results/break_even.json")


def cell(name: str, cost: float, directions: str) -> str:
    """Format the mean times of everybody and of doubling at a cost."""
    found = results()
    charged = cost * share(found, name, directions)
    means = [reached_mean(times(found[name][policy], charged)) for policy in POLICIES]
    return " / ".join(means)


def table(directions: str) -> str:
    """Times to the target for each code and cost, where C counts these bytes."""
    found = results()
    head = ["code", "bytes up", "bytes down", *(f"C = {cost}" for cost in COSTS)]
    head += ["ties at C", "final %"]
    rows = [head]
    for name, of_code in found.items():
        accuracies = [
            f"{100 * np.mean([run['accuracy'] for run in of_code[policy]]):.1f}"
            for policy in POLICIES
        ]
        tie = break_even(found, name, share(found, name, directions))
        row = [name, f"{of_code['bytes up']:,}", f"{of_code['bytes down']:,}"]
        row += [cell(name, cost, directions) for cost in COSTS]
        rows.append([*row, f"{tie:.3g}", " / ".join(accuracies)])
    return markdown(rows)


def latencies() -> str:
    """The C of a tie if a part of it is latency."""
    found = results()
    shares = (0.0, 0.01, 0.1, 0.5)
    rows = [["code", *(f"{100 * each:g} % latency" for each in shares)]]
    for name in found:
        part = share(found, name, "up")
        costs = [break_even(found, name, each + (1 - each) * part) for each in shares]
        rows.append([name, *(f"{cost:.3g}" for cost in costs)])
    return markdown(rows)


def rounds() -> str:
    """Rounds to the target of each code, as mean and standard deviation over the seeds."""
    found = results()
    rows = [["code", *POLICIES]]
    for name, of_code in found.items():
        counts = [[run["rounds"] for run in of_code[policy]] for policy in POLICIES]
        rows.append([name, *(pm(of_policy, 1) for of_policy in counts)])
    return markdown(rows)


def sentence() -> str:
    """The study's result in a sentence, with numbers of its file."""
    found = results()
    costs = {name: break_even(found, name, share(found, name, "up")) for name in found}
    best = max(costs, key=lambda name: costs[name] if np.isfinite(costs[name]) else 0.0)
    seeds = len(found["none"]["everybody"])
    return wrapped(
        f"On digits, where an uncoded upload takes C and downloads take nothing, doubling and everybody need the same "
        f"mean time to {100 * TARGET:g} % at C = {costs['none']:.3g} without a code, and at most at C = "
        f"{costs[best]:.3g}, with the code *{best}* ({seeds} seeds)."
    )


def privacy() -> str:
    """Accuracy, time to the target and epsilon of each private run, and of the run that is not private."""
    found = load_results("messages/results/privacy.json")
    head = ["run", "z", "final %", f"time to {100 * PRIVATE_TARGET:g} %", "epsilon"]
    rows = [[*head, "without amplification"]]
    for name, of_run in found.items():
        for noise, measured in of_run.items():
            accuracy = pm([100 * each for each in measured["accuracy"]], 1)
            epsilon = str(measured.get("epsilon", ""))
            without = str(measured.get("without amplification", ""))
            time = reached_mean(np.array(measured["time"], float))
            rows.append([name, noise, accuracy, time, epsilon, without])
    return markdown(rows)


# ---- three pairs of methods -----------------------------------------------------------

MESSAGES = (0.0, 0.1, 1.0, 10.0)  # times of an uncoded message
NAMES = {0.95: "95 %", 0.99: "99 %"}
COUNTED = {"up": "uploads", "both": "both directions"}
PHONES = (0.1, 1.0, 10.0, 100.0)  # uncoded uploads over work, of the median phone


def labels(setting: ties.Setting) -> list[str]:
    """Return the cells that name a setting."""
    return [
        setting.pair,
        f"`{setting.evaluation}`",
        f"{NAMES[setting.share]}: {ties.target_of(setting):.1f}",
    ]


def number(value: float) -> str:
    """Format a tie: with two decimals below 1, as draws of the clock move it by about 0.01."""
    if np.isnan(value):
        return "missed"
    if np.isinf(value):
        return "none"
    return f"{value:.2g}" if value >= 1 else f"{value:.2f}"


def tie_cell(setting: ties.Setting, code: str) -> str:
    """Format the tie of mean times, and the lowest and highest of the seeds."""
    compared = ties.compare(setting, code)
    of_seeds = compared.ties()
    if len(of_seeds) == 1:
        return number(compared.tie())
    ends = "no seed"
    if not np.isnan(of_seeds).all():
        ends = f"{number(np.nanmin(of_seeds))} to {number(np.nanmax(of_seeds))}"
    if np.isnan(of_seeds).any():
        ends += f", {np.isfinite(of_seeds).sum()} of {len(of_seeds)}"
    return f"{number(compared.tie())} ({ends})"


def all_ties(scale: str) -> str:
    """Cost of a coded message at which doubling and everybody tie, in times of the slowest client."""
    settings = ties.settings([scale])
    codes = [
        code
        for code in ties.CODES
        if any(code in ties.codes_of(each) for each in settings)
    ]
    rows = [["pair", "judged by", "target", *(ties.CODES[code] for code in codes)]]
    for setting in settings:
        known = ties.codes_of(setting)
        cells = [
            tie_cell(setting, code) if code in known else "not run" for code in codes
        ]
        rows.append([*labels(setting), *cells])
    return markdown(rows)


def pair_times(scale: str) -> str:
    """Times of everybody and doubling for costs of an uncoded upload; bytes and final accuracies."""
    head = ["pair", "code", "bytes up", "bytes down", "target"]
    head += [f"C = {cost:g}" for cost in MESSAGES]
    rows = [[*head, "final %", "worst tenth %"]]
    for setting in ties.settings([scale]):
        if setting.evaluation != "fine_tune":
            continue
        for code in ties.codes_of(setting):
            compared = ties.compare(setting, code)
            part = ties.share_of(setting, code, "up")
            of_methods = [
                ties.runs(scale, method, code, setting.evaluation)
                for method in ties.PAIRS[setting.pair]
            ]
            cells = []
            for cost in MESSAGES:
                both = (compared.times + cost * part * compared.rounds).T
                cells.append(" / ".join(map(reached_mean, both)))
            finals = [
                f"{np.mean([run.accuracies[-1] for run in of_method]):.1f}"
                for of_method in of_methods
            ]
            worst = [
                f"{np.mean([run.worst_tenth for run in of_method]):.1f}"
                for of_method in of_methods
            ]
            sent = of_methods[0][0]
            row = [setting.pair, ties.CODES[code]]
            row += [f"{sent.bytes_up:,}", f"{sent.bytes_down:,}", NAMES[setting.share]]
            rows.append([*row, *cells, " / ".join(finals), " / ".join(worst)])
    return markdown(rows)


def on_phones() -> str:
    """Everybody's time over doubling's where both speeds and links differ between clients, and with a latency."""
    head = ["pair", "judged by", "target", "code", *(f"{each:g}" for each in PHONES)]
    rows = [[*head, *(f"{each:g}, latency" for each in PHONES)]]
    for setting in ties.settings(["cpu"]):
        for code in ties.codes_of(setting):
            row = [setting.pair, f"`{setting.evaluation}`", NAMES[setting.share]]
            row.append(ties.CODES[code])
            part = ties.share_of(setting, code, "up")
            for latency in (0.0, 1.0):
                for message in PHONES:
                    links = (message * part,)
                    compared = ties.compare(setting, code, ties.log_normal, links)
                    means = (compared.times + latency * compared.rounds).mean(axis=0)
                    is_reached = np.isfinite(means).all()
                    row.append(f"{means[0] / means[1]:.2g}" if is_reached else "missed")
            rows.append(row)
    return markdown(rows)


def checked(
    scale: str, work: ties.Sample = ties.exponential, directions: str = "up"
) -> ties.Checked:
    """Check the rule at a scale."""
    settings = ties.settings([scale])
    return ties.check(ties.choices(settings, work, directions, ties.rule()))


def percents(found: ties.Checked) -> list[str]:
    """Format the shares of right choices: of the rule, of always doubling, and of always everybody."""
    return [f"{100 * right / found.cases:.0f}" for right in found.right.values()]


def checks() -> str:
    """The rule in its own settings and in those that it was not taken from."""
    cases = {
        "the rule's own runs, Exp(1)": ("cpu", ties.exponential),
        "its own runs, log-normal speeds": ("cpu", ties.log_normal),
        "held out: digits, 100 clients, 5 classes, Exp(1)": ("held", ties.exponential),
        "held out: the same, log-normal speeds": ("held", ties.log_normal),
        "held out: MNIST, Exp(1)": ("mnist", ties.exponential),
        "held out: MNIST, log-normal speeds": ("mnist", ties.log_normal),
    }
    head = ["setting", "C counts", "choices", "right %", "wrong ones take longer by"]
    rows = [[*head, "miss the target"]]
    for name, (scale, work) in cases.items():
        for directions, counted in COUNTED.items():
            found = checked(scale, work, directions)
            longer = [f"{100 * (factor - 1):.0f} %" for factor in sorted(found.factors)]
            mean = f"{100 * (np.mean(found.factors) - 1):.0f} %"
            cells = [f"{found.cases}", " / ".join(percents(found))]
            cells.append(f"{mean}, at most {longer[-1]} ({len(longer)})")
            cells.append(" / ".join(map(str, found.missed.values())))
            rows.append([name, counted, *cells])
    return markdown(rows)


def rule() -> str:
    """The rule in a sentence, with its numbers."""
    found = ties.measured_ties("cpu")
    reached = [tie for tie in found if not np.isnan(tie)]
    held_out = [
        list(map(int, percents(checked(scale, work, directions))))
        for scale in ("held", "mnist")
        for work in (ties.exponential, ties.log_normal)
        for directions in COUNTED
    ]
    by_rule, doubling, everybody = (
        f"{min(shares)} to {max(shares)} %" for shares in zip(*held_out, strict=True)
    )
    return wrapped(
        f"**Double while a coded message takes less than about {ties.rule():.1g} of the time that the slowest client "
        "works in a round; otherwise let everybody take part.** That is the median of "
        f"{len(reached)} ties on digits (50 clients, 3 seeds), from {min(reached):.2f} to {max(reached):.2g} of that "
        "time; at a tie both need the same mean time. In the other "
        f"{len(found) - len(reached)} of {len(found)} cases a seed misses the target within 60 rounds. In settings "
        f"that the rule was not taken from it chooses the faster of the two in {by_rule} of the choices, always "
        f"doubling does in {doubling}, always everybody in {everybody}."
    )


def predicted() -> str:
    """Times under phones with links, computed from the rounds, beside those of runs with that clock."""
    links = (1.0, 0.25)  # median seconds of an uncoded message up and down
    latency = 0.1
    setting = ties.Setting("cpu", "FedRep", "fine_tune", 0.95)
    target = ties.target_of(setting)
    head = ["method", "code", "60 rounds: runs", "computed"]
    rows = [[*head, f"to {target:.1f} %: runs", "computed"]]

    def to_target(run: ties.Run, seconds: np.ndarray) -> float:
        rounds = run.rounds_to(target)
        return np.inf if rounds is None else float(seconds[:rounds].sum())

    for method in ties.PAIRS["FedRep"]:
        uncoded = ties.runs("cpu", method, "none", "fine_tune")[0]
        num_clients = int(uncoded.sizes.max())
        slowest = ties.slowest(num_clients, ties.log_normal)
        for code in ties.CODES:
            of_phones = ties.runs("phones", method, code, "fine_tune")
            if not of_phones:
                continue
            of_drawn = ties.runs("cpu", method, code, "fine_tune")
            run = of_drawn[0]
            parts = (run.bytes_up / uncoded.bytes_up, run.bytes_down / uncoded.bytes_down)
            scaled = tuple(each * part for each, part in zip(links, parts, strict=True))
            of_sizes = ties.order_statistics(num_clients, ties.log_normal, scaled)
            seconds = of_sizes * slowest + latency
            all_rounds = [float(each.seconds.sum()) for each in of_phones]
            computed = seconds[run.sizes - 1].sum()
            cells = [pm(all_rounds, 0), f"{computed:,.0f}"]
            in_runs = [to_target(each, each.seconds) for each in of_phones]
            from_rounds = [to_target(each, seconds[each.sizes - 1]) for each in of_drawn]
            cells += [pm(in_runs, 0), pm(from_rounds, 0)]
            rows.append([srp.methods.label(method), ties.CODES[code], *cells])
    return markdown(rows)


PARTS = {
    "uploads": partial(table, "up"),
    "both": partial(table, "both"),
    "rounds": rounds,
    "latencies": latencies,
    "privacy": privacy,
    "rule": rule,
    "ties": partial(all_ties, "cpu"),
    "pair_times": partial(pair_times, "cpu"),
    "phones": on_phones,
    "predicted": predicted,
    "checks": checks,
    "ties_held": partial(all_ties, "held"),
    "ties_mnist": partial(all_ties, "mnist"),
}
OF_MANUAL = {"tie": sentence, "uploads": PARTS["uploads"], "rule": rule}
PAGES = {
    HERE / "README.md": PARTS,
    HERE.parents[1] / "docs/messages.md": OF_MANUAL,
}

if __name__ == "__main__":
    write(PAGES)
