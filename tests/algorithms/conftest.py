"""Fixture for tests in double precision."""

import jax
import pytest


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield
