"""Sphinx configuration: `make docs` builds with warnings as errors and executes the notebooks."""

import shutil
from pathlib import Path

import fedjax_srp

# Sources of a page have to lie below this folder; the notebooks live at the top.
here = Path(__file__).parent
shutil.copytree(here.parent / "notebooks", here / "notebooks", dirs_exist_ok=True)

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
]
exclude_patterns = ["_build", "conf.py", "tables.py", "jupyter_execute"]
html_theme = "furo"
html_title = "fedjax_srp"

default_role = "code"  # docstrings write `code` with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_cache_path = str(here / "_build" / "jupyter_cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
