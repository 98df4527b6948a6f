"""Numbers in the READMEs are those of the committed files: every cell of a table, and the numbers of the claims.

A number agrees when the file's value, rounded to the digits that the text shows, is the number of the text.
"""

import json
import math
import re

import jax
import numpy as np
import pandas as pd
import pytest
from claims import EXPERIMENTS, ROOT, agrees, cells_of, check, claimed, results, rows, table

import fedjax_srp as srp

SRPFL, FEDREP, FEDAVG = (EXPERIMENTS / name for name in ("srpfl", "fedrep", "fedavg_representation"))
LABELS = {
    "FedRep": "fedrep", "SRPFL": "srpfl", "LG-FedAvg": "lg_fedavg", "LG-SRPFL": "lg_srpfl", "FedAvg": "fedavg",
    "FedAvg-FT": "fedavg_ft", "FLANP (FedAvg)": "flanp_fedavg", "FLANP-FT": "flanp_fedavg_ft", "HF-MAML": "hf_maml",
}  # fmt: skip
QUARTERS = ("fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter")
OWN = ("own_head", "own_representation")
FILES = ("fedjax", "scale", "dual")


def figure(number: int, dataset: str = "digits") -> pd.DataFrame:
    """Indexed by method, fraction in % and whether the client's own part was judged."""
    frame = pd.read_csv(SRPFL / f"results/figure{number}_{dataset}.csv")
    low = frame["target"].min()
    frame["fraction"] = np.where(np.isclose(frame["target"], low, rtol=1e-9), 95, 99)
    frame["own"] = frame["evaluation"].isin(OWN)
    return frame.set_index(["method", "fraction", "own"]).sort_index()


def test_a_number_agrees_with_what_it_rounds():
    assert agrees("96.4", 96.4444)
    assert not agrees("96.4", 96.46)
    assert agrees("1,873", 1873.2)
    assert agrees("7.3e-6", 7.34e-6)
    assert not agrees("7.3e-6", 7.4e-6)
    assert not agrees("5", math.inf)
    with pytest.raises(AssertionError):
        check("96.4 (85.6)", 96.4, 85.7)


@pytest.mark.parametrize(("dataset", "place"), [("digits", 0), ("mnist", 1), ("cifar10", 2)])
def test_accuracies_of_figure_3(dataset, place):
    found, frame = table(SRPFL / "README.md", "", "digits %", "worst"), figure(3, dataset)
    assert set(found) == set(LABELS)
    for label, cells in found.items():
        row = frame.loc[LABELS[label], 95, False]
        mean, worst, quarters = cells[3 * place : 3 * place + 3]
        check(mean, 100 * row["final_accuracy"])
        check(worst, 100 * row["worst_decile"])
        check(quarters, *(100 * row[quarter] for quarter in QUARTERS))


@pytest.mark.parametrize("cost", [0, 10, 100])
def test_times_and_factors_of_figure_3(cost):
    found = table(SRPFL / "README.md", f"C = {cost}")
    assert set(found) == set(LABELS)
    for place, dataset in enumerate(("digits", "mnist", "cifar10")):
        frame = figure(3, dataset)
        for label, cells in found.items():
            for cell, fraction in zip(cells[2 * place : 2 * place + 2], (95, 99), strict=True):
                row = frame.loc[LABELS[label], fraction, False]
                time, factor = row[f"time_{cost}"], row[f"speed_up_{cost}"]
                assert cell.startswith("≤") == bool(row["reached_at_once"])
                if not math.isfinite(time):
                    reached = "never" if row["reached"] == 0 else f"{row['reached']} of {row['runs']}"
                    assert cell == reached
                elif not math.isfinite(factor):
                    check(cell, time)
                elif dataset == "digits":
                    check(cell, time, factor)
                else:
                    check(cell, time, row[f"least_speed_up_{cost}"], row[f"most_speed_up_{cost}"])


def test_factors_of_all_figures():
    found = rows(SRPFL / "README.md", "figure", "", "95 %: C = 0")
    assert {row[0] for row in found} == {"3", "4", "5", "6"}
    for number, label, *cells in found:
        frame = figure(int(number))
        values = [frame.loc[LABELS[label], f, False][f"speed_up_{c}"] for f in (95, 99) for c in (0, 10, 100)]
        for cell, value in zip(cells, values, strict=True):
            assert cell == "-" if math.isnan(value) else agrees(cell, value), (number, label, value)


