"""Runs are saved without figures, which take most of the time; one browser shows the pages of all tests."""

import pytest
from reference.histories import without_figures
from report.browser import browser
from report.page_reading import compared

from fedjax_srp.lab.report import page


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    without_figures(monkeypatch)


@pytest.fixture(scope="session")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def no_errors(tab):
    tab.errors.clear()
    yield
    assert not tab.errors


@pytest.fixture
def show(tab, tmp_path):
    """Return a function that opens the page of runs, or of several comparisons."""

    def shown(runs=(), target=0.6, comparisons=(), title="", **how):
        tab.open(
            page.write(
                tmp_path / "report.html", comparisons or [compared(runs, target)], title
            ),
            **how,
        )

    return shown
