"""The page "Is my derivative wrong?" runs."""

import doctest
from pathlib import Path

import pytest
import torch


def test_page_is_true():
    path = Path(__file__).parents[2] / "docs" / "is-my-derivative-wrong.md"
    if not path.exists():
        pytest.skip("the page is not beside the tests")
    with torch.random.fork_rng():
        found = doctest.testfile(
            str(path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        )
    assert found.attempted > 30
    assert found.failed == 0
