"""Participation policies: who takes part in a round, decided from the clients' times alone."""

from fedjax_srp.participation.buffered import Buffered
from fedjax_srp.participation.doubling import Doubling
from fedjax_srp.participation.fastest import Fastest
from fedjax_srp.participation.full import Full
from fedjax_srp.participation.partial_work import PartialWork
from fedjax_srp.participation.statistical_accuracy import StatisticalAccuracy
from fedjax_srp.participation.uniform import Uniform

__all__ = ["Buffered", "Doubling", "Fastest", "Full", "PartialWork", "StatisticalAccuracy", "Uniform"]
