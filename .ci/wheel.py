"""Build the package and use it as its users do: in an empty environment, outside of the repository.

    .venv/bin/python .ci/wheel.py [--all]

The archive of sources has the files that git tracks, and the wheel that is built from it has the package's. In a
new environment the wheel alone runs the README's Python example, and says what the command line lacks; after the
command that it prints, a grid and a report run; with --all also the demo, and the examples of docstrings, which the
tests run in the repository.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name(
    "uv"
)  # .ci/run installs it; pip does the same more slowly
GRID = """
out = "grid"

[options]
dataset = "digits"
num_clients = 10
classes_per_client = 3
hidden = [8]
num_rounds = 2

[axes]
method = ["fedavg", "fedrep"]
seed = [0, 1]
"""


def main() -> None:
    """Run all steps in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        wheel = built(place / "dist")
        user = User(place)
        user.run("the wheel alone", user.pip("install", wheel, "-c", constraints()))
        block = re.search(
            r"^```python\n(.*?)^```$",
            (ROOT / "README.md").read_text("utf-8"),
            re.DOTALL | re.MULTILINE,
        )
        assert block is not None, "README.md has no example"
        (place / "example.py").write_text(block[1], "utf-8")
        user.run("the README's example", [user.python, "example.py"])
        expect(place, "accuracy.png", "runs/srpfl/summary.json")
        user.run("the command that it prints", user.remedy())
        (place / "grid.toml").write_text(GRID, "utf-8")
        user.run("grid", user.command("grid", "grid.toml", "--no-progress"))
        user.run("report", user.command("report", "grid"))
        expect(place, "grid/runs.csv", "grid/report.html")
        if "--all" in sys.argv:
            demo = user.command("demo", "--quick", "--seeds", "1", "--no-progress")
            user.run("demo", demo)
            expect(place, "runs/demo/report.html")
            script = Path(__file__).read_text("utf-8")
            (place / "examples.py").write_text(script, "utf-8")
            user.run("docstrings", [user.python, "examples.py", "docstrings"])


def built(folder: Path) -> Path:
    """Build both archives, check what they hold, and return the wheel."""
    command = [sys.executable, "-m", "build", "--outdir", folder, ROOT]
    if UV.exists():
        command += ["--installer", "uv"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = set(listed.stdout.splitlines())
    (sources,) = folder.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
    found = {member.name.partition("/")[2] for member in members}
    same("the archive of sources", found - {"PKG-INFO"}, tracked)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in tracked if name.startswith("fedjax_srp/")}
    same("the wheel", {name for name in names if ".dist-info/" not in name}, package)
    return wheel


def same(archive: str, found: set[str], expected: set[str]) -> None:
    """Raise a SystemExit that names the files that differ."""
    if found != expected:
        raise SystemExit(
            f"{archive} lacks {sorted(expected - found)[:10]} and has {sorted(found - expected)[:10]} "
            "beside the files that git tracks"
        )


def constraints() -> Path:
    """Return the file of tested versions."""
    return ROOT / "constraints.txt"


def expect(folder: Path, *names: str) -> None:
    """Raise a SystemExit if a file is missing."""
    for name in names:
        if not (folder / name).is_file():
            raise SystemExit(f"{name} was not written")


class User:
    """Someone with an empty environment in a folder of their own, who knows nothing of the repository."""

    def __init__(self, place: Path):
        self.place = place
        self.bin = place / "environment" / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        self.environment = dict(os.environ)
        self.environment.pop("PYTHONPATH", None)
        self.environment["JAX_COMPILATION_CACHE_DIR"] = os.fspath(place / "compiled")
        create = [sys.executable, "-m", "venv", place / "environment"]
        if UV.exists():
            create.append("--without-pip")
        self.run("an empty environment", create)

    def run(self, title: str, command: list[object]) -> None:
        """Run a command in the folder, and print its title and its seconds."""
        begin = time.monotonic()
        done = subprocess.run(
            [os.fspath(word) for word in command],  # type: ignore[arg-type]
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(
                f"{title} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        print(f"{title}: {time.monotonic() - begin:.0f} s", flush=True)

    def pip(self, *words: object) -> list[object]:
        """Return a command of uv, where make has it, or of pip, for the environment."""
        if UV.exists():
            return [UV, "pip", *words, "-q", "--python", self.python]
        return [self.python, "-m", "pip", *words, "-q", "--no-input"]

    def command(self, *words: str) -> list[object]:
        """Return a command of the package."""
        return [self.bin / "fedjax-srp", *words]

    def remedy(self) -> list[object]:
        """Return the command that the command line prints where it lacks a library."""
        done = subprocess.run(
            self.command("list"),  # type: ignore[arg-type]
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        line = done.stderr.strip()
        found = re.fullmatch(
            r"fedjax-srp: error: the command line: \w+ is not installed; pip install (.+)",
            line,
        )
        if done.returncode != 2 or found is None:
            raise SystemExit(f"without its libraries fedjax-srp list says {line!r}")
        return self.pip("install", *shlex.split(found[1]), "-c", constraints())


def docstrings() -> None:
    """Run the examples of all docstrings of the installed package."""
    import fedjax_srp

    package = Path(fedjax_srp.__file__).parent
    assert package.is_relative_to(sys.prefix), package
    tried = 0
    for path in sorted(package.rglob("*.py")):
        if ">>>" in path.read_text("utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            results = doctest.testmod(importlib.import_module(name))
            if results.failed:
                raise SystemExit(f"{results.failed} examples of {name} failed")
            tried += results.attempted
    assert tried > 50, tried


if __name__ == "__main__":
    if sys.argv[1:] == ["docstrings"]:
        docstrings()
    else:
        main()
