"""Numbers in the READMEs are those of the committed files: every cell of a table, and the numbers of the claims.

A number agrees when the file's value, rounded to the digits that the text shows, is the number of the text.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
SRPFL, FEDREP, FEDAVG = (EXPERIMENTS / name for name in ("srpfl", "fedrep", "fedavg_representation"))
LABELS = {
    "FedRep": "fedrep", "SRPFL": "srpfl", "LG-FedAvg": "lg_fedavg", "LG-SRPFL": "lg_srpfl", "FedAvg": "fedavg",
    "FedAvg-FT": "fedavg_ft", "FLANP": "flanp_fedavg", "FLANP-FT": "flanp_fedavg_ft", "HF-MAML": "hf_maml",
}  # fmt: skip
QUARTERS = ("fastest_quarter", "second_quarter", "third_quarter", "slowest_quarter")
OWN = ("own_head", "own_representation")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def agrees(text: str, value: float) -> bool:
    """Whether a number, as written, is the value rounded to its digits."""
    written = float(text.replace(",", ""))
    digits, _, exponent = text.lower().replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return math.isfinite(value) and abs(written - value) <= unit / 2 * (1 + 1e-6) + 1e-12


def check(text: str, *values: float) -> None:
    """All numbers of a text agree with the values, in order."""
    found = NUMBER.findall(text)
    assert len(found) == len(values), (text, values)
    for number, value in zip(found, values, strict=True):
        assert agrees(number, value), (text, number, value)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def rows(path: Path, *header: str) -> list[list[str]]:
    """Rows of the one table whose header begins with these words."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", path.read_text() + "\n", re.MULTILINE)
    tables = [[cells_of(line) for line in block.splitlines()] for block in blocks]
    (found,) = [table for table in tables if tuple(table[0][: len(header)]) == header]
    assert len(found) > 2
    return found[2:]


def table(path: Path, *header: str) -> dict[str, list[str]]:
    """The same by the first cell, which names a row."""
    found = {first: cells for first, *cells in rows(path, *header)}
    assert len(found) == len(rows(path, *header))
    return found


def prose(path: Path) -> str:
    return " ".join(path.read_text().split())


def claimed(path: Path, pattern: str, *values: float) -> None:
    """The text says this, once, with these numbers where the pattern has #."""
    regex = re.escape(" ".join(pattern.split())).replace(r"\#", "(" + NUMBER.pattern + ")")
    (match,) = re.finditer(regex, prose(path))
    assert len(match.groups()) == len(values)
    for number, value in zip(match.groups(), values, strict=True):
        assert agrees(number, value), (match.group(), number, value)


def results(path: Path) -> dict:
    return json.loads(path.read_text())["results"]


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
    claimed(page, "to 95 % of FedRep's accuracy # times as fast and to 99 % # times", factor[3, 95], factor[3, 99])
    claimed(
        page, "with random speeds # and # times, with a pool of a fifth # and # times, with both # and # times",
        *(factor[n, f] for n in (4, 5, 6) for f in (95, 99)),
    )  # fmt: skip
    own = frames[3].loc["srpfl", 95, True]["speed_up_0"]
    claimed(page, "Judged with the clients' own heads the # are #.", factor[3, 95], own)
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


def test_demo_table():
    written = table(ROOT / "README.md", "method", "accuracy %")
    frame = pd.read_csv(EXPERIMENTS / "demo/results/table.csv").set_index("method")
    assert {LABELS[label] for label in written} == set(frame.index)
    for label, (accuracy, worst, quarters, *times) in written.items():
        row = frame.loc[LABELS[label]]
        check(accuracy, 100 * row["final_accuracy"], 100 * row["final_accuracy_std"])
        check(worst, 100 * row["worst_decile"], 100 * row["worst_decile_std"])
        check(quarters, *(100 * row[quarter] for quarter in QUARTERS))
        for cell, cost in zip(times, (0, 10, 100), strict=True):
            factor = [row[f"speed_up_{cost}"]] if math.isfinite(row[f"speed_up_{cost}"]) else []
            check(cell, row[f"time_{cost}"], row[f"time_{cost}_std"], *factor)


def test_claims_of_the_front_page():
    frame = figure(3)
    factors = [frame.loc["srpfl", fraction, False]["speed_up_0"] for fraction in (95, 99)]
    claimed(ROOT / "README.md", "SRPFL is # times as fast to 95 % at C = 0 and # times to 99 %", *factors)
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


