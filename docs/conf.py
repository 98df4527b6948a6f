"""Sphinx configuration: `make docs` builds with warnings as errors and executes the notebooks."""

import shutil
from pathlib import Path
from typing import Any

import latex2mathml.converter
from docutils.nodes import SkipNode
from jupyter_cache import get_cache
from sphinx.application import Sphinx

import fedjax_srp

# Sources of a page have to lie below this folder; the notebooks live at the top.
here = Path(__file__).parent
shutil.rmtree(here / "notebooks", ignore_errors=True)
shutil.copytree(
    here.parent / "notebooks",
    here / "notebooks",
    ignore=shutil.ignore_patterns("*.ipynb", ".*"),
)

project = "fedjax_srp"
author = "the fedjax_srp authors"
copyright = f"2026, {author}"
release = fedjax_srp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = [
    "_build",
    "conf.py",
    "tables.py",
    "readme_tables.py",
    "execute.py",
    "pictures.py",
    "jupyter_execute",
]
html_theme = "furo"
html_title = "fedjax_srp"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_math_renderer = "mathml"

default_role = "code"  # docstrings write `code` with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(here / "_build" / "jupyter_cache")
_ = get_cache(nb_execution_cache_path).db  # made before several processes share it
nb_execution_timeout = 600
nb_execution_raise_on_error = True
myst_heading_anchors = 3  # pages link to sections as on GitHub
myst_enable_extensions = ["dollarmath", "colon_fence"]


def inline_formula(translator: Any, node: Any) -> None:
    """Formulas as MathML, which browsers draw by themselves: the manual needs no network."""
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise SkipNode


def block_formula(translator: Any, node: Any) -> None:
    """A formula on a line of its own."""
    translator.body.append(
        f'<div class="formula">{latex2mathml.converter.convert(node.astext(), display="block")}</div>'
    )
    raise SkipNode


def spread_notebooks(app: Sphinx, env: Any, names: list[str]) -> None:
    """Notebooks apart from each other: a process reads neighbours, and they take nearly all of the time."""
    notebooks = [name for name in names if name.startswith("notebooks/")]
    others = [name for name in names if name not in notebooks]
    distance = len(names) / max(1, len(notebooks))
    for place, name in enumerate(notebooks):
        others.insert(round(place * distance), name)
    names[:] = others


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("env-before-read-docs", spread_notebooks)
    app.add_html_math_renderer("mathml", (inline_formula, None), (block_formula, None))