def test_both_judgements():
    found = rows(SRPFL / "README.md", "figure", "", "`fine_tune` %")
    judged = [str(number) for number in range(3, 7) if figure(number).index.get_level_values("own").any()]
    assert sorted({row[0] for row in found}) == judged
    assert len(found) == 4 * len(judged)
    for number, label, *cells in found:
        for (mean, worst, time), own in zip(np.reshape(cells, (2, 3)), (False, True), strict=True):
            row = figure(int(number)).loc[LABELS[label], 95, own]
            check(mean, 100 * row["final_accuracy"])
            check(worst, 100 * row["worst_decile"])
            check(time, *(row[name] for name in ("time_0", "speed_up_0") if math.isfinite(row[name])))


def test_claims_of_srpfl():
    page, frames = SRPFL / "README.md", {number: figure(number) for number in range(3, 7)}
    mnist, cifar = figure(3, "mnist"), figure(3, "cifar10")
    factor = {(n, f): frames[n].loc["srpfl", f, False]["speed_up_0"] for n in frames for f in (95, 99)}
    claimed(page, "reaches 95 % of FedRep's accuracy # times as fast and 99 % # times", factor[3, 95], factor[3, 99])
    claimed(
        page, "with random speeds # and # times, with a pool of a fifth # and # times, with both # and # times",
        *(factor[n, f] for n in (4, 5, 6) for f in (95, 99)),
    )  # fmt: skip
    own = frames[3].loc["srpfl", 95, True]["speed_up_0"]
    claimed(page, "Judged with the clients' own heads the # are #.", factor[3, 95], own)
    times = {
        (n, f, m): [frames[n].loc[m, f, False][c] for c in ("time_0", "time_0_std")]
        for n, f in ((3, 99), (6, 95)) for m in ("fedrep", "srpfl")
    }  # fmt: skip
    claimed(page, "figure 3 FedRep takes # ± # and SRPFL # ± #.", *times[3, 99, "fedrep"], *times[3, 99, "srpfl"])
    claimed(page, "C = 0, FedRep takes # ± # and SRPFL # ± #.", *times[6, 95, "fedrep"], *times[6, 95, "srpfl"])
    lg = [frames[n].loc["lg_srpfl", 95, False][f"speed_up_{c}"] for n, c in ((3, 0), (4, 0), (3, 10))]
    claimed(
        page, "# times as fast with fixed speeds and # times with random ones, and not at C = 10 with fixed", *lg[:2]
    )
    claimed(page, "with fixed speeds (#x). Judged with the clients' own layers the # are #. In figure 3", lg[2], lg[0],
            frames[3].loc["lg_srpfl", 95, True]["speed_up_0"])  # fmt: skip
    assert all(frames[3].loc[m, 99, False]["reached"] < 4 for m in ("lg_fedavg", "lg_srpfl"))
    ends = [
        100 * f.loc[m, 95, False]["final_accuracy"] for f in (frames[3], mnist, cifar) for m in ("fedavg_ft", "srpfl")
    ]
    claimed(page, "all three data sets (# against #, # against #, # against #), as does FLANP-FT", *ends)
    bounds = ("least_speed_up_0", "most_speed_up_0")
    claimed(page, "On MNIST it is # to # times as fast to 99 %", *(mnist.loc["srpfl", 99, False][b] for b in bounds))
    claimed(page, "on CIFAR-10 (one seed) # to # times to 95 %", *(cifar.loc["srpfl", 95, False][b] for b in bounds))
    assert cifar.loc["srpfl", 99, False]["reached"] == 0  # "and never reaches 99 %"
    for number in frames:
        slowest = {m: frames[number].loc[m, 95, False]["slowest_quarter_std"] for m in ("srpfl", "fedrep")}
        assert number > 4 or all(0.0075 <= std <= 0.0225 for std in slowest.values())
    short = [
        100 * (frame.loc["fedrep", 95, False]["worst_decile"] - frame.loc["srpfl", 95, False]["worst_decile"])
        for frame in frames.values()
    ]
    claimed(page, "in all four figures of digits, by #, #, # and # points", *short)
    spread = [100 * f.loc[m, 95, False]["worst_decile_std"] for f in frames.values() for m in ("srpfl", "fedrep")]
    claimed(page, "(standard deviations over seeds # to #); on MNIST", min(spread), max(spread))
    claimed(
        ROOT / "README.md", "on digits, by # to # points in figures 3 to 6, with standard deviations over the seeds of "
        "# to #.",
        min(short), max(short), min(spread), max(spread),
    )  # fmt: skip
    worst = [100 * frames[3].loc[m, 95, True]["worst_decile"] for m in ("srpfl", "fedrep")]
    claimed(page, "lower for both: # against #.", *worst)
    quarter = [[100 * f.loc[m, 95, False]["slowest_quarter"] for m in ("srpfl", "fedrep")] for f in (mnist, frames[3])]
    claimed(page, "it has # % under SRPFL and # % under FedRep on MNIST, # and # % on digits", *quarter[0], *quarter[1])


