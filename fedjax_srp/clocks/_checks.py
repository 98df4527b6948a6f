"""Checks of what users give to clocks."""

from typing import Any

from fedjax_srp._checks import check_numbers


def check_length(argument: str, length: int, num_clients: int, remedy: str) -> None:
    """Raises a ValueError of one line unless there is one entry per client."""
    if length != num_clients:
        raise ValueError(f"{argument} has {length} entries for num_clients={num_clients}; {remedy}")


def check_communication(clock: str, communication: Any) -> None:
    """Raises a ValueError of one line unless `communication` is one finite number >= 0."""
    check_numbers(f"{clock}: communication", communication, "give a time, e.g. communication=10.0", max_ndim=0)


def check_work(clock: str, work: Any) -> None:
    """Raises a ValueError of one line unless `work` is one finite number >= 0."""
    check_numbers(f"{clock}: work", work, "give the local work of a round, e.g. work=1.0", max_ndim=0)
