"""The numbers of FLANP's README are those of the committed files."""

import json

import numpy as np
import pytest
from claims import EXPERIMENTS, check, claimed, results, table

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
    in_paper = zip(facts["paper"], facts["paper_times"], strict=True)
    for found, (printed, of_paper), cells in zip(rows_of_file.values(), in_paper, written.values(), strict=True):
        for cell, column in zip((*cells[:3], *cells[5:]), COLUMNS, strict=True):
            check(cell, *over_seeds(found[column]))
        ratio, times = cells[3].split(" = ")
        check(ratio, printed)
        assert tuple(map(float, times.split(" / "))) == tuple(of_paper)
        assert abs(of_paper[0] / of_paper[1] - printed) < 0.01
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
    level = over_seeds(files[1]["rules"]["num_clients 10"]["ratio_of_propositions"])
    assert abs(level[0] - 1) < level[1]  # "would be level with FedGATE at N = 10"
    claimed(page, "The paper's ratios are # to # times ours.", times.min(), times.max())
    found = [one for of in files for one in of["rules"].values()]
    bounds = [over_seeds(one["stage_bound"])[0] for one in found]
    longest = max(max(one["longest_stage"]) for one in found)
    words = "# to # here in the mean of a row, where no stage before the last took more than #."
    claimed(page, words, min(bounds), max(bounds), longest)
    varied = table(page, "ratio", "N = 10")
    assert set(varied) == {*files[1], "the paper's"}
    for name, cells in varied.items():
        if name == "the paper's":
            check(" ".join(cells), *paper[1][:2])
            continue
        for cell, one in zip(cells, list(files[1][name].values())[:2], strict=True):
            if cell == "as the rules":
                assert one == next(iter(files[1]["rules"].values()))
            else:
                check(cell, *over_seeds(one["ratio"]))


def test_what_flanps_readme_says_of_the_papers_times():
    page = FLANP / "README.md"
    facts, many = (json.loads((FLANP / f"results/table{n}.json").read_text()) for n in (1, 2))
    harmonic = [sum(1 / i for i in range(1, n + 1)) for n in (10, 100, 1000)]
    claimed(
        page, "it is #, # and # in table 2: about the same",
        *(times[1] / h for times, h in zip(many["paper_times"], harmonic, strict=True)),
    )  # fmt: skip
    rules, full = (facts["results"][name] for name in ("rules", "full gradients"))
    fedgate = [[over_seeds(row["T_FedGATE"])[0] for row in of.values()] for of in (rules, full)]
    claimed(page, "grows # times from s = 20 to 2,000.", fedgate[0][-1] / fedgate[0][0])
    claimed(page, "it still grows, # times:", fedgate[1][-1] / fedgate[1][0])
    for (name, row), (title, cells) in zip(full.items(), table(page, "full gradients, s").items(), strict=True):
        assert title == name.split()[-1]
        for cell, column in zip(cells, ("T_FLANP", "T_FedGATE", "ratio"), strict=True):
            check(cell, *over_seeds(row[column]))
    for row, paper in zip(full.values(), facts["paper"], strict=True):
        assert over_seeds(row["ratio"])[0] < paper


SIX = "N = 50, s = 20", "s = 200", "s = 2,000", "N = 10, s = 100", "N = 100", "N = 1,000"


