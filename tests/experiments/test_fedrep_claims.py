"""What FedRep's README says of networks on real data is what the committed files have."""

import json
import re

import numpy as np
from claims import EXPERIMENTS, check, claimed, results

FEDREP = EXPERIMENTS / "fedrep"


def test_what_fedreps_table_says_of_its_ablation(monkeypatch):
    monkeypatch.syspath_prepend(str(FEDREP))
    from rivals import PAPER

    def runs(file):
        return json.loads((FEDREP / f"results/{file}.json").read_text())["runs"]

    table, ablation = runs("table1"), runs("ablation")

    def accuracy(column, label="FedAvg", seed="0"):
        return (ablation if column in ablation else table)[column][label][seed]["accuracy"]

    page, two, five = FEDREP / "README.md", "cifar10_100x2", "cifar10_100x5"
    tuned = "FedAvg+FT"
    claimed(
        page, "With (100, 2) FedAvg falls from # (seed 0) to # by the start alone, to # by crops and flips, and to # "
        "by all four (paper: #), and fine-tuned to # (#).",
        *(accuracy(way) for way in (two, f"{two}_torch", f"{two}_cropped", f"{two}_authors")), PAPER["FedAvg"][0],
        accuracy(f"{two}_authors", tuned), PAPER[tuned][0],
    )  # fmt: skip
    claimed(
        page, "With (100, 5) it falls from # to # by the start, to # by crops and flips, to # by their shards, and to "
        "# by all four (paper: #).",
        *(accuracy(way) for way in (five, *(f"{five}_{way}" for way in ("torch", "cropped", "shards", "authors")))),
        PAPER["FedAvg"][1],
    )  # fmt: skip
    claimed(
        page, "Fine-tuned it falls from # to # by crops and flips (paper: #) and rises to # by their shards, where a "
        "client has fewer classes to tell apart, so that by all four it is at #.",
        accuracy(five, tuned), accuracy(f"{five}_cropped", tuned), PAPER[tuned][1],
        accuracy(f"{five}_shards", tuned), accuracy(f"{five}_authors", tuned),
    )  # fmt: skip
    prox, prox_tuned = "FedProx", "FedProx+FT"
    claimed(
        page, "with (100, 5) to # by all four (paper: #), fine-tuned to # by crops and flips (#) and to # by all four; "
        "with (100, 2) to # by all four (#), fine-tuned to # (#).",
        accuracy(f"{five}_authors", prox), PAPER[prox][1], accuracy(f"{five}_cropped", prox_tuned),
        PAPER[prox_tuned][1], accuracy(f"{five}_authors", prox_tuned),
        accuracy(f"{two}_authors", prox), PAPER[prox][0], accuracy(f"{two}_authors", prox_tuned), PAPER[prox_tuned][0],
    )  # fmt: skip
    claimed(
        page, "With 0.25 APFL is at # with (100, 5) (paper: #).", accuracy(f"{five}_share", "APFL"), PAPER["APFL"][1]
    )
    local = "Local only"
    claimed(
        page, "Local only is then at # instead of #, and L2GD at # instead of # (paper: #).",
        accuracy(f"{five}_shards", local), accuracy(five, local),
        accuracy(f"{five}_shards", "L2GD"), accuracy(five, "L2GD"), PAPER["L2GD"][1],
    )  # fmt: skip
    claimed(
        page, "with their shards, start, crops and flips, it is at # (paper: #).",
        accuracy(f"{five}_authors", local), PAPER[local][1],
    )  # fmt: skip
    claimed(page, "LG-Fed is at # by all four (paper: #)", accuracy(f"{five}_authors", "LG-Fed"), PAPER["LG-Fed"][1])
    above = [accuracy(column, "PerFedAvg") - PAPER["PerFedAvg"][place] for place, column in enumerate((two, five))]
    claimed(page, "PerFedAvg is # points above the paper with", above[0])
    like_theirs = accuracy(f"{two}_authors", "PerFedAvg")
    claimed(page, "and # above it (#) as in the authors' code;", like_theirs - PAPER["PerFedAvg"][0], like_theirs)
    claimed(page, "with (100, 5) it is # below.", -above[1])
    for label in (local, "APFL", "L2GD", "LG-Fed", "Fed-MTL"):
        assert accuracy(five, label) < PAPER[label][1] - 5
    assert accuracy(five, "FedRep") < accuracy(five, "FedPer")
    before, text = table[two], " ".join(page.read_text().split())
    ((first, last, never),) = re.findall(
        r"is (\S+) after round 70 and falls to (\S+) after round 100, in seed 0 it is at (\S+) until round 60", text
    )
    coins = {seed: before["L2GD"][seed]["by_round"] for seed in ("0", "3")}
    check(first, coins["3"]["70"])
    check(last, coins["3"]["100"])
    check(never, coins["0"]["60"])
    assert ablation[f"{five}_step"]["L2GD"]["0"]["diverged"] <= 100
    found = [
        of[column]["FedAvg"]
        for of in (table, ablation)
        for column in of
        if "cifar10_" in column and "FedAvg" in of[column]
    ]
    spread = [run["std_of_rounds"] for seeds in found for run in seeds.values()]
    claimed(
        page,
        "Over the last ten rounds on CIFAR-10 FedAvg has a standard deviation of # to #.",
        min(spread),
        max(spread),
    )


