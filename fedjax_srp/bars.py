"""Progress bars, in a terminal or a notebook."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that a notebook without ipywidgets gets a bar of text
    from tqdm.auto import tqdm

__all__ = ["tqdm"]
