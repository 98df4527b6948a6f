"""Runs are saved without figures, which take most of the time."""

import pytest
from reference.histories import without_figures


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    without_figures(monkeypatch)
