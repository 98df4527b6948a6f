"""`make notebooks`: executes every notebook and writes it as .ipynb beside its script, small enough to be committed."""

import base64
import io
import tempfile
from pathlib import Path

import jupytext
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
COLORS = 64  # of a picture


def execute(source: Path) -> Path:
    """Runs a notebook in a kernel of its own and writes it with its outputs.

    Raises:
        RuntimeError: it printed a warning, which the reader would see.
    """
    notebook = jupytext.read(source)
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # of the sockets: over TCP it warns that nothing is encrypted
        kernel = AsyncKernelManager(
            kernel_name="python3", transport="ipc", ip=f"{folder}/kernel"
        )
        options = {
            "timeout": 600,
            "record_timing": False,
            "resources": {"metadata": {"path": FOLDER}},
        }
        NotebookClient(notebook, km=kernel, **options).execute(cleanup_kc=True)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr" and "Warning" in output["text"]:
                raise RuntimeError(f"{source.name} prints a warning: {output['text']}")
            shrink(output)
    notebook.metadata["kernelspec"] = KERNEL
    made = source.with_suffix(".ipynb")
    jupytext.write(notebook, made)
    return made


def shrink(output: NotebookNode) -> None:
    """Gives the picture of an output few colours, which makes it a third of its size."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        small = io.BytesIO()
        picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(
            small, "PNG", optimize=True
        )
        data["image/png"] = base64.b64encode(small.getvalue()).decode()


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        print(execute(path).relative_to(FOLDER.parent), flush=True)
