"""Every row of the operator table under every composition of the transforms."""

from __future__ import annotations

import warnings

import pytest
import torch

import pushforward as pf
from pushforward.core import slow
from pushforward.ops import families  # noqa: F401  (fills the table)
from pushforward.ops.table import ROWS
from tests.table.compositions import COMPOSITIONS, Compositions, smooth
from tests.table.samples import WITHOUT, sample_of


def by_sample():
    """Rows that share a sample, under one name."""
    groups = {}
    for name in ROWS:
        found = sample_of(name)
        if found is not None:
            groups.setdefault(id(found) if name not in WITHOUT else name, (found, []))[1].append(name)
    return {" ".join(names): found for found, names in groups.values()}


CASES = by_sample()


def test_every_row_has_a_sample_or_a_reason_for_none():
    missing = [name for name in ROWS if sample_of(name) is None and name not in WITHOUT]
    assert not missing, f"say in tests/table how to call {missing}, or why they cannot be called"
    assert not set(WITHOUT) - set(ROWS)
    assert all(WITHOUT.values())


def composed(sample):
    """A sample's tensors, and its function seen by every composition."""
    given = [v.make(torch.Generator().manual_seed(k)) for k, v in enumerate(sample.values)]
    variables = [k for k, v in enumerate(sample.values) if not v.fixed and smooth(given[k])]
    shared = {k for k, v in enumerate(sample.values) if v.shared}
    return Compositions(sample.function, given, variables, shared)


@pytest.mark.parametrize("name", CASES)
def test_row(name):
    sample = CASES[name]
    it = composed(sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("ignore" if sample.slow else "error", pf.SlowFallback)
        slow._SAID.clear()
        wrong = {how: why for how, why in it.batched(smallest=int(sample.asks)) if why}
        if sample.refused:
            with pytest.raises(pf.NotDifferentiableError):
                pf.jvp(it.f, tuple(it.x), tuple(it.v))
        elif sample.stopped:
            value = it.f(*it.x)[0]
            tangent = pf.jvp(it.f, tuple(it.x), tuple(it.v))[1][0]
            torch.testing.assert_close(tangent, value / it.x[0] * it.v[0])
        elif not sample.values_only and it.x and it.f(*it.x):
            found = it.differentiated(orders=1 if sample.once else 2, reverse=not sample.forward)
            wrong.update({how: why for how, why in found if why})
    assert not wrong, "\n".join(f"{how}: {why}" for how, why in wrong.items())


def test_every_composition_is_compared():
    """On a function that has them all."""
    seen = {
        "vmap",
        "vjp against differences",
        *(how for how, why in composed(sample_of("sin")).differentiated() if why is None),
    }
    assert seen == {*COMPOSITIONS, "vjp against differences"}
