"""The version of the package, importable alone."""

__version__ = "0.1.0"
