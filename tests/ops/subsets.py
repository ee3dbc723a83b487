"""A function under vmap with every subset of its arguments mapped, against the stacked loop."""

from __future__ import annotations

import itertools
import warnings

import torch

import pushforward as pf


def lanes_of(x, size):
    """`size` different values like `x`, stacked."""
    if x.dtype is torch.bool:
        return torch.stack([x.roll(k) if x.dim() else x for k in range(size)]) if size else x.new_empty((0, *x.shape))
    if not (x.is_floating_point() or x.is_complex()):
        return (
            torch.stack([x.flip(0) if k % 2 and x.dim() else x for k in range(size)])
            if size
            else x.new_empty((0, *x.shape))
        )
    return torch.stack([x * (1 - 0.1 * k) for k in range(size)]) if size else x.new_empty((0, *x.shape))


def parts(out):
    """The tensors of a result."""
    return [o for o in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(o, torch.Tensor)]


def check_subsets(f, *args, sizes=(3, 1), tolerance=1e-12):
    """Every non-empty subset of the tensors among `args` mapped, at dim 0 and at the last, without a slow fallback."""
    places = [k for k, a in enumerate(args) if isinstance(a, torch.Tensor)]
    for size, count in itertools.product(sizes, range(1, len(places) + 1)):
        for chosen in itertools.combinations(places, count):
            given = [lanes_of(a, size) if k in chosen else a for k, a in enumerate(args)]
            rows = [f(*[a[lane].clone() if k in chosen else a for k, a in enumerate(given)]) for lane in range(size)]
            expected = [torch.stack(column) for column in zip(*[parts(row) for row in rows], strict=True)]
            for last in (False, True):
                dims = tuple((-1 if last else 0) if k in chosen else None for k in range(len(args)))
                moved = [a.movedim(0, -1) if last and k in chosen else a for k, a in enumerate(given)]
                with warnings.catch_warnings():
                    warnings.simplefilter("error", pf.SlowFallback)
                    got = parts(pf.vmap(f, in_dims=dims)(*moved))
                for g, e in zip(got, expected, strict=True):
                    assert g.dtype == e.dtype, (chosen, size, g.dtype, e.dtype)
                    assert g.shape == e.shape, (chosen, size, g.shape, e.shape)
                    torch.testing.assert_close(
                        g, e, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, c=chosen: f"{c}: {m}"
                    )


def check_no_lanes(f, *args):
    """No lanes at all: the sizes are those of a lane."""
    one = parts(f(*args))
    got = parts(pf.vmap(f)(*[lanes_of(a, 0) for a in args]))
    assert [g.shape for g in got] == [(0, *e.shape) for e in one]
