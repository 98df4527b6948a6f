"""The page of claims, `experiments/README.md`."""

import importlib.util
import sys

import pytest
from claims import EXPERIMENTS

FLANP = EXPERIMENTS / "flanp/README.md"


@pytest.fixture(scope="module")
def script():
    """`experiments/claims.py`, under a name that no module of the tests has."""
    spec = importlib.util.spec_from_file_location("claims_of_the_papers", EXPERIMENTS / "claims.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_is_what_the_script_writes(script):
    assert (EXPERIMENTS / "README.md").read_text() == script.page()


def test_rows_are_complete(script):
    for folder, (_, claims) in script.PAPERS.items():
        assert len({claim.quote for claim in claims}) == len(claims)
        for claim in claims:
            assert claim.verdict in script.VERDICTS
            assert claim.size.startswith((script.PAPER, script.OTHER)), claim.quote  # no size goes unsaid
            assert bool(claim.files) == (claim.verdict != script.NOT_RUN)
            assert all((EXPERIMENTS / folder / "results" / name).is_file() for name in claim.files)
            assert (EXPERIMENTS / folder / claim.command.split()[0]).is_file()
