"""Rows of the table: trainings with their evaluations, and the methods left out."""

from __future__ import annotations

from experiments.judged import Row, trainings

ROWS = {
    "local_only": Row("local_only", "own_model"),
    "fedavg": Row("fedavg", "global"),
    "fedavg_ft": Row("fedavg", "fine_tune", after=True),
    "fedper": Row("fedper", "own_head"),
    "fedrep": Row("fedrep", "own_head"),
    "ditto": Row("ditto", "own_model"),
    "fedala": Row("fedala", "aggregated"),
    "fedrod": Row("fedrod", "own_model"),
    "fedproto": Row("fedproto", "nearest_prototype"),
    "fedbabu": Row("fedbabu", "fine_tune_all", after=True),
    "fedamp": Row("fedamp", "own_model"),
    "lg_fedavg": Row("lg_fedavg", "own_representation"),
    "knn_per": Row("knn_per", "neighbours"),
    "apfl": Row("apfl", "own_model"),
    "fedprox": Row("fedprox", "global"),
    "fedprox_ft": Row("fedprox", "fine_tune", after=True),
    "scaffold": Row("scaffold", "global"),
    "scaffold_ft": Row("scaffold", "fine_tune", after=True),
    "moon": Row("moon", "global"),
    "feddyn": Row("feddyn", "global"),
    "fedpac": Row("fedpac", "own_head"),
    "fedas": Row("fedas", "own_model"),
    "pfedme": Row("pfedme", "own_model"),
    "per_fedavg": Row("per_fedavg", "fine_tune_all", after=True),
    "fed_mtl": Row("fed_mtl", "own_model"),
    "l2gd": Row("l2gd", "own_model"),
    "hf_maml": Row("hf_maml", "one_inner_step"),
    "fedavgm": Row("fedavgm", "global"),
    "fedadam": Row("fedadam", "global"),
    "fedyogi": Row("fedyogi", "global"),
    "fedadagrad": Row("fedadagrad", "global"),
    "fednova": Row("fednova", "global"),
    "fedgate": Row("fedgate", "global"),
    "fedphp": Row("fedphp", "own_model"),
    "feddbe": Row("feddbe", "own_model"),
    "ifca": Row("ifca", "cluster"),
    "feddwa": Row("feddwa", "own_model"),
    "q_fedavg": Row("q_fedavg", "global"),
    "afl": Row("afl", "global"),
    "fedcac": Row("fedcac", "own_model"),
    "gpfl": Row("gpfl", "own_model"),
    "fedcp": Row("fedcp", "own_model"),
    "fedfomo": Row("fedfomo", "own_model"),
    "apple": Row("apple", "own_model"),
}
TRAININGS = trainings(ROWS)
LEFT_OUT = {
    "fedbn": "the same as FedAvg: the CNN has no BatchNorm",
    "fedsgd": "one step a round: not the same work",
    **dict.fromkeys(
        ("fedbuff", "fedasync", "fedat", "asyncsgd", "fedcompass"),
        "asynchronous: its rounds are not those of the others",
    ),
    **dict.fromkeys(
        ("heterofl", "fedrolex", "fjord", "depthfl", "sliding_window"),
        "for clients that train parts of the model: here all train the whole one",
    ),
    **dict.fromkeys(
        ("mifa", "fedvarp"), "the same as FedAvg: all clients train in every round"
    ),
    **dict.fromkeys(
        ("hetlora", "flexlora"),
        "for trained models: here the frozen base would be random",
    ),
} | dict.fromkeys(
    (
        "srpfl",
        "lg_srpfl",
        "flanp_fedavg",
        "flanp_fedavg_ft",
        "flanp",
        "flanp_fedavg_criterion",
        "flanp_fednova",
    ),
    "another participation: here all clients train in every round",
)
