"""Checksums of the code of a user's classes and functions."""

import importlib.util
import linecache
import sys
import textwrap

import numpy as np
import pytest

from fedjax_srp.parts.description import describe


def test_properties_of_classes_of_a_notebook_have_checksums(monkeypatch):
    """As in a notebook, Python finds the source of methods by their file name, and none of the class."""
    found = []
    for share in (1, 2):
        source = (
            f"class Own:\n    @property\n    def share(self):\n        return {share}\n"
        )
        monkeypatch.setitem(
            linecache.cache,
            f"<cell {share}>",
            (len(source), None, source.splitlines(True), ""),
        )
        scope = {"__name__": "cell_of_no_file"}
        exec(compile(source, f"<cell {share}>", "exec"), scope)
        found.append(describe(scope["Own"]))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "code",
    [
        "def own(x):\n    return {} * x",
        "class own:\n    def f(self):\n        return {}",
        "class own:\n    rate = {}",
    ],
)
def test_code_without_source_has_a_checksum(code):
    """As for `python -c`; and the constants of a class in a notebook."""
    found = []
    for share in (1, 2, 1):
        scope = {"__name__": "of_no_file"}
        exec(code.format(share), scope)
        found.append(describe(scope["own"]))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    "number", ["{}", "np.arange({})", "[1, ({},)]", "np.float32({})"]
)
@pytest.mark.parametrize(
    "code",
    [
        "def own(x):\n    return number * x",
        "def own(x):\n    return [number for _ in x]",
        "class own:\n    def f(self):\n        return number",
        "class own:\n    f = property(lambda self: number)",
        "def own(x):\n    return number * x.unread",
    ],
)
def test_numbers_and_arrays_that_code_reads_from_its_module_are_in_the_checksum(
    tmp_path, code, number
):
    found = []
    (tmp_path / "own_code.py").write_text(
        f"import numpy as np\n\nunread = 1\nnumber = None\n\n{code}\n"
    )
    for value, unread in ((30, 1), (40, 1), (30, 2)):
        spec = importlib.util.spec_from_file_location(
            "own_code", tmp_path / "own_code.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.number, module.unread = eval(number.format(value), {"np": np}), unread
        found.append(describe(module.own))
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    "value", ["[own]", "[1, np.arange(3), [own]]", "np.array([own] * 17)", "cycle"]
)
def test_other_objects_that_code_reads_from_its_module_are_not_in_the_checksum(value):
    """Such as a list of functions, the reading one among them, and a list that contains itself."""
    cycle, found = [1], []
    cycle.append(cycle)
    for text in (value, "None"):
        scope = {"__name__": "of_no_file"}
        exec("def own(x):\n    return others", scope)
        scope["others"] = eval(text, {"np": np, "own": scope["own"], "cycle": cycle})
        found.append(describe(scope["own"]))
    assert found[0] == found[1]


def test_user_files_named_as_python_modules_have_checksums(tmp_path, monkeypatch):
    """A user's `trace.py` has a checksum, unlike Python's module of this name."""
    checksums = []
    for number in (1, 2):
        file = tmp_path / str(number) / "trace.py"
        file.parent.mkdir()
        file.write_text(f"class Net:\n    width = {number}\n")
        spec = importlib.util.spec_from_file_location("trace", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "trace", module)
        spec.loader.exec_module(module)
        checksums.append(describe(module.Net)["source code"])
    assert checksums[0] != checksums[1]
    assert "source code" not in describe(textwrap.TextWrapper)
