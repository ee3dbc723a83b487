"""Products with a factor that is one for each lane in name only: the same memory seen B times (stride 0).

That is how `vmap(grad(f))` sees a weight that all lanes share: its derivative is wanted for each lane, its value need not be
copied. The value is computed with one matrix, C = A W, and only the derivative has a product for each lane: dW_l = A_lᵀ G_l.
"""

from __future__ import annotations

from typing import Any

import torch

from ..core.torch_private import FunctionBase

Tensor = torch.Tensor


def is_shared(x: Tensor) -> bool:
    """Whether every lane of a payload is the same memory."""
    return x.stride(0) == 0 and x.shape[0] > 1


def one_product(a: Tensor, w: Tensor) -> Tensor:
    """All lanes' rows by the one matrix there is."""
    size, n, k = a.shape
    return torch.mm(a.reshape(size * n, k), w[0]).view(size, n, w.shape[2])


class SharedMatmul(torch.autograd.Function):
    """`[B, n, k] @ [B, k, m]` with a shared second factor."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, w: Tensor) -> Tensor:
        """One product with the one matrix there is."""
        ctx.save_for_backward(a, w)
        return one_product(a, w)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """A shared product by the first factor, a product for each lane by the second."""
        a, w = ctx.saved_tensors
        (g,) = grads
        if a.is_complex():
            a, w = a.conj(), w.conj()
        by_a = shared_matmul(g, w.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return by_a, None
        columns = g.transpose(1, 2)  # made in the memory order of the untransposed weight
        return by_a, (columns * a if a.shape[1] == 1 else columns @ a).transpose(1, 2)


recorded_product: Any = super(FunctionBase, SharedMatmul).apply  # type: ignore[misc]  # past the Python before it


def shared_matmul(a: Tensor, w: Tensor) -> Tensor:
    """`a @ w` for each lane; `w` is shared, and differentiated as if it were not."""
    if type(a) is not Tensor or type(w) is not Tensor:
        return SharedMatmul.apply(a, w)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and (a.requires_grad or w.requires_grad):
        return recorded_product(a, w)  # type: ignore[no-any-return]
    return one_product(a, w)


class SharedConvolution(torch.autograd.Function):
    """The convolution of `[B, N, C, …]` with a shared weight `[B, O, C, …]`: lanes are samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, op: Any, rest: Any, groups: int) -> Tensor:
        """One convolution of all samples of all lanes."""
        ctx.save_for_backward(x, w)
        ctx.call = op, rest, groups
        size, n = x.shape[:2]
        out = op(x.flatten(0, 1), w[0], None, *rest, groups)
        return out.view(size, n, *out.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Lanes as samples by the input, as groups by the weight."""
        x, w = ctx.saved_tensors
        op, rest, groups = ctx.call
        (g,) = grads
        if torch.is_grad_enabled():  # the derivative is differentiated again: as B convolutions in groups
            wanted = [t for t, needed in zip((x, w), ctx.needs_input_grad, strict=False) if needed]
            found = iter(torch.autograd.grad(grouped(op, x, w, rest, groups), wanted, g, create_graph=True))
            return *(next(found) if needed else None for needed in ctx.needs_input_grad[:2]), None, None, None
        back = torch.ops.aten.convolution_backward.default
        by_x = by_w = None
        if ctx.needs_input_grad[0]:
            flat = back(g.flatten(0, 1), x.flatten(0, 1), w[0], None, *rest, groups, [True, False, False])[0]
            by_x = flat.view(x.shape)
        if ctx.needs_input_grad[1]:
            size = x.shape[0]
            lanes_as_groups = (g.transpose(0, 1).flatten(1, 2), x.transpose(0, 1).flatten(1, 2), w.flatten(0, 1))
            by_w = back(*lanes_as_groups, None, *rest, groups * size, [False, True, False])[1].view(w.shape)
        return by_x, by_w, None, None, None


def grouped(op: Any, x: Tensor, w: Tensor, rest: Any, groups: int) -> Tensor:
    """B convolutions as one of B groups."""
    size, n = x.shape[:2]
    out = op(x.transpose(0, 1).flatten(1, 2), w.flatten(0, 1), None, *rest, groups * size)
    return out.view(n, size, -1, *out.shape[2:]).transpose(0, 1)


def shared_convolution(op: Any, x: Tensor, w: Tensor, rest: Any, groups: int) -> Tensor:
    """The convolution for each lane; `w` is shared, and differentiated as if it were not."""
    return SharedConvolution.apply(x, w, op, rest, groups)  # type: ignore[no-any-return]
