"""A stranger's files are read: nothing in them is executed, and no module that they name is imported."""

import json
import os
import subprocess

import pytest
from test_history import small

from fedjax_srp.results import commits
from fedjax_srp.results.history import History

IDENTITY = (
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@example.org",
    "-c",
    "commit.gpgsign=false",
)


def git(folder, *arguments):
    """Run git with no settings but those of the repository, and return what it prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    command = ["git", *IDENTITY, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Return the folder of a repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "file").write_text("1")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "first")
    return folder


# Repositories.


def test_saving_a_run_executes_nothing_that_the_repository_around_it_names(
    repository, tmp_path, monkeypatch
):
    """git runs `core.fsmonitor` and filters of the repository for `git status`."""
    calls = tmp_path / "calls"
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\necho called >> {calls}\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("file filter=stranger\n")
    git(repository, "config", "core.fsmonitor", str(program))
    git(repository, "config", "filter.stranger.clean", str(program))
    (repository / "file").write_text("2")
    monkeypatch.chdir(repository)
    environment = History.load(small().save(tmp_path / "run")).environment
    assert not calls.exists()
    assert len(environment["workdir_commit"]) == 40
    git(repository, "status")
    assert calls.exists()  # so the programs are callable


@pytest.mark.parametrize(
    "state", ["loose", "packed", "detached", "below", "work tree", "sha256"]
)
def test_commits_are_those_that_git_tells(repository, tmp_path, state):
    folder = repository
    if state == "packed":
        git(folder, "pack-refs", "--all")
        assert not (folder / ".git/refs/heads/main").exists()
    if state == "detached":
        git(folder, "checkout", "-q", "--detach")
    if state == "below":
        folder = repository / "a" / "b"
        folder.mkdir(parents=True)
    if state == "work tree":
        folder = tmp_path / "tree"
        git(repository, "worktree", "add", "-q", "-b", "other/name", str(folder))
    if state == "sha256":
        folder = tmp_path / "long"
        folder.mkdir()
        git(folder, "init", "-q", "--object-format=sha256")
        git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    assert commits.commit_of(folder) == git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "ref: refs/heads/main",
        "ref: refs/../secret",
        "ref: /etc/passwd",
        "\x1b[31m",
        "ref: refs/\0",
        "A" * 40,
        None,
    ],
)
def test_a_head_that_names_no_commit_is_none(tmp_path, head):
    git_folder = tmp_path / ".git"
    git_folder.mkdir()
    (git_folder / "secret").write_text("0" * 40)
    if head is None:
        os.mkfifo(git_folder / "HEAD")  # to open it for reading would wait for a writer
    else:
        (git_folder / "HEAD").write_text(head)
    assert commits.commit_of(tmp_path) is None


def test_references_around_themselves_end(tmp_path):
    (tmp_path / ".git/refs").mkdir(parents=True)
    (tmp_path / ".git/HEAD").write_text("ref: refs/a")
    (tmp_path / ".git/refs/a").write_text("ref: refs/a")
    assert commits.commit_of(tmp_path) is None


def test_the_commit_of_an_installed_package_is_that_of_its_installer(repository):
    """An environment may lie in a repository of the user's."""
    package = repository / "fedjax_srp"
    package.mkdir()
    assert commits.commit_of_package(package) == git(repository, "rev-parse", "HEAD")
    info = repository / "fedjax_srp-0.1.0.dist-info"
    info.mkdir()
    assert commits.commit_of_package(package) is None
    for origin in (
        "{}",
        "[",
        '{"vcs_info": 1}',
        '{"vcs_info": {"commit_id": "\\u001b[31m"}}',
    ):
        (info / "direct_url.json").write_text(origin)
        assert commits.commit_of_package(package) is None
    (info / "direct_url.json").write_text(
        json.dumps({"url": "u", "vcs_info": {"vcs": "git", "commit_id": "1" * 40}})
    )
    assert commits.commit_of_package(package) == "1" * 40