def test_what_fedreps_table_says_of_cifar100(monkeypatch):
    monkeypatch.syspath_prepend(str(FEDREP))
    from rivals import PAPER

    page = FEDREP / "README.md"

    table = json.loads((FEDREP / "results/table1.json").read_text())["runs"]
    runs = table["cifar100_100x5_once"]
    ours = {label: np.mean([run["accuracy"] for run in seeds.values()]) for label, seeds in runs.items()}
    paper = {label: PAPER[label][3] for label in ours if PAPER[label][3] is not None}
    order = sorted(paper, key=lambda label: -paper[label])
    assert order == ["FedRep", "Ditto", "FedPer", "Local only", "FedAvg"]
    assert sorted(paper, key=lambda label: -ours[label]) == ["FedRep", "FedPer", "Ditto", "Local only", "FedAvg"]
    claimed(page, "which is second there (#) and behind FedPer here;", paper["Ditto"])
    claimed(page, "whose number is lost, is # points above FedRep.", ours["FedAvg+FT"] - ours["FedRep"])
    five = {label: table["cifar100_100x5"][label]["0"]["accuracy"] for label in ("Local only", "FedPer", "FedRep")}
    claimed(
        page, "With the text's five Local only is at # instead of # (paper: #), FedPer at # instead of # (#) and "
        "FedRep at # instead of # (#): half of the difference, half, and a sixth.",
        *(number for label in five for number in (five[label], ours[label], paper[label])),
    )  # fmt: skip
    parts = [(five[label] - ours[label]) / (paper[label] - ours[label]) for label in five]
    assert 0.4 < min(parts[:2]) <= max(parts[:2]) < 0.6
    assert 1 / 7 < parts[2] < 1 / 5
    below = [paper[label] - ours[label] for label in order]
    claimed(page, "All five are # to # points below the paper.", min(below), max(below))


def test_claims_of_more_local_epochs():
    page, curves = FEDREP / "README.md", results(FEDREP / "results/figure5.json")
    fedrep, fedavg, tuned = (curves[name]["mean"] for name in ("FedRep, own heads", "FedAvg", "FedAvg+FT"))
    claimed(page, "holds for the mean, which rises from # to #.", fedrep[0], fedrep[-1])
    claimed(page, "which rises from # to # and is level with FedRep throughout", fedavg[0], fedavg[-1])
    claimed(page, "there FedAvg falls from # to #, and is", tuned[0], tuned[-1])
    assert min(np.diff(fedrep)) > 0
    assert min(np.diff(fedavg)) > 0
    assert max(np.diff(tuned)) < 0
    five = curves["FedRep, own heads"]
    assert fedrep[-1] - fedrep[2] < five["highest"][2] - five["lowest"][2]
    assert max(abs(np.subtract(fedrep, fedavg))) < 0.5
    assert min(np.subtract(tuned, np.maximum(fedrep, fedavg))) > 1


def test_claims_of_new_writers():
    page, panels = FEDREP / "README.md", results(FEDREP / "results/figure6_femnist.json")
    few, many = panels["20 samples"], panels["all samples"]

    def ahead(panel):
        others = [panel[name]["mean"] for name in panel if name != "FedRep"]
        return [int(e) for e in np.flatnonzero(panel["FedRep"]["mean"] > np.max(others, 0))]

    assert ahead(few) == list(range(2, 12))
    assert ahead(many) == [1]
    last = [panel[name]["mean"][-1] for panel in (few, many) for name in ("FedRep", "FedAvg")]
    claimed(page, "from 2 to 11 epochs, and behind FedAvg's after 30 (# against #).", *last[:2])
    claimed(page, "the first epoch only (# against #,", *(many[name]["mean"][1] for name in ("FedRep", "FedAvg")))
    assert many["FedAvg"]["highest"][1] > many["FedRep"]["lowest"][1]
    claimed(page, "and ends at # against #. The paper", *last[2:])
    alone, l2gd, lg = (
        [panel[name]["mean"][-1] for panel in (few, many)] for name in ("Local, all layers", "L2GD", "LG-FedAvg")
    )
    claimed(page, "alone, a new client ends at # and, still rising, at #.", *alone)
    claimed(page, "L2GD's ends below a client alone (# and #), LG-FedAvg's at # and #.", *l2gd, *lg)
    assert (np.array(l2gd) < alone).all()
    assert (np.array(lg) > alone).all()
    rising = many["Local, all layers"]["mean"]
    assert np.mean(rising[-5:]) > np.mean(rising[-10:-5]) + 3
    apart = [np.subtract(panel["FedAvg"]["mean"], panel["APFL"]["mean"]) for panel in (few, many)]
    claimed(page, "here they are up to # points apart.", np.abs(apart).max())
    lowest = [sorted(panel, key=lambda name: panel[name]["mean"][-1])[:3] for panel in (few, many)]
    assert all({"LG-FedAvg", "L2GD"} <= set(of) for of in lowest)
    digits = results(FEDREP / "results/figure6.json")
    assert all(panel["FedAvg"] == panel["APFL"] for panel in digits.values())
    frozen = {name: curve["mean"][-1] for name, curve in digits["all samples"].items() if "Local" not in name}
    assert set(sorted(frozen, key=lambda name: frozen[name])[-2:]) == {"LG-FedAvg", "L2GD"}


