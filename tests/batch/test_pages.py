"""Every example of the pages on control flow, ragged batches, randomness and state runs as it stands."""

from __future__ import annotations

import doctest
import warnings
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("page", ["control-flow", "ragged-batches", "randomness", "state"])
def test_examples(page):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)
        failed, tried = doctest.testfile(
            str(DOCS / f"{page}.md"), module_relative=False, optionflags=FLAGS, verbose=False
        )
    assert tried > 5
    assert failed == 0