def benchmark(what: str, rival: str) -> list[float]:
    """Our seconds, the rival's, their ratio, of the committed benchmark."""
    pattern = re.escape(what) + r"\s+" + re.escape(rival) + r"\s+([\d.e-]+)\s+([\d.e-]+)\s+([\d.e-]+)\n"
    (match,) = re.finditer(pattern, (ROOT / "benchmarks/results/cpu-2-cores.txt").read_text())
    return [float(value) for value in match.groups()]


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
    assert [name for name, result in known.items() if result["ratio"] > 1.3] == ["fed_mtl", "fedsgd"]


FLANP = EXPERIMENTS / "flanp"


def over_seeds(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    numbers = np.array(values, float)
    return float(numbers.mean()), float(numbers.std(ddof=1))


@pytest.mark.parametrize(("name", "key"), [("table1", "s"), ("table2", "N")])
def test_tables_of_flanp(name, key):
    facts = json.loads((FLANP / f"results/{name}.json").read_text())
    rows_of_file, written = facts["results"]["rules"], table(FLANP / "README.md", key, "T_FLANP")
    assert [title.split()[-1] for title in rows_of_file] == list(written)
    for found, printed, cells in zip(rows_of_file.values(), facts["paper"], written.values(), strict=True):
        for cell, column in zip((*cells[:3], *cells[5:]), COLUMNS, strict=True):
            check(cell, *over_seeds(found[column]))
        check(cells[3], printed)
        check(cells[4], over_seeds(found["rounds_FLANP"])[0], over_seeds(found["rounds_FedGATE"])[0])
        assert over_seeds(found["ratio"])[0] < over_seeds(found["theorem2_bound"])[0]  # "held in every row"
    means = [over_seeds(found["ratio"])[0] for found in rows_of_file.values()]
    assert means == sorted(means, reverse=True)  # "falls in every step of both tables"


COLUMNS = ("T_FLANP", "T_FedGATE", "ratio", "ratio_of_propositions", "theorem2_bound")


def test_claims_of_flanps_tables():
    page, files = FLANP / "README.md", [results(FLANP / f"results/table{n}.json") for n in (1, 2)]
    paper = [json.loads((FLANP / f"results/table{n}.json").read_text())["paper"] for n in (1, 2)]
    own = [[over_seeds(found["ratio"])[0] for found in of["rules"].values()] for of in files]
    times = np.array(paper) / np.array(own)
    claimed(page, "The paper's ratios are # to # times ours.", times.min(), times.max())
    found = [one for of in files for one in of["rules"].values()]
    bounds = [over_seeds(one["stage_bound"])[0] for one in found]
    longest = max(max(one["longest_stage"]) for one in found)
    claimed(page, "# to # here, where no stage before the last took more than #.", min(bounds), max(bounds), longest)
    varied = table(page, "ratio", "N = 10")
    assert set(varied) == {*files[1], "the paper's"}
    for name, cells in varied.items():
        if name == "the paper's":
            check(" ".join(cells), *paper[1][:2])
            continue
        for cell, one in zip(cells, list(files[1][name].values())[:2], strict=True):
            check(cell, *over_seeds(one["ratio"]))


def speed_up(figure_name: str, panel: int, rival: str, which: str) -> tuple[float, float]:
    return over_seeds(results(FLANP / f"results/{figure_name}.json")[panel]["speed_up"][rival][which])


def test_speed_ups_of_flanp():
    page = FLANP / "README.md"
    written = table(page, "", "speed-up at the end")
    expected = [(name, panel) for name in ("figure7", "figure8") for panel in range(3)]
    for (label, (cell,)), (name, panel) in zip(written.items(), expected, strict=True):
        assert label == f"{name[-1]}: {results(FLANP / f'results/{name}.json')[panel]['title']}"
        check(cell, *speed_up(name, panel, "fedgate", "at_end"))
    claimed(
        page, "FLANP is # ± # times as fast as FedGATE at most and # ± # times at the end, where the noise",
        *speed_up("figure2", 0, "fedgate", "at_most"), *speed_up("figure2", 0, "fedgate", "at_end"),
    )  # fmt: skip
    claimed(
        page, "holds. It is # ± # at most and # ± # at the end.",
        *speed_up("figure1", 0, "fedgate", "at_most"), *speed_up("figure1", 0, "fedgate", "at_end"),
    )  # fmt: skip


def test_the_heuristic_lies_between():
    page, (panel,) = FLANP / "README.md", results(FLANP / "results/figure9.json")
    fedgate, own = (panel["speed_up"][rival] for rival in ("fedgate", "heuristic"))
    assert fedgate["end"] == own["end"]
    quotients = np.array(fedgate["at_end"]) / np.array(own["at_end"])
    claimed(
        page, "with constants is # ± # times as fast as with the heuristic, and # ± # times as fast as FedGATE.",
        *over_seeds(own["at_end"]), *over_seeds(fedgate["at_end"]),
    )  # fmt: skip
    claimed(page, "is between the two, # ± # times as fast as FedGATE", *over_seeds(list(quotients)))


METHODS = {
    "FLANP": "flanp", "FedGATE": "fedgate", "FedAvg": "fedavg", "FedNova": "fednova",
    "FLANP, threshold by 1/sqrt(2)": "gentle",
    **{f"FedGATE, {k} {kind}": f"{kind}{k}" for k in (5, 25) for kind in ("random", "fastest")},
}  # fmt: skip


@pytest.mark.parametrize("number", [1, 3, 4, 5, 6])
def test_losses_and_speed_ups_of_flanps_networks(number):
    found = results(FLANP / f"results/figure{number}.json")
    written = table(FLANP / "README.md", f"figure {number}", "FLANP's speed-up at most")
    known = {name for panel in found for name in panel if name in METHODS.values()}
    assert {METHODS[label] for label in written} == known
    for label, (most, end, low, accuracy) in written.items():
        panel = next(panel for panel in found if METHODS[label] in panel)
        row, ratios = panel[METHODS[label]], panel["speed_up"].get(METHODS[label])
        check(low, *over_seeds(row["lowest"]))
        check(accuracy, *(100 * value for value in over_seeds(row["accuracy"])))
        for cell, which in ((most, "at_most"), (end, "at_end")):
            check(cell, *(over_seeds(ratios[which]) if ratios and ratios[which] else ()))


def test_gentler_thresholds_of_flanp():
    (panel,) = results(FLANP / "results/figure3.json")
    fedgate, fednova = (panel["speed_up_gentle"][rival] for rival in ("fedgate", "fednova"))
    claimed(
        FLANP / "README.md",
        "is # ± # times as fast as FedGATE at most and # ± # times at the end, to FedNova it is # ± #.",
        *over_seeds(fedgate["at_most"]), *over_seeds(fedgate["at_end"]), *over_seeds(fednova["at_end"]),
    )  # fmt: skip
    assert not any(stages[-1][-1] for stages in panel["flanp"]["stages"])  # "16 clients never came down"
    assert all(stages[-1][0] == 16 for stages in panel["flanp"]["stages"])


def test_the_fastest_clients_alone_saturate():
    page, (_, panel) = FLANP / "README.md", results(FLANP / "results/figure6.json")
    few, more, flanp = panel["fastest5"], panel["fastest25"], panel["flanp"]
    claimed(
        page, "With 5 the loss falls to # and rises again to #, with 25 it stays at #, where FLANP is at #",
        *(over_seeds(values)[0] for values in (few["lowest"], few["last"], more["lowest"], flanp["lowest"])),
    )  # fmt: skip
    assert max(flanp["lowest"]) < min(more["lowest"]) < min(few["lowest"])
    assert flanp["lowest"] == flanp["last"]  # "still falling"


def test_the_criterion_for_fedrep():
    page, found = FLANP / "README.md", results(FLANP / "results/criterion_for_fedrep.json")
    written = table(page, "stages", "median time to 95 %")
    assert set(written) == set(found)
    times = {name: np.array(row["times"], float) for name, row in found.items()}
    for name, (early, late, spread, accuracy) in written.items():
        check(early, np.median(times[name][:, 0]))
        check(late, np.median(times[name][:, 1]))
        check(spread, times[name][:, 1].min(), times[name][:, 1].max())
        check(accuracy, *(100 * value for value in over_seeds(found[name]["accuracy"])))
    ratios = times["10 rounds a stage"] / times["criterion, shrinks by 1/2"]
    claimed(
        page, "the criterion is # to # times as fast to 95 %, and # to # times to 99 %",
        *(edge for column in ratios.T for edge in (column.min(), column.max())),
    )  # fmt: skip