def test_targets_that_stay_where_they_are():
    """Ratios and times of `fixed_target.py` beside the paper's, and at equal speeds."""
    page, found = FLANP / "README.md", list(results(FLANP / "results/fixed_target.json").values())
    tables = [json.loads((FLANP / f"results/table{n}.json").read_text()) for n in (1, 2)]
    ratios, times, equal = (
        table(page, name, *SIX)
        for name in ("ratio of times", "T_FLANP, T_FedGATE", "time at equal speeds, FLANP over FedGATE")
    )
    paper = [ratio for of in tables for ratio in of["paper"]]
    check(" ".join(ratios.pop("the paper's")), *paper)
    check(" ".join(times.pop("the paper's")), *(time for of in tables for pair in of["paper_times"] for time in pair))
    for label, cells in ratios.items():
        for cell, row in zip(cells, found, strict=True):
            check(cell, *over_seeds(row[label.removeprefix("to ")]["ratio"]))
    for label, cells in times.items():
        for cell, row in zip(cells, found, strict=True):
            of = row[label.removeprefix("to ")]
            check(cell, *(over_seeds(of[name])[0] for name in ("T_FLANP", "T_FedGATE")))
    assert all(len(row[target]["ratio"]) == 20 for row in found for target in ("0.02", "0.0116", "tightening"))
    apart = np.abs([over_seeds(row["0.0116"]["ratio"])[0] - ratio for row, ratio in zip(found, paper, strict=True)])
    claimed(page, "our ratios are within # of the paper's in all six rows.", 0.09)
    assert apart.max() < 0.095
    rules = [row for of in tables for row in of["results"]["rules"].values()]
    for cell, row in zip(equal.pop("batches, by the rules"), rules, strict=True):
        check(cell, *over_seeds(list(np.divide(row["rounds_FLANP"], row["rounds_FedGATE"]))))
    by_theory = [over_seeds(row["propositions_equal"]) for row in found]
    for cell, values in zip(equal.pop("by equation 4"), by_theory, strict=True):
        check(cell, *values)
    claimed(page, "FLANP takes # to # times as long.", min(by_theory)[0], max(by_theory)[0])
    for label, cells in equal.items():
        for cell, row in zip(cells, found, strict=True):
            mean, deviation = over_seeds(row[label.removeprefix("to ")]["equal_speeds"])
            check(cell, mean, deviation)
            assert mean > 1  # "needs more rounds than FedGATE in the mean of every row"


def test_theorem_1_and_proposition_1():
    page, found = FLANP / "README.md", results(FLANP / "results/theorems.json")
    written = table(page, "n", "start over Proposition 1's bound")
    assert list(written) == list(found["float64"])
    for (start, largest, gap, most, rounds, met), row in zip(written.values(), found["float64"].values(), strict=True):
        starts = [value for value in row["start_over_bound"] if value is not None]
        check(start, *(over_seeds(starts) if starts else ()))
        check(largest, *([max(starts)] if starts else ()))
        check(gap, *over_seeds(row["gap_over_accuracy"]))
        check(most, max(row["gap_over_accuracy"]))
        check(rounds, *over_seeds(row["rounds_to_accuracy"]))
        check(met, *over_seeds(row["rounds_to_criterion"]))
    rows_of = {dtype: list(of.values()) for dtype, of in found.items()}
    allowed = [value for row in rows_of["float64"] for value in row["allowed_rounds"]]
    claimed(page, "R = 12 kappa log 6, # to # rounds", min(allowed), max(allowed))
    most = {dtype: max(max(row["gap_over_accuracy"]) for row in of) for dtype, of in rows_of.items()}
    needed = max(max(row["rounds_to_criterion"]) for row in rows_of["float64"])
    claimed(page, "The gap is # V_ns at most", most["float64"])
    claimed(page, "no stage needed more than # rounds to meet", needed)
    claimed(page, "with 3 of the seeds, the gap is # V_ns at most.", most["float32"])
    starts = [value for row in rows_of["float64"] for value in row["start_over_bound"] if value is not None]
    claimed(page, "the worst at # of the bound.", max(starts))
    assert most["float64"] < 1
    assert max(starts) < 1


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
    "FLANP by 1/sqrt(2)": "gentle", "FLANP from the first norm": "early",
    "FedNova with random steps": "fednova_drawn", "FLANP, n0 = N / 2": "half",
    **{f"FedGATE, {k} {kind}": f"{kind}{k}" for k in (5, 25) for kind in ("random", "fastest")},
}  # fmt: skip


FILES = {
    "figure 1": "figure1",
    "figure 1, 500 rounds": "figure1_full",
    "figure 3": "figure3_full",
    "figure 4": "figure4_full",
    "figure 5": "figure5",
    "figure 6": "figure6_full",
    "figure 6, s = 80": "figure6",
}


@pytest.mark.parametrize("title", FILES)
def test_losses_and_speed_ups_of_flanps_networks(title):
    found = results(FLANP / f"results/{FILES[title]}.json")
    written = table(FLANP / "README.md", title, "FLANP's speed-up at most")
    known = {name for panel in found for name in panel if name in METHODS.values()}
    assert {METHODS[label] for label in written} == known
    for label, (most, end, low, accuracy) in written.items():
        panel = next(panel for panel in found if METHODS[label] in panel)
        row, ratios = panel[METHODS[label]], panel["speed_up"].get(METHODS[label])
        check(low, *over_seeds(row["lowest"]))
        check(accuracy, *(100 * value for value in over_seeds(row["accuracy"])))
        for cell, which in ((most, "at_most"), (end, "at_end")):
            check(cell, *(over_seeds(ratios[which]) if ratios and ratios[which] else ()))