def test_asynchronous_server():
    found = results(SRPFL / "results/asynchronous.json")
    written = table(SRPFL / "README.md", "", "C = 0: time")
    assert set(written) == set(found["0"])
    for label, cells in written.items():
        for cost, (time, final, slowest) in zip(("0", "10"), np.reshape(cells, (2, 3)), strict=True):
            mean = pd.DataFrame(found[cost][label]).astype(float).mean()
            check(time, mean["time_to_0.92"])
            check(final, 100 * mean["accuracy"])
            check(slowest, 100 * mean["slowest_quarter"])


FACTORS = (2, 1.3, 1.1)


def speed_ups(result: dict) -> list[tuple[float, float]]:
    """Mean and standard error of the ratio at each factor."""
    ratios = np.array(result["times"]["srpfl"], float) / np.array(result["times"]["fedrep"], float)
    return [(row.mean(), row.std(ddof=1) / math.sqrt(len(row))) for row in ratios]


@pytest.mark.parametrize(("init", "place"), [("random", 0), ("moments", 1)])
def test_linear_speed_up(init, place):
    page = SRPFL / "linear_speedup.md"
    found = results(SRPFL / f"results/linear_speedup_{init}.json")
    section = page.read_text().split("## From ")[1 + place].split("\n## ")[0]
    lines = [cells_of(line) for line in section.splitlines() if "±" in line and line.startswith("|")]
    assert len(lines) == len(found) == 9
    for cells, result in zip(lines, found, strict=True):
        check(cells[0], result["num_clients"])
        check(cells[1], result["first_distance"])
        check(cells[2], np.mean(result["floors"]))
        for cell, name in zip(cells[3:5], ("fedrep", "srpfl"), strict=True):
            check(cell, np.mean(result["times"][name][FACTORS.index(1.3)]))
        for cell, (mean, error) in zip(cells[5:], speed_ups(result), strict=True):
            check(cell, mean, error)


def test_what_is_said_of_the_linear_speed_up():
    page, found = SRPFL / "linear_speedup.md", results(SRPFL / "results/linear_speedup_random.json")
    ratios = {result["num_clients"]: [mean for mean, _ in speed_ups(result)] for result in found}
    twice = {clients: 1 / means[0] for clients, means in ratios.items()}
    claimed(
        page, "grows from # at N = 32 to # at N = 8192, with its best, #, at N = 4096,",
        twice[32], twice[8192], max(twice.values()),
    )  # fmt: skip
    assert max(twice, key=lambda clients: twice[clients]) == 4096
    by_log = [[means[place] * math.log(clients) for place in range(3)] for clients, means in ratios.items()]
    first, last = by_log[list(ratios).index(128)], by_log[-1]
    claimed(
        page, "from N = 128 to 8192 that goes from # to # to twice the floor, from # to # to 1.3 times and from # "
        "to # to 1.1 times.",
        first[0], last[0], first[1], last[1], first[2], last[2],
    )  # fmt: skip
    heads = np.asarray(srp.data.linear_task(jax.random.key(0), 256, 100, 5, 1.0).heads)
    sets = [heads, *(heads[np.random.default_rng(seed).choice(256, 16, replace=False)] for seed in range(500))]
    steps = [
        srp.theory.max_step_size(float(np.linalg.svd(some, compute_uv=False)[0]) / math.sqrt(len(some)))
        for some in sets
    ]
    claimed(
        page, "With N = 256 all heads together allow a step of #; half of all sets of 16 allow # at most, less than",
        steps[0], np.median(steps[1:]),
    )  # fmt: skip


def test_how_long_a_round_of_the_figures_takes():
    page = SRPFL / "README.md"

    def units(number):  # a round with everybody in the pool, until 95 %
        row = figure(number).loc["fedrep", 95, False]
        return row["time_0"] / ((row["time_10"] - row["time_0"]) / 10)

    claimed(
        page, "A round of FedRep takes # time units in figure 3, # in figure 4, # in figure 5 and # in figure 6",
        *(units(number) for number in range(3, 7)),
    )  # fmt: skip
    for cost, words in ((10, "(#x to 95 %, #x to 99 %, digits)"), (100, "it loses there too (#x and #x).")):
        rows_of = [figure(4).loc["srpfl", fraction, False] for fraction in (95, 99)]
        claimed(page, words, *(row[f"speed_up_{cost}"] for row in rows_of))
    slowest = [figure(n).loc[name, 95, False]["slowest_quarter"] for n in (5, 6) for name in ("srpfl", "fedrep")]
    claimed(page, "it is lower too (# and #, # and #).", *(100 * value for value in slowest))


