"""Settings of all tests: four CPU devices, strict promotion of types and ranks, quick compilation."""

import gc
import os
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",  # tests compile far longer than they run
        "--xla_llvm_disable_expensive_passes=true",
        # half the compile time; later versions abort at this flag; make test-long compiles as users do
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        if version("jaxlib").startswith("0.10.")
        else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
).strip()

os.environ.setdefault(
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0"
)  # a tenth of the time of tracing

# Cache of compiled programs. One folder a worker: its files are not written atomically.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
    Path(__file__).parents[1]
    / ".pytest_cache"
    / "xla"
    / os.environ.get("PYTEST_XDIST_WORKER", "alone")
)

import jax
import pytest
from reference import histories

import fedjax_srp as srp
from fedjax_srp.driver import programs as program
from fedjax_srp.driver import record

gc.set_threshold(200_000, 50, 50)  # traces make many objects that stay
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_itemcollected(item):
    """Mark the cases of a test that its mark `short` does not name as long."""
    mark = item.get_closest_marker("short")
    if mark and not any(fnmatchcase(item.callspec.id, case) for case in mark.args):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Refuse a mark `short` that names no case: the intended case would silently be long."""
    if any("::" in argument for argument in config.args):
        return  # single tests were requested
    cases = {}
    for item in items:
        if mark := item.get_closest_marker("short"):
            cases.setdefault((item.nodeid.split("[")[0], mark.args), []).append(
                item.callspec.id
            )
    for (test, named), ids in cases.items():
        for case in named:
            if not any(fnmatchcase(one, case) for one in ids):
                raise pytest.UsageError(
                    f"{test}: short({case!r}) names no case of {', '.join(ids)}"
                )


def make_room_for_programs():
    """Free compiled programs: each takes memory areas, Linux allows a process 65,530, and XLA crashes beyond."""
    for free in (
        program._jitted.cache_clear,
        jax.clear_caches,
    ):  # all but single operations, which most tests use
        areas = Path("/proc/self/maps")
        if areas.exists() and areas.read_bytes().count(b"\n") > 15_000:
            free()


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs():
    yield
    make_room_for_programs()


@pytest.fixture
def room_for_programs():
    """Make room after a test that compiles as much as a module of others."""
    yield
    make_room_for_programs()


# rooms whose tests do not compare records of own code; those of `lab` do
ROOMS_WITHOUT_HASHES = {
    "algorithms",
    "clocks",
    "engine",
    "linear",
    "messages",
    "models",
    "participation",
}


@pytest.fixture(scope="module")
def without_hashes():
    """Records of own code have no hash: for it a program is traced again, in nearly half of the time of a small run.

    It yields the function that traces, for a test of just that.
    """
    traces = record._trace

    def not_traced(run):
        return dict.fromkeys((record.ROUNDS, *run.evaluations), "not traced")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_trace", not_traced)
        patch.setattr(
            record, "_hashes", program.Kept(256)
        )  # none of these for other modules
        yield traces


@pytest.fixture(autouse=True, scope="module")
def _rooms_without_hashes(request):
    if request.path.parent.name in ROOMS_WITHOUT_HASHES:
        request.getfixturevalue("without_hashes")


@pytest.fixture
def no_rounds(monkeypatch):
    """Runs have random scores and compile nothing: for tests of names, settings and folders."""
    histories.without_rounds(monkeypatch)


@pytest.fixture
def one_device(monkeypatch):
    """Runs use one device if they do not say how many: their programs compile in three quarters of the time."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Return a function that saves histories in numbered folders, without figures."""
    histories.without_figures(monkeypatch)
    count = iter(range(100))

    def put(*histories):
        return [history.save(tmp_path / f"run{next(count)}") for history in histories]

    return put


@pytest.fixture(autouse=True)
def _registries_as_before():
    """Remove the parts that a test has registered."""
    tables = (
        srp.methods.RECIPES,
        srp.methods.POLICIES,
        srp.models.FACTORIES,
        srp.clocks.CLOCKS,
    )
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        if table != rows:
            table.clear()
            table.update(rows)
