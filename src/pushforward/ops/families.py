"""Imports every family, so that the table is complete."""

from . import contract, elementwise, factory, movement, reduce

__all__ = ["contract", "elementwise", "factory", "movement", "reduce"]