def test_stages_of_the_lemma():
    lines = rows(SRPFL / "linear_speedup.md", "N", "stages")
    plain = {r["num_clients"]: r for r in results(SRPFL / "results/linear_speedup_moments.json")}
    lemma = {r["num_clients"]: r for r in results(SRPFL / "results/linear_speedup_moments_lemma.json")}
    assert sorted(int(line[0]) for line in lines) == sorted([*lemma, *lemma])
    for clients, stages, *cells in lines:
        result = (lemma if stages.startswith("Lemma") else plain)[int(clients)]
        if stages.startswith("Lemma"):
            check(stages.partition(": ")[2], *result["rounds_per_stage"])
        for cell, (mean, _) in zip(cells, speed_ups(result), strict=True):
            check(cell, mean)


def ranges(cell: str, entry: dict, place: int) -> None:
    values = [entry[name][place] for name in ("mean", "lowest", "highest")]
    check(cell.replace(" to ", " "), *values)


def test_fedrep_figures():
    page = FEDREP / "README.md"
    found = results(FEDREP / "results/figure1.json")
    for place, (samples, cells) in enumerate(table(page, "samples m").items()):
        for cell, name in zip(cells, ("Local only", "FedSGD", "FedRep"), strict=True):
            assert found[name]["final by samples"]["x"][place] == int(samples)
            ranges(cell, found[name]["final by samples"], place)
    curves = results(FEDREP / "results/figure3.json")
    lines = rows(page, "start", "n")
    assert len(lines) == 6
    for start, clients, *cells in lines:
        exact, ten, one = (
            np.array(curves[f"n={clients}, {m}, {start} start"]["final"]) for m in ("FedRep", "10GD-GD", "GD-GD")
        )
        for cell, final in zip(cells, (exact, ten, one), strict=False):
            check(cell, final.mean(), final.min(), final.max())
        check(cells[3].replace("of 10", ""), (exact < ten).sum(), (ten < one).sum())
    found = results(FEDREP / "results/figure4.json")
    for label, cells in table(page, "samples", "1").items():
        for cell, value in zip(cells, found[label.removesuffix("'s representation")]["mean"], strict=True):
            check(cell, value)


def first_round(entry: dict, level: float) -> float:
    """The first drawn round whose mean is at the level or below."""
    return next(x for x, mean in zip(entry["x"], entry["mean"], strict=True) if mean <= level)


def test_claims_of_fedrep():
    page, curves = FEDREP / "README.md", results(FEDREP / "results/figure3.json")
    rounds = [first_round(curves[f"n={n}, GD-GD, random start"], 0.1) for n in (100, 1000)]
    claimed(page, "its mean distance is at 0.1 after # rounds with 100 clients, after # with 1000", *rounds)
    random = results(FEDREP / "results/figure1_random.json")["FedRep"]
    at_5 = np.sort(random["final of every trial"][0])
    claimed(page, "# of 10 trials end at errors # and # (mean #)", (at_5 > 1).sum(), *at_5[-2:], at_5.mean())
    descent = results(FEDREP / "results/figure1.json")["FedRep"]["final by samples"]["mean"]
    np.testing.assert_allclose(random["final by samples"]["mean"][1:], descent[1:], rtol=0.05)


def test_fedavg_representation():
    page = FEDAVG / "README.md"
    found = results(FEDAVG / "results/figure3.json")
    written = table(page, "samples n of the new client")
    names = ("FedAvg, 2 local updates, fine-tuned", "D-GD, 1 local update, fine-tuned", "own samples alone")
    for cells, name in zip(written.values(), names, strict=True):
        for cell, value in zip(cells, found[name]["mean"], strict=True):
            check(cell, value)
    before = [found[f"{name}, before"]["mean"][0] for name in ("FedAvg, 2 local updates", "D-GD, 1 local update")]
    claimed(page, "the two do not differ (# and #;", *before)
    norm = [found[f"{name}, gradient norm"] for name in ("FedAvg, 2 local updates", "D-GD, 1 local update")]
    claimed(
        page, "between # and # for D-GD and still falling, and stays between # and # for FedAvg",
        *(norm[i][name][-1] for i in (1, 0) for name in ("lowest", "highest")),
    )  # fmt: skip
    found = results(FEDAVG / "results/figure1.json")
    for name, words in (
        ("FedAvg, 2 local updates", "its distance is # in the mean (# to #)"),
        ("D-GD, 1 local update", 'does not learn the representation": holds, # (# to #)'),
    ):
        claimed(page, words, *(found[name][what][-1] for what in ("mean", "lowest", "highest")))


def spread(cell: str, entry: dict) -> None:
    check(cell.replace(" to ", " "), entry["mean"], entry["lowest"], entry["highest"])


