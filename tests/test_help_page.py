"""The page on help and citing agrees with the files that it names, and invents no address."""

import re
from pathlib import Path

import fedjax_srp as srp

ROOT = Path(__file__).parent.parent
HELP = (ROOT / "docs/help.md").read_text()


def test_bibtex_agrees_with_the_citation_file():
    bibtex = HELP[HELP.index("```bibtex") :]
    fields = dict(re.findall(r"^  (\w+) *= \{+(.*?)\}+,?$", bibtex, re.MULTILINE))
    text = (ROOT / "CITATION.cff").read_text()
    cited = dict(re.findall(r"^(title|version|license): (.*)$", text, re.MULTILINE))
    assert {name: fields[name] for name in cited} == cited
    assert fields["version"] == srp.__version__
    assert f"name: {fields['author']}" in text


def test_files_that_are_named_exist_and_no_address_is_invented():
    for name in (".github/ISSUE_TEMPLATE/bug.md", "SECURITY.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        assert Path(name).name in HELP or Path(name).parent.name in HELP
        assert not re.search(r"\w@\w+\.\w|https?://(?!localhost)\S*issues", text)
    assert "no public address" in HELP
    assert not re.search(r"https?://|\w@\w+\.\w", HELP)
