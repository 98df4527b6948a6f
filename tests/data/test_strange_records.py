"""A stranger's data set is read: no module that it names is imported, and its images start no program."""

import contextlib
import io
import json
import os
import sys

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from reference.small import refused

from fedjax_srp.data import from_huggingface, load, records

FEATURES = "features.json"
EVIL = "evil_features.Feature"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Make `evil_features` importable, and return the file that its import writes."""
    folder = tmp_path / "modules"
    folder.mkdir()
    trace = tmp_path / "imported"
    (folder / "evil_features.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(folder)
    yield trace
    sys.modules.pop("evil_features", None)


@pytest.fixture
def ghostscript(tmp_path, monkeypatch):
    """Put a program `gs` on the path, and return the file that it writes."""
    folder = tmp_path / "programs"
    folder.mkdir()
    trace = tmp_path / "started"
    (folder / "gs").write_text(f"#!/bin/sh\ntouch {trace}\n")
    (folder / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow has not looked for it
    return trace


def eps():
    """Return an image in EPS."""
    written = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(written, "EPS")
    return written.getvalue()


def edited(folder, file, change):
    path = folder / "mnist" / "3.0.1" / file
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


WAYS = {
    "features": (FEATURES, lambda features: features.update(pythonClassName=EVIL)),
    "info": (
        "dataset_info.json",
        lambda info: info.update(features={"pythonClassName": EVIL}),
    ),
    "builder": ("dataset_info.json", lambda info: info.update(moduleName=EVIL)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_class_that_a_file_names_is_not_imported(way, data_dir, evil):
    edited(data_dir, *WAYS[way])
    assert load("mnist", 4, data_dir=data_dir).num_clients == 4
    assert "evil_features" not in sys.modules
    assert not evil.exists()


def test_features_in_the_folder_are_not_read(data_dir):
    (data_dir / "mnist" / "3.0.1" / FEATURES).write_text("{")
    assert load("mnist", 4, data_dir=data_dir).num_clients == 4


def test_an_image_in_a_record_starts_no_program(ghostscript):
    class Source(list):
        def __getitems__(self, rows):
            return [self[row] for row in rows]

    source = Source([{"image": eps(), "label": 0}])
    with pytest.raises(OSError, match="cannot identify image file"):
        records._decode_split("one", source, (28, 28))
    assert not ghostscript.exists()


def test_an_image_of_hugging_face_starts_no_program(ghostscript):
    def rows(image):
        return {"image": [image] * 4, "label": [0, 1, 0, 1]}

    with refused("image.*PNG"):
        from_huggingface(
            {
                "train": rows(Image.open(io.BytesIO(eps()))),
                "test": rows(np.zeros((28, 28))),
            },
            2,
        )
    assert not ghostscript.exists()
    assert EpsImagePlugin.gs_binary is None
    with contextlib.suppress(OSError):  # this `gs` draws nothing
        Image.open(io.BytesIO(eps())).load()
    assert ghostscript.exists()  # so it would have been started
