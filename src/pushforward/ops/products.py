"""Products of dual numbers: (p, p') · (q, q') = (pq, p'q + pq'), taken in pairs.

A product of n factors has a derivative that divides by each factor, wrong at zeros; the formula with cumulative
products from both sides is right once. Multiplying dual numbers pair by pair in log₂ n rounds is right at zeros, and
being a polynomial in the factors and their tangents it can be differentiated again to any order.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def product_tangent(x: Tensor, dx: Tensor) -> Tensor:
    """The tangent of `x.prod(-1)`: halve the number of factors until one is left."""
    n = x.shape[-1]
    if n == 0:
        return dx.sum(-1)
    while n > 1:
        half = n // 2
        p, q = x[..., :half], x[..., half : 2 * half]
        dp, dq = dx[..., :half], dx[..., half : 2 * half]
        products, moved = p * q, dp * q + p * dq
        if n % 2:
            products = torch.cat([products, x[..., -1:]], -1)
            moved = torch.cat([moved, dx[..., -1:]], -1)
        x, dx, n = products, moved, half + n % 2
    return dx[..., 0]


def running_products(x: Tensor, dx: Tensor) -> Tensor:
    """The tangent of `x.cumprod(-1)`: each round doubles how far back the products reach."""
    step, n = 1, x.shape[-1]
    while step < n:
        p, dp = x[..., :-step], dx[..., :-step]
        q, dq = x[..., step:], dx[..., step:]
        moved = torch.cat([dx[..., :step], dp * q + p * dq], -1)
        x = torch.cat([x[..., :step], p * q], -1)
        dx, step = moved, 2 * step
    return dx


def segment_products(
    x: Tensor, dim: int, index: Tensor, source: Tensor, tangent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For every place of `x` along `dim` the product of the sources sent there, its tangent, and whether there are any.

    The sources are sorted by their place; a running product restarts where the place changes, and its last values are
    the products.
    """
    flat = x.dim() == 0
    if flat:
        x, index, source, tangent, dim = x.reshape(1), index.reshape(1), source.reshape(1), tangent.reshape(1), 0
    ones, zeros = torch.ones_like(x), torch.zeros_like(x)
    touched = torch.zeros_like(x, dtype=torch.bool)
    n = index.shape[dim]
    if index.numel():
        places, order = torch.sort(index, dim=dim, stable=True)
        p = source.gather(dim, order).movedim(dim, -1)
        dp = tangent.gather(dim, order).movedim(dim, -1)
        key = places.movedim(dim, -1)
        step = 1
        while step < n:
            same = key[..., step:] == key[..., :-step]
            before, moved_before = p[..., :-step], dp[..., :-step]
            after, moved_after = p[..., step:], dp[..., step:]
            product = torch.where(same, before * after, after)
            moved = torch.where(same, moved_before * after + before * moved_after, moved_after)
            p, dp = torch.cat([p[..., :step], product], -1), torch.cat([dp[..., :step], moved], -1)
            step *= 2
        # Later writes would race with earlier ones of the same place: all but the last of a segment add nothing.
        last = torch.cat([key[..., 1:] != key[..., :-1], torch.ones_like(key[..., :1], dtype=torch.bool)], -1)
        p, dp, last = (v.movedim(-1, dim) for v in (p, dp, last))
        ones = ones.scatter(dim, places, 0).scatter_add(dim, places, torch.where(last, p, 0))
        zeros = zeros.scatter_add(dim, places, torch.where(last, dp, 0))
        touched = touched.scatter(dim, places, True)
    if flat:
        return ones.reshape(()), zeros.reshape(()), touched.reshape(())
    return ones, zeros, touched
