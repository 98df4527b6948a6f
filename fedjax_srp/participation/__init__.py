"""Participation policies: who takes part in a round, decided from the clients' times alone."""

from fedjax_srp.participation.buffered import buffered
from fedjax_srp.participation.doubling import doubling
from fedjax_srp.participation.fastest import fastest
from fedjax_srp.participation.full import full
from fedjax_srp.participation.partial_work import partial_work
from fedjax_srp.participation.statistical_accuracy import statistical_accuracy
from fedjax_srp.participation.uniform import uniform

__all__ = ["buffered", "doubling", "fastest", "full", "partial_work", "statistical_accuracy", "uniform"]
