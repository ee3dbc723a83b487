"""Reductions: over some dimensions, or all of them."""

from __future__ import annotations

from .kinds import Reduction
from .table import row

row("sum mean nansum", Reduction(linear=True))
row("prod amax amin max.default max.dim min.default min.dim all any argmax argmin logsumexp", Reduction())
row("var std var_mean std_mean median nanmedian mode count_nonzero linalg_vector_norm norm aminmax", Reduction())