def test_what_fedreps_table_says_of_the_papers_claims():
    page, columns = FEDREP / "README.md", json.loads((FEDREP / "results/table1.json").read_text())["runs"]

    def mean(column, label):
        return np.mean([run["accuracy"] for run in columns[column][label].values()])

    places, behind = [], []
    for column in ("cifar10_100x2", "cifar10_100x5", "cifar100_100x5_once"):
        order = sorted(columns[column], key=lambda label: -mean(column, label))
        assert order[0] == "FedAvg+FT"
        places.append(order.index("FedRep") + 1)
        behind.append(mean(column, "FedAvg+FT") - mean(column, "FedRep"))
    assert places == [4, 5, 2]
    claimed(
        page, "with (100, 2) it is fourth, # points below FedAvg+FT; with (100, 5) fifth, # below FedAvg+FT and # "
        "below FedPer; on CIFAR-100 with one epoch second, # below FedAvg+FT.",
        *behind[:2], mean("cifar10_100x5", "FedPer") - mean("cifar10_100x5", "FedRep"), behind[2],
    )  # fmt: skip
    ahead = {}
    for suffix in ("", "+FT"):
        for column in ("cifar10_100x2", "cifar10_100x5"):
            ahead[column + suffix] = mean(column, f"SCAFFOLD{suffix}") - mean(column, f"FedAvg{suffix}")
    claimed(
        page, "is level with (100, 2) (# against # ± 0.4) and ahead with (100, 5) (# against # ± 0.3); fine-tuned it "
        "is # and # behind.",
        *(mean(column, label) for column in ("cifar10_100x2", "cifar10_100x5") for label in ("SCAFFOLD", "FedAvg")),
        -ahead["cifar10_100x2+FT"], -ahead["cifar10_100x5+FT"],
    )  # fmt: skip
    assert 0 < ahead["cifar10_100x2"] < 0.4 < 2 < ahead["cifar10_100x5"]


def test_claims_of_doubling_by_schedule():
    page = FEDREP / "README.md"
    ten, three = (results(FEDREP / f"results/doubling_table{end}.json") for end in ("", "_3"))
    own = {"fedper": "own_head", "fedrep": "own_head", "lg_fedavg": "own_representation", "ditto": "own_model"}
    own["apfl"] = "own_model"

    def rounds(seed):
        return round((seed["0.95 C=10"]["doubling"] - seed["0.95 C=0"]["doubling"]) / 10)

    def medians(found, name, evaluation, target):
        return float(np.median([seed[target]["factor"] for seed in found[name][evaluation]]))

    for name, evaluation in own.items():
        assert {rounds(seed) for seed in ten[name][evaluation]} == {41}
        assert ({rounds(seed) for seed in three[name][evaluation]} == {13}) == (name != "ditto")
    factors = [medians(three, name, evaluation, "0.95 C=0") for name, evaluation in own.items()]
    claimed(page, "in that round, and the factors are # to #.", min(factors), max(factors))
    for name in ("fedper", "fedrep"):
        claimed(page, "FedPer and FedRep reach # at C = 10.", medians(three, name, "fine_tune", "0.95 C=10"))
    pays = {
        who: [round((s["0.95 C=10"][who] - s["0.95 C=0"][who]) / 10) for s in ten["l2gd"]["own_model"]]
        for who in ("everybody", "doubling")
    }
    assert (sum(paid == 0 for paid in pays["everybody"]), min(pays["doubling"])) == (2, 33)
    changes = {
        (name, evaluation): np.array([100 * (s["worst_tenth_doubling"] - s["worst_tenth_everybody"]) for s in seeds])
        for name, by_evaluation in ten.items()
        for evaluation, seeds in by_evaluation.items()
    }
    clear = {what: change for what, change in changes.items() if abs(change.mean()) > change.std(ddof=1)}
    order = [("per_fedavg", "fine_tune_all"), ("ditto", "own_model"), ("lg_fedavg", "fine_tune")]
    assert set(clear) == {*order}
    claimed(
        page, "# ± # points with PerFedAvg, # ± # with Ditto, +# ± # with LG-FedAvg judged after fine-tuning.",
        *(value for what in order for value in (clear[what].mean(), clear[what].std(ddof=1))),
    )  # fmt: skip
