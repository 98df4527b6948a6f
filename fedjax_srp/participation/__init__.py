"""Participation policies: selection of a round's participants by the clients' times and reports.

Cohorts are ordered by the times that rank the clients: realised times, unless the policy has a
choice of times; for `Buffered` the ends of the jobs. Ties are ordered by client id.
"""

from fedjax_srp.participation.asynchronous_tiers import AsynchronousTiers
from fedjax_srp.participation.buffered import Buffered
from fedjax_srp.participation.by_name import POLICIES as POLICIES
from fedjax_srp.participation.compass import Compass
from fedjax_srp.participation.deadline import Deadline
from fedjax_srp.participation.doubling import Doubling
from fedjax_srp.participation.fastest import Fastest
from fedjax_srp.participation.full import Full
from fedjax_srp.participation.growing import (
    GradientDiversity,
    Growing,
    GrowthRule,
    LossPlateau,
    NormTest,
    Verdict,
)
from fedjax_srp.participation.oort import Oort
from fedjax_srp.participation.partial_work import PartialWork
from fedjax_srp.participation.power_of_choice import PowerOfChoice
from fedjax_srp.participation.queued import Queued
from fedjax_srp.participation.statistical_accuracy import StatisticalAccuracy
from fedjax_srp.participation.tiered import Tiered
from fedjax_srp.participation.uniform import Uniform

__all__ = [
    "AsynchronousTiers",
    "Buffered",
    "Compass",
    "Deadline",
    "Doubling",
    "Fastest",
    "Full",
    "GradientDiversity",
    "Growing",
    "GrowthRule",
    "LossPlateau",
    "NormTest",
    "Oort",
    "PartialWork",
    "PowerOfChoice",
    "Queued",
    "StatisticalAccuracy",
    "Tiered",
    "Uniform",
    "Verdict",
]