@pytest.mark.parametrize(
    ("file", "first"),
    [("figure5", "new clients"), ("figure5_brightness_0.5", "half as bright"), ("figure5_step_0.2", "step 0.2")],
)
def test_new_clients_of_trained_networks(file, first):
    """Every row of the file stands in the table and every cell is the file's; a random start has no C of its own."""
    panels = results(FEDAVG / f"results/{file}.json")
    written = rows(FEDAVG / "README.md", first, "C", "start")
    assert len(written) == sum(1 + sum(len(found) - 1 for found in panel.values()) for panel in panels.values())
    for panel, classes, start, *cells in written:
        found = panels[panel][f"C={classes}" if classes != "-" else next(iter(panels[panel]))][start]
        for cell, mean, std in zip(cells, found["mean"], found["std"], strict=False):
            check(cell, mean, std)
        if classes == "-":
            assert cells[-1] == "-"
        else:
            spread(cells[-1], found["global"])


def test_layers_and_features_of_trained_networks():
    page = FEDAVG / "README.md"
    layers, features = (results(FEDAVG / f"results/figure{number}.json") for number in (2, 4))
    written = table(page, "start", "CKA of fc1")
    assert list(written) == list(layers)
    for start, cells in written.items():
        for place, cell in enumerate(cells[:-1]):
            ranges(cell, layers[start], place)
        spread(cells[-1], layers[start]["accuracy"])
    written = table(page, "model", "same class")
    assert list(written) == list(features)
    for model, cells in written.items():
        for cell, what in zip(cells, ("same class", "different classes", "difference", "global"), strict=True):
            if what in features[model]:
                spread(cell, features[model][what])
            else:
                assert cell == "-"
    dsgd, short, long, random = "D-SGD (tau = 1)", "FedAvg, tau = 10", "FedAvg, tau = 50", "random start"
    claimed(page, "FedAvg's first layer is at # and #.", *(layers[name]["mean"][0] for name in (short, long)))
    assert all(low > high for low, high in zip(layers[short]["lowest"], layers[dsgd]["highest"], strict=True))
    assert all(low > high for low, high in zip(layers[long]["lowest"], layers[dsgd]["highest"], strict=True))
    assert layers[random]["lowest"][0] > layers[dsgd]["highest"][0]
    fine_tuned = results(FEDAVG / "results/figure5.json")["new data set"]["C=4"][dsgd]["mean"][-1]
    claimed(page, "D-SGD has # here and # in figure 5", layers[dsgd]["accuracy"]["mean"], fine_tuned)
    between = [features[name]["different classes"] for name in (short, long, dsgd)]
    claimed(page, "Between classes it is # and # (tau = 10 and 50) against D-SGD's #", *(b["mean"] for b in between))
    assert between[1]["highest"] < between[0]["lowest"] < between[0]["highest"] < between[2]["lowest"]
    assert features[long]["global"]["mean"] < min(features[name]["global"]["mean"] for name in (short, dsgd))
    within = [features[name]["same class"]["mean"] for name in (dsgd, short, long)]
    claimed(page, "as similar as FedAvg's, # against # and #.", *within)


def test_claims_of_new_clients():
    page, found = FEDAVG / "README.md", results(FEDAVG / "results/figure5.json")
    dsgd, short, long, random = "D-SGD (tau = 1)", "FedAvg, tau = 10", "FedAvg, tau = 50", "random start"
    new, other = found["new classes"], found["new data set"]
    few, many = ([new["C=4"][name]["mean"][place] for name in (short, long, dsgd)] for place in (0, -1))
    claimed(page, "With 20 samples and C = 4 it is # and # (tau = 10 and 50) against #;", *few)
    claimed(page, "with 500 samples # and # against #. With", *many)
    claimed(
        page, "FedAvg with tau = 50 is behind, # against #.", *(new["C=2"][name]["mean"][-1] for name in (long, dsgd))
    )
    for panel in found.values():
        for classes, of in panel.items():
            for place in range(5):
                above = [of[name]["mean"][place] > of[dsgd]["mean"][place] for name in (short, long)]
                assert all(above) or (of is new["C=2"] and place == 4)
            assert of[dsgd]["global"]["mean"] > of[short]["global"]["mean"] > of[long]["global"]["mean"] + 9, classes
    longer = results(FEDAVG / "results/figure5_step_0.2.json")["new classes"]["C=4"][dsgd]
    steps = few[2], longer["mean"][0], *few[:2]
    claimed(page, "(20 samples, C = 4: from # to #, FedAvg # and #)", *steps)
    assert longer["global"]["mean"] > new["C=4"][dsgd]["global"]["mean"]
    assert all(max(np.subtract(of[long]["mean"], of[short]["mean"])[:4]) < 0 for of in new.values())
    best = max(of[name]["mean"][0] for of in other.values() for name in (dsgd, short, long))
    claimed(page, "With 20 samples it has #, the best trained model #.", other["C=2"][random]["mean"][0], best)
    for of in other.values():
        for name in (dsgd, short, long):
            assert all(np.array(of[random]["mean"][:3]) > of[name]["mean"][:3])
    dim = results(FEDAVG / "results/figure5_brightness_0.5.json")["new data set"]["C=4"]
    for place in (0, 1):
        assert dim[random]["mean"][place] < min(dim[name]["mean"][place] for name in (dsgd, short, long))
        assert dim[long]["mean"][place] < dim[dsgd]["mean"][place] < dim[short]["mean"][place]
    assert dim[dsgd]["mean"][3] > max(dim[name]["mean"][3] for name in (short, long))