SIZES = {  # samples of a client, the paper's number first
    "figure 1": {"1,200": "figure1_full"},
    "figure 3": {"3,000": "figure3_full", "200": "figure3"},
    "figure 4": {"2,500": "figure4_full", "100": "figure4"},
    "figure 6": {"1,200": "figure6_full"},
}
LOSSES = {
    "figure 1": (0.6, 0.5, 0.4, 0.36),
    "figure 3": (0.5, 0.4, 0.3, 0.2),
    "figure 4": (2.1, 2.0, 1.9, 1.8),
    "figure 6": (0.5, 0.4, 0.3, 0.2),
}


@pytest.mark.parametrize("title", SIZES)
def test_times_to_fixed_losses(title):
    """A row is "rival over FLANP, s = ...": the rival's time over FLANP's."""
    written = table(FLANP / "README.md", f"{title}, to a loss of", *map(str, LOSSES[title]))
    for label, cells in written.items():
        methods, _, samples = label.partition(", s = ")
        rival, ours = (METHODS[name] for name in methods.split(" over "))
        (ratios,) = [
            of["at"][ours][rival] for of in results(FLANP / f"results/{SIZES[title][samples]}.json") if rival in of
        ]
        for cell, loss in zip(cells, LOSSES[title], strict=True):
            reached = [ratio for ratio in ratios[str(loss)] if ratio is not None]
            if len(reached) < len(ratios[str(loss)]):
                assert cell == f"{len(reached)} of {len(ratios[str(loss)])} seeds"
            else:
                check(cell, *over_seeds(reached))


def test_flanp_on_mnist():
    page, (panel,) = FLANP / "README.md", results(FLANP / "results/figure3_full.json")
    at = panel["at"]["flanp"]["fednova"]
    claimed(page, "it is # ± # at a loss of 0.5 and # ± # at 0.2.", *over_seeds(at["0.5"]), *over_seeds(at["0.2"]))
    assert [stages[-1][0] for stages in panel["flanp"]["stages"]] == [8, 8, 16]  # "8, 8 and 16 of the 20 clients"
    claimed(page, "is # ± # times as fast as FedNova at 0.3 and # ± # times at 0.2", *(
        number for loss in ("0.3", "0.2") for number in over_seeds(panel["at"]["gentle"]["fednova"][loss])
    ))  # fmt: skip


def test_flanp_with_few_images_a_client():
    (panel,) = results(FLANP / "results/figure3.json")
    numbers = [number for loss in ("0.5", "0.2") for number in over_seeds(panel["at"]["flanp"]["fednova"][loss])]
    claimed(FLANP / "README.md", "the gain is lost: # ± # at 0.5 and # ± # at 0.2.", *numbers)
    (cifar,) = results(FLANP / "results/figure4.json")
    ratios = cifar["at"]["flanp"]["fednova"]
    claimed(FLANP / "README.md", "slower than FedNova everywhere, # ± # at 2.1.", *over_seeds(ratios["2.1"]))
    assert all(over_seeds(of)[0] < 1 for of in ratios.values())


def test_flanp_on_cifar():
    page, (panel,) = FLANP / "README.md", results(FLANP / "results/figure4_full.json")
    norms = [of_seed for (of_seed,) in panel["flanp"]["norms"]]  # one stage a seed
    assert all(clients == 1 for clients, *_ in norms)
    thresholds, lowest = ([norm[place] for norm in norms] for place in (1, 2))
    claimed(page, "Half of the first gradient norm is # to # here", min(thresholds), max(thresholds))
    claimed(page, "the norm of one client's loss never fell below #:", min(lowest))
    assert panel["flanp"]["stages"] == panel["gentle"]["stages"]
    assert min(panel["flanp"]["last"]) > max(panel["flanp"]["lowest"])  # "its loss rises in the end"
    before = [sum(rounds for _, rounds, *_ in stages[:-1]) for stages in panel["early"]["stages"]]
    assert all(stages[-1][0] == 20 for stages in panel["early"]["stages"])
    claimed(page, "all 20 clients take part after # to # rounds", min(before), max(before))
    at = panel["at"]["early"]
    claimed(
        page, "paper's size: # ± # at a loss of 2.1, and # ± # times as fast at the end", *over_seeds(
            at["fednova"]["2.1"]), *over_seeds(panel["speed_up_early"]["fednova"]["at_end"]),
    )  # fmt: skip
    drawn = [number for loss in ("2.1", "1.8") for number in over_seeds(at["fednova_drawn"][loss])]
    claimed(page, "with random steps it holds: # ± # at 2.1 and # ± # at 1.8.", *drawn)


