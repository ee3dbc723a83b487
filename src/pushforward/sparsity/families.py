"""Imports every family of rules, after the table's own."""

from ..ops import families as table_families
from . import contract, index, movement, normalisation, scan, windows

__all__ = ["contract", "index", "movement", "normalisation", "scan", "table_families", "windows"]