def test_how_soon_fedrep_converges_and_what_dim_images_cost():
    curves = results(FEDREP / "results/figure3.json")

    def first(curve, level):  # the round by which its mean is there
        return next(int(x) for x, mean in zip(curve["x"], curve["mean"], strict=True) if mean <= level)

    for clients in (100, 1000):
        rounds = [first(curves[f"n={clients}, FedRep, descent start"], level) for level in (0.1, 0.03, 0.01)]
        claimed(FEDREP / "README.md", "its mean is at 0.1, 0.03 and 0.01 by rounds #, # and # with either", *rounds)
    bright, dim = (
        results(FEDAVG / f"results/{name}.json")["new data set"] for name in ("figure5", "figure5_brightness_0.5")
    )
    lost = {
        name: bright[column][name]["mean"][0] - dim["C=4"][name]["mean"][0]
        for name, column in (("random start", "C=2"), ("D-SGD (tau = 1)", "C=4"))
    }
    claimed(
        FEDAVG / "README.md", "dim images cost it # points with 20 samples, and help D-SGD by #.",
        lost["random start"], -lost["D-SGD (tau = 1)"],
    )  # fmt: skip


def test_demo_table():
    written = table(ROOT / "README.md", "method", "accuracy %")
    frame = pd.read_csv(EXPERIMENTS / "demo/results/table.csv").set_index("method")
    assert {LABELS[label] for label in written} == set(frame.index)
    for label, (accuracy, worst, quarters, *times) in written.items():
        row = frame.loc[LABELS[label]]
        check(accuracy, 100 * row["final_accuracy"], 100 * row["final_accuracy_std"])
        check(worst, 100 * row["worst_decile"], 100 * row["worst_decile_std"])
        check(quarters, *(100 * row[quarter] for quarter in QUARTERS))
        for cell, cost in zip(times, (0, 1, 10), strict=True):
            factor = [row[f"speed_up_{cost}"]] if math.isfinite(row[f"speed_up_{cost}"]) else []
            check(cell, row[f"time_{cost}"], row[f"time_{cost}_std"], *factor)


def test_claims_of_the_front_page():
    frame = figure(3)
    factors = [frame.loc["srpfl", fraction, False]["speed_up_0"] for fraction in (95, 99)]
    claimed(ROOT / "README.md", "SRPFL is # times as fast to 95 % at C = 0 and # times to 99 %", *factors)
    own = figure(3).loc["srpfl", 95, True]["speed_up_0"]
    claimed(ROOT / "README.md", "judged with each client's own head it is # times as fast to 95 %", own)
    for number in range(3, 7):  # "Its worst tenth of clients ends below FedRep's"
        worst = figure(number)["worst_decile"]
        assert worst.loc["srpfl", 95, False] < worst.loc["fedrep", 95, False]


SPEED = {  # row of the front page: rows of cpu-2-cores.txt, for the columns of times and for the last one
    "FedAvg round, MLP": ("FedAvg round", None),
    "FedRep round, 10 epochs": ("FedRep round", "FedRep round"),
    "evaluation of all": ("FedRep evaluation, 10 epochs of the head", "FedRep evaluation, 10 epochs of the head"),
    "FedAvg round, LeNet": ("LeNet FedAvg round, 20 clients", None),
    "FedRep round, 10 + 1 epochs |": ("LeNet FedRep round, 20 clients", "LeNet FedRep round, 20 clients"),
}


def benchmark(what: str, rival: str, file: str = "cpu-2-cores.txt") -> list[float]:
    """Our seconds, the rival's, their ratio, of the committed benchmark."""
    pattern = re.escape(what) + r"\s+" + re.escape(rival) + r"\s+([\d.e-]+)\s+([\d.e-]+)\s+([\d.e-]+)\n"
    (match,) = re.finditer(pattern, (ROOT / "benchmarks/results" / file).read_text())
    return [float(value) for value in match.groups()]


