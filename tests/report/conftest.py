"""Runs are saved without their figures, which take longer than all the rest."""

import pytest

from fedjax_srp.history import History


class NoFigure:
    def savefig(self, *_, **__):
        pass


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr(History, "plot", lambda *_: NoFigure())
    monkeypatch.setattr("fedjax_srp.commands.report.figure", lambda *_: NoFigure())
