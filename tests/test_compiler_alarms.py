"""XLA has nothing to say about the package's programs: no constant as long as the federation is computed in them."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_srp.base import ClientTimes, Cohort
from fedjax_srp.rounds.cohort import cohort_fault


@pytest.fixture
def nothing_cached():
    """A program that a failing test compiled must not come from the disk at its next run."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield
    jax.config.update(name, before)


def test_equal_work_of_many_clients_is_not_searched_by_the_compiler(
    nothing_cached, capfd
):
    num_clients = 400_000

    def fault(ids, size, realised):
        work = jnp.ones(num_clients, jnp.int32)  # as `Full` and `Uniform` have it
        cohort = Cohort(ids, size, work, jnp.int32(0))
        return cohort_fault(cohort, ClientTimes(realised, realised))

    ids = jax.ShapeDtypeStruct((num_clients,), jnp.int32)
    size = jax.ShapeDtypeStruct((), jnp.int32)
    realised = jax.ShapeDtypeStruct((num_clients,), jnp.result_type(float))
    jax.jit(fault).lower(ids, size, realised).compile()
    assert "onstant folding" not in capfd.readouterr().err
