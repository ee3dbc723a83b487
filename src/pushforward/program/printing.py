"""Programs as text."""

from __future__ import annotations

from typing import Any


def printed(program: Any) -> str:
    """A program as PyTorch code."""
    return program.module.code