def test_speeds_on_other_machines():
    lines = (ROOT / "benchmarks/results/cpu-2-cores-amd.txt").read_text().splitlines()
    kinds = "FedAvg round", "FedRep round", "FedRep evaluation, 10 epochs of the head"

    def amd(what):
        pattern = re.escape(what) + r"\s+[\d.]+ m?s\s+PyTorch loop:\s+[\d.]+ m?s\s*, ([\d.]+)x"
        (found,) = [match for line in lines if (match := re.fullmatch(pattern, line))]
        return float(found[1])

    other = [benchmark(what, "PyTorch loop", "cpu-2-cores-other.txt") for what in kinds]
    ratios = [row[2] for row in other]
    claimed(
        ROOT / "docs/performance.md", "the three rows of the MLP against the PyTorch loop were #, # and # on a "
        "machine of this kind (`cpu-2-cores-amd.txt`), and #, # and # on another kind with 443 GFLOP/s "
        "(`cpu-2-cores-other.txt`)", *map(amd, kinds), *ratios,
    )  # fmt: skip
    claimed(ROOT / "README.md", "the first three ratios were #, # and #", *ratios)


def test_waits_and_copies():
    found = table(ROOT / "docs/performance.md", "round")
    known = json.loads((ROOT / "benchmarks/results/waits-2-cores.json").read_text())["results"]
    assert list(found) == list(known)
    for name, (took, *cells) in found.items():
        check(took, known[name]["seconds"])
        for cell, way in zip(cells, ("all states exchanged", "copies by XLA's default"), strict=True):
            check(cell, *known[name][way])


def test_speeds_of_the_front_page():
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if " s | " in line]
    for start, (what, cached) in SPEED.items():
        (line,) = [line for line in lines if line.startswith(f"| {start}")]
        _, *cells = cells_of(line)
        for cell, value in zip(cells, benchmark(what, "PyTorch loop"), strict=False):
            check(cell, value)
        assert bool(cells[3]) == (cached is not None)
        if cached:
            check(cells[3], benchmark(cached, "PyTorch loop, features cached")[2])


def test_rounds_against_their_passes():
    found = table(ROOT / "docs/performance.md", "round of")
    known = json.loads((ROOT / "benchmarks/results/personal-2-cores.json").read_text())["results"]
    assert len(found) == len(known)
    for (_, ratio, quartiles), result in zip(found.values(), known.values(), strict=True):
        check(ratio, result["ratio"])
        check(quartiles, *result["quartiles"])
    assert all(result["ratio"] <= 1.3 for result in known.values())


def test_rivals_and_scale_on_the_performance_page():
    page = " ".join((ROOT / "docs/performance.md").read_text().split())
    of = {name: json.loads((ROOT / f"benchmarks/results/{name}-2-cores.json").read_text()) for name in FILES}
    found = re.search(
        r"a FedAvg round takes it (\S+) times as long \(medians (\S+) s and (\S+) s\), a FedRep round (\S+) times "
        r"\((\S+) s and (\S+) s\)",
        page,
    )
    of_fedavg, of_fedrep = found.groups()[:3], found.groups()[3:]
    for texts, method in ((of_fedavg, "fedavg"), (of_fedrep, "fedrep")):
        for text, key in zip(texts, ("rival_over_ours", "rival", "ours"), strict=True):
            check(text, of["fedjax"]["results"][method][key])
    readme = " ".join((ROOT / "README.md").read_text().split())
    shown = re.findall(r"FedJAX's loop took (\S+) times as long for FedAvg and (\S+) times for FedRep", readme)
    assert shown == [(of_fedavg[0], of_fedrep[0])]
    (scale,) = of["scale"]["results"]
    found = re.search(r"(\S+) GiB after 10 rounds and after (\d+), (\S+) s a round", page)
    expected = scale["gib_after_10_rounds"], scale["rounds"], scale["seconds_a_round"]
    for text, value in zip(found.groups(), expected, strict=True):
        check(text, value)
    check(found.group(1), scale["gib_at_the_end"])
    found = re.search(r"(\S+) times as fast on two CPU cores \(quartiles (\S+) to (\S+)\)", page)
    ratio = of["dual"]["engine_over_dual"]
    for text, value in zip(found.groups(), (ratio["median"], *ratio["quartiles"]), strict=True):
        check(text, value)


