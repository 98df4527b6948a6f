"""The version stands in `fedjax_srp/_version.py`; other files name it, and must agree.

python .ci/version.py            # prints it, after a look at the other files
python .ci/version.py v0.1.0     # the name of a tag must agree too, and the release must have its date
python .ci/version.py --notes    # what CHANGELOG.md says about it
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# file -> pattern of the version in it
NAMED_IN = {
    "CITATION.cff": r"^version: (\S+)$",
    "docs/help.md": r"^  version = \{(\S+)\},$",
}


class Release(NamedTuple):
    """The newest release that CHANGELOG.md describes."""

    version: str
    date: str | None  # None: it is not out
    notes: str


def version() -> str:
    """Return the version of the package, which is not imported."""
    return found("fedjax_srp/_version.py", r'^__version__ = "(\S+)"$')


def found(file: str, pattern: str) -> str:
    """Return what a pattern finds in a file."""
    match = re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{file} does not name the version")
    return match[1]


def release() -> Release:
    """Return the newest release of CHANGELOG.md; changes under `Unreleased` are of none."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    parts = re.split(r"^## \[(.+?)\](?: - (\S+))?\n", text, flags=re.MULTILINE)
    for name, date, notes in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if name != "Unreleased":
            return Release(name, date, notes.strip())
    raise SystemExit("CHANGELOG.md has no release")


def problems(tag: str | None = None) -> list[str]:
    """Return what does not agree, a line each."""
    expected = version()
    lines = []
    for file, pattern in NAMED_IN.items():
        if (named := found(file, pattern)) != expected:
            lines.append(f"{file} has {named}, and the package {expected}")
    newest = release()
    if newest.version != expected:
        lines.append(f"CHANGELOG.md ends with {newest.version}; the package: {expected}")
    if tag is not None and tag != f"v{expected}":
        lines.append(f"the tag is {tag}, and the package {expected}")
    if tag is not None and newest.date in (None, "unreleased"):
        lines.append(f"CHANGELOG.md has no date for {newest.version}")
    return lines


def main(words: list[str]) -> None:
    """Print the version or the notes; exit with what does not agree."""
    if words == ["--notes"]:
        print(release().notes)
        return
    if found_problems := problems(*words[:1]):
        raise SystemExit("\n".join(found_problems))
    print(version())


if __name__ == "__main__":
    main(sys.argv[1:])
