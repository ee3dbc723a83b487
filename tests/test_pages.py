"""Every code block of the pages runs: `>>>` examples as doctests, plain blocks in order, in one namespace a page."""

from __future__ import annotations

import doctest
import re
import warnings
from pathlib import Path

import pytest
import torch

from pushforward.ops.table import ROWS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
# Run by the tests of the part that they describe.
ELSEWHERE = {
    "control-flow.md",
    "is-my-derivative-wrong.md",
    "jacobians.md",
    "programs.md",
    "ragged-batches.md",
    "randomness.md",
    "state.md",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def rows():
    """Rows that a page adds go with it."""
    before = dict(ROWS)
    yield
    ROWS.clear()
    ROWS.update(before)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ELSEWHERE], ids=name)
def test_examples(page):
    torch.manual_seed(0)
    with torch.random.fork_rng(), warnings.catch_warnings():
        failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
        assert not failed
        space: dict[str, object] = {"__name__": "page"}
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if ">>>" not in match[1]:
                blank = "\n" * text[: match.start()].count("\n")  # so that a traceback names the line of the page
                exec(compile(blank + "\n" + match[1], str(page), "exec"), space)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    missing = [target for target in LINK.findall(prose) if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    contents = (ROOT / "mkdocs.yml").read_text()
    missing = [p.name for p in DOCS.rglob("*.md") if str(p.relative_to(DOCS)) not in contents]
    assert not missing


def test_the_reference_has_every_public_name():
    import pushforward as pf

    named = set(re.findall(r"^::: pushforward\.([\w.]+)", (DOCS / "reference.md").read_text(), re.MULTILINE))
    missing = set(pf.__all__) - {n.split(".")[0] for n in named}
    assert not missing