def test_steps_that_are_searched():
    """Every cell of the table of steps; a star is at the lowest training loss of each tau."""
    frame = pd.read_csv(FEDAVG / "results/steps.csv")
    losses = frame.groupby(["tau", "step"])["training_loss"].mean()
    found = rows(FEDAVG / "README.md", "new clients", "tau")
    assert len(found) == frame.groupby(["panel", "tau", "step"]).ngroups
    for panel, tau, step, *cells, loss, own, trials in found:
        of = frame[
            (frame["panel"] == panel) & (frame["tau"] == int(tau)) & np.isclose(frame["step"], float(step.strip("*")))
        ]
        assert step.endswith("*") == (losses[int(tau)].idxmin() == float(step.strip("*")))
        once = of.drop_duplicates("trial")
        assert len(once) == int(trials)
        columns = [kept["accuracy"] for _, kept in of.groupby("samples")] + [once["training_loss"], once["global"]]
        for cell, values in zip([*cells, loss, own], columns, strict=True):
            check(cell, values.mean(), *([values.std()] if len(values) > 1 else []))


def test_why_flanp_is_ahead_here_and_not_in_the_paper():
    page, frame = SRPFL / "README.md", pd.read_csv(SRPFL / "results/causes.csv")
    last = frame[frame["round"] == 50].set_index(["method", "evaluation", "setting", "seed"])["accuracy"].sort_index()
    slopes = pd.read_csv(SRPFL / "results/causes_gradients.csv").set_index(["setting", "seed"])["below"]
    srpfl, flanp = (last[method, "fine_tune"] for method in ("srpfl", "flanp_fedavg"))
    over = lambda of, name: (of[name].mean(), of[name].std())  # noqa: E731
    softmax, start, both = "double softmax", "PyTorch's start", "double softmax and start"
    claimed(
        page, "FLANP-FT is at # ± #, SRPFL at # ± #; in the text's setting it is # ± # against # ± #.",
        *over(flanp, "code"), *over(srpfl, "code"), *over(flanp, "text"), *over(srpfl, "text"),
    )  # fmt: skip
    claimed(page, "do it: FLANP-FT is at # in seed 0, SRPFL at #.", flanp[both, 0], srpfl[both, 0])
    claimed(
        page, "where FLANP-FT is at # (seed 0), and not in the other, #; SRPFL is at # and #.",
        flanp[softmax, 0], flanp[softmax, 1], srpfl[softmax, 0], srpfl[softmax, 1],
    )  # fmt: skip
    claimed(page, "start alone brings the two within # points", abs(srpfl[start, 0] - flanp[start, 0]))
    assert max(abs(of["momentum", 0] - of["text", 0]) for of in (srpfl, flanp)) < 0.35
    claimed(
        page, "the first one is # of the text's with the double softmax alone, # with PyTorch's start alone and # with",
        *(slopes[name, 0] / slopes["text", 0] for name in (softmax, start, both)),
    )  # fmt: skip
    claimed(page, "hardly moves from there: # %", last["flanp_fedavg", "global", "code", 0])
    few, few_both = (srpfl[f"{name}, heads of 1 epoch", 0] for name in (softmax, both))
    claimed(
        page, "with the double softmax alone, # against #; with PyTorch's start too it is at # against #, which is "
        "still # points above FLANP-FT.",
        few, srpfl[softmax, 0], few_both, srpfl[both, 0], few_both - flanp[both, 0],
    )  # fmt: skip


def test_claims_of_steps_that_are_searched():
    page, frame = FEDAVG / "README.md", pd.read_csv(FEDAVG / "results/steps.csv")
    by = frame.groupby(["panel", "tau", "step", "samples"])["accuracy"]
    losses = frame.groupby(["tau", "step"])["training_loss"].mean()
    at = lambda *key: (by.mean()[key], by.std()[key])  # noqa: E731
    best, counts = {1: 0.4, 10: 0.1, 50: 0.1}, sorted(set(frame["samples"]))
    assert {tau: losses[tau].idxmin() for tau in best} == best
    claimed(
        page, "D-SGD (step 0.4) has # ± #, FedAvg # ± # with tau = 10 and # ± # with tau = 50.",
        *(number for tau, step in best.items() for number in at("new classes", tau, step, 20)),
    )  # fmt: skip
    for n in counts:
        sgd, few, many = (at("new classes", tau, step, n) for tau, step in best.items())
        assert 0 < few[0] - sgd[0] < max(few[1], sgd[1])  # "by less than the spread"
        assert round(many[0] - sgd[0], 1) <= 0
    ahead = {
        (tau, n): at("new data set", tau, best[tau], n)[0] - at("new data set", 1, 0.4, n)[0]
        for tau in (10, 50) for n in counts
    }  # fmt: skip
    assert min(ahead.values()) > 1
    claimed(
        page, "by # points (tau = 10) and # (tau = 50) with 20 and by #", ahead[10, 20], ahead[50, 20], ahead[10, 500]
    )
    claimed(page, "with a step of 0.2 it has # ± #", *at("new data set", 1, 0.2, 20))
    apart = [at("new data set", 10, 0.1, n)[0] - at("new data set", 1, 0.2, n)[0] for n in counts[1:]]
    assert 0 < max(apart) < 1.15
