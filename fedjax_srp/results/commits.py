"""Commits for the record of a run, read from git's files: git itself would run programs that a repository names."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from fedjax_srp.parts.files import MALFORMED, open_file

_PACKAGE = Path(__file__).resolve().parents[1]
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")  # SHA-1 or SHA-256
_REFERENCE = re.compile(r"ref: (refs/(?:(?!\.\.)[^\0-\x20\x7f\\])+)")
# of a file; `packed-refs` has a line of about 100 bytes for a reference
_MAX_BYTES = 2**26
_MAX_REFERENCES = 5  # that lead to each other, as in git


def commits() -> dict[str, str | None]:
    """Return the commits of this package and of the repository around the working directory, None if there is none.

    They are those checked out: changes that were not committed do not show.
    """
    by_name = {"package_commit": commit_of_package(_PACKAGE), "workdir_commit": None}
    with contextlib.suppress(OSError):  # it was removed
        by_name["workdir_commit"] = commit_of(Path.cwd())
    return by_name


def commit_of_package(package: Path) -> str | None:
    """Return the commit that a package was installed from (PEP 610), or that of the checkout that it lies in."""
    installed = [*package.parent.glob(f"{package.name}-*.dist-info")]
    if not installed:
        return commit_of(package)
    try:
        origin: Any = json.loads(_text(installed[0] / "direct_url.json"))
        commit = str(origin["vcs_info"]["commit_id"])
    except MALFORMED:  # installed from an archive or an index
        return None
    return commit if _HASH.fullmatch(commit) else None


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in the repository around a folder.

    None outside of repositories.
    """
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        if os.path.lexists(git):
            return _head(_git_folder(git))
    return None


def _git_folder(git: Path) -> Path:
    """Return the folder of a repository.

    Of further work trees and submodules, `.git` is a file that names it.
    """
    link = _text(git)
    if not link.startswith("gitdir: "):
        return git
    return git.parent / link.removeprefix("gitdir: ")


def _head(git: Path) -> str | None:
    """Return the commit of HEAD in the folder of a repository, through its references."""
    shared = git / _text(git / "commondir")  # of all work trees
    value = _text(git / "HEAD")
    for _ in range(_MAX_REFERENCES):
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            break
        name = reference[1]
        value = _text(git / name) or _text(shared / name) or _packed(shared, name)
    return value if _HASH.fullmatch(value) else None


def _packed(git: Path, name: str) -> str:
    """Return the commit of a reference in `packed-refs`, "" if it is not in there."""
    for line in _text(git / "packed-refs").splitlines():
        commit, _, of = line.partition(" ")
        if of == name:
            return commit
    return ""


def _text(path: Path) -> str:
    """Return the text of a plain file without the white space around it, "" if there is none."""
    try:
        with open_file(path, _MAX_BYTES) as file:
            return file.read().decode("utf-8", "replace").strip()
    except (OSError, ValueError):  # missing, a folder, a name with NUL
        return ""