def test_flanp_under_exponential_speeds():
    page = FLANP / "README.md"
    claimed(
        page, "FLANP is faster than FedGATE and FedAvg, # ± # times at the end",
        *speed_up("figure5", 0, "fedgate", "at_end"),
    )  # fmt: skip
    ahead, behind = (speed_up("figure5", 0, "fednova", which)[0] for which in ("at_most", "at_end"))
    assert ahead > 1 > behind


def test_figure_1_until_all_clients_take_part():
    page, (panel,) = FLANP / "README.md", results(FLANP / "results/figure1_full.json")
    assert all(stages[-1][0] == 50 for stages in panel["flanp"]["stages"] + panel["half"]["stages"])
    claimed(
        page, "until all 50 clients take part: # ± # at most and # ± # at the end with n0 = 1, # ± # at most and # ± # "
        "at the end with n0 = 25.", *(
            number for name in ("speed_up", "speed_up_half") for which in ("at_most", "at_end")
            for number in over_seeds(panel[name]["fedgate"][which])
        ),
    )  # fmt: skip


def test_partial_participation_at_the_papers_size():
    page, (drawn, fastest) = FLANP / "README.md", results(FLANP / "results/figure6_full.json")
    assert [stages[-1][0] for stages in drawn["flanp"]["stages"]] == [16, 8, 16]  # "8, 16 and 16 of the 50"
    means = [over_seeds(ratios)[0] for of in drawn["at"]["flanp"].values() for ratios in of.values()]
    means += [over_seeds(ratios[which])[0] for ratios in drawn["speed_up"].values() for which in ("at_most", "at_end")]
    claimed(page, "holds, # to # times in the mean of 3 seeds.", min(means), max(means))
    few, more, flanp = (fastest[name] for name in ("fastest5", "fastest25", "flanp"))
    claimed(
        page,
        "The 25 fastest are at # and still falling, below FLANP's #, which has had less time. The 5 fastest are at #",
        *(over_seeds(of["lowest"])[0] for of in (more, flanp, few)),
    )  # fmt: skip
    assert more["lowest"] == more["last"]
    assert max(flanp["time"]) < max(more["time"])
    assert sum(last > low for last, low in zip(few["last"], few["lowest"], strict=True)) == 1
    assert all(over_seeds(ratios)[0] > 1 for of in fastest["at"]["flanp"].values() for ratios in of.values())


def test_the_fastest_clients_alone_saturate():
    page, (_, panel) = FLANP / "README.md", results(FLANP / "results/figure6.json")
    few, more, flanp = panel["fastest5"], panel["fastest25"], panel["flanp"]
    claimed(
        page, "With 5 the loss falls to # and rises again to #, with 25 it stays at #, where FLANP is at #",
        *(over_seeds(values)[0] for values in (few["lowest"], few["last"], more["lowest"], flanp["lowest"])),
    )  # fmt: skip
    assert max(flanp["lowest"]) < min(more["lowest"]) < min(few["lowest"])
    assert flanp["lowest"] == flanp["last"]  # "still falling"
    at = lambda row, time: row["mean"][int(np.searchsorted(row["time"], time, side="right")) - 1]  # noqa: E731
    assert "lead in the middle, from about 3e4 to 1.8e5 time units" in " ".join(page.read_text().split())
    assert all(at(more, time) < at(flanp, time) for time in np.geomspace(3e4, 1.8e5, 50))
    assert all(at(more, time) > at(flanp, time) for time in (1e4, 2.5e5))


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
    half, root = (times["10 rounds a stage"] / times[f"criterion, {by}"] for by in ("shrinks by 1/2", "by 1/sqrt(2)"))
    np.testing.assert_array_equal(half[:, 0], root[:, 0])
    claimed(
        page, "the criterion is # to # times as fast to 95 %, and to 99 % # to # times with a threshold that shrinks "
        "by 1/2, # to # times by 1/sqrt(2).",
        *(edge for column in (half[:, 0], half[:, 1], root[:, 1]) for edge in (column.min(), column.max())),
    )  # fmt: skip
