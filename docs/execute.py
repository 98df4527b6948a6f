"""`make notebooks`: every notebook executed, as .ipynb beside its source, to open in Jupyter or an editor."""

from pathlib import Path

import jupytext
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def execute(source: Path) -> Path:
    """Runs a notebook in a kernel of its own and writes it with its outputs.

    Raises:
        RuntimeError: it printed a warning, which the reader would see.
    """
    notebook = jupytext.read(source)
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # it says that TCP is not encrypted
    NotebookClient(notebook, km=kernel, timeout=600, resources={"metadata": {"path": FOLDER}}).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr" and "Warning" in output["text"]:
                raise RuntimeError(f"{source.name} prints a warning: {output['text']}")
    made = source.with_suffix(".ipynb")
    jupytext.write(notebook, made)
    return made


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        print(execute(path).relative_to(Path.cwd()), flush=True)
