"""Runs are saved without their figures, which take longer than all the rest."""

import pytest
from reference.histories import without_figures


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    without_figures(monkeypatch)
