"""Files around the package agree with each other."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

sys.path.append(str(ROOT / ".ci"))
import version  # noqa: E402

import fedjax_srp as srp  # noqa: E402


def test_the_version_stands_in_one_place_and_others_agree():
    assert version.version() == srp.__version__
    assert version.problems() == []
    assert version.problems("v99.0.0")[0].startswith("the tag is v99.0.0")


def test_every_tested_python_is_declared_everywhere():
    minors = [
        each.rpartition(" ")[2]
        for each in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d", each)
    ]
    assert PROJECT["requires-python"] == f">={minors[0]}"
    workflow = (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
    (matrix,) = re.findall(r"^ +python: \[(.+)\]$", workflow, re.MULTILINE)
    assert re.findall(r'"(.+?)"', matrix) == minors


def test_every_requirement_has_a_tested_version():
    pinned = set()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()[1:]:
        name, separator, _ = line.partition("==")
        assert separator, line
        pinned.add(normal(name))
    required = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        required += extra
    names = {normal(re.match(r"[\w.-]+", each)[0]) for each in required}
    assert names - {"fedjax-srp"} <= pinned


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_page_on_installation_names_every_extra_that_users_install():
    text = (ROOT / "docs/install.md").read_text("utf-8")
    named = {
        each for found in re.findall(r'"\.\[(.+?)\]"', text) for each in found.split(",")
    }
    assert named == {*PROJECT["optional-dependencies"]} - {"dev", "docs"}


def docstrings(path):
    """Yield the docstrings of a file, with the names of what they describe."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", path.name), text


def test_norms_in_docstrings_are_code():
    """Sphinx, which the manual's build meets minutes later, takes |w| for a reference."""
    found = []
    for path in sorted((ROOT / "fedjax_srp").rglob("*.py")):
        for name, text in docstrings(path):
            prose = re.sub(r"`[^`]*`", "", text)
            lines = [line for line in prose.splitlines() if ">>>" not in line]
            if any(re.search(r"(?<![\w|])\|[^\s|]", line) for line in lines):
                found.append(f"{path.stem}: {name}")
    assert not found
