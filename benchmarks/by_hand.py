"""The transforms as people wrote them before there were any: over `torch.autograd.grad`, and over `torch.autograd.functional`.

Both have torch.func's names and signatures, so that a workload does not know which library it runs in. Neither has a
batch: `vmap` is a loop. Both have reverse mode only, so that a directional derivative is reverse mode twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

Tensor = torch.Tensor


def vmap(f: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """A loop over the mapped arguments, and a stack."""

    def mapped(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        size = next(len(a) for a, d in zip(args, dims, strict=True) if d == 0)
        rows = [f(*[a if d is None else a[k] for a, d in zip(args, dims, strict=True)]) for k in range(size)]
        parts = [tree_flatten(row)[0] for row in rows]
        return tree_unflatten([torch.stack(part) for part in zip(*parts, strict=True)], tree_flatten(rows[0])[1])

    return mapped


class PlainAutograd:
    """Over `torch.autograd.grad`."""

    vmap = staticmethod(vmap)

    @staticmethod
    def grad(f: Callable[..., Tensor]) -> Callable[..., Any]:
        """The gradient by the first argument; differentiable where that argument is."""

        def gradient(x: Any, *rest: Any) -> Any:
            leaves, spec = tree_flatten(x)
            nested = any(leaf.requires_grad for leaf in leaves)
            own = [leaf.view_as(leaf) if nested else leaf.detach().requires_grad_() for leaf in leaves]
            with torch.enable_grad():
                y = f(tree_unflatten(own, spec), *rest)
            return tree_unflatten(list(torch.autograd.grad(y, own, create_graph=nested)), spec)

        return gradient

    @staticmethod
    def vjp(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        """The value, and the function that pulls a cotangent back."""
        nested = x.requires_grad
        own = x.view_as(x) if nested else x.detach().requires_grad_()
        with torch.enable_grad():
            y = f(own)
        value = y if nested else y.detach()
        return value, lambda v: torch.autograd.grad(y, own, v, retain_graph=True, create_graph=nested)

    @staticmethod
    def jvp(f: Callable[[Tensor], Tensor], primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
        """J v = d/du <vjp(u), v>."""
        (x,), (v,) = primals, tangents
        nested = x.requires_grad or v.requires_grad
        with torch.enable_grad():
            own = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            y = f(own)
            u = torch.zeros_like(y, requires_grad=True)
            (pulled,) = torch.autograd.grad(y, own, u, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, u, v, create_graph=nested)
        return (y, pushed) if nested else (y.detach(), pushed)

    @staticmethod
    def jacrev(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """One backward pass for each output."""

        def jacobian(x: Tensor) -> Tensor:
            nested = x.requires_grad
            with torch.enable_grad():
                own = x.view_as(x) if nested else x.detach().requires_grad_()
                y = f(own)
                flat = y.flatten()
                rows = [
                    torch.autograd.grad(flat[k], own, retain_graph=True, create_graph=nested)[0]
                    for k in range(y.numel())
                ]
            return torch.stack(rows).reshape(*y.shape, *x.shape)

        return jacobian

    jacfwd = jacrev

    @classmethod
    def hessian(cls, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The Jacobian of the gradient."""
        return cls.jacrev(cls.grad(f))


class Functional:
    """Over `torch.autograd.functional`."""

    vmap = staticmethod(vmap)

    @staticmethod
    def grad(f: Callable[..., Tensor]) -> Callable[..., Any]:
        """`functional.vjp` of a scalar."""

        def gradient(x: Any, *rest: Any) -> Any:
            leaves, spec = tree_flatten(x)
            out = torch.autograd.functional.vjp(
                lambda *own: f(tree_unflatten(list(own), spec), *rest),
                tuple(leaves),
                create_graph=any(leaf.requires_grad for leaf in leaves),
            )[1]
            return tree_unflatten(list(out), spec)

        return gradient

    @staticmethod
    def vjp(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[None, Callable[[Tensor], tuple[Tensor]]]:
        """`functional.vjp`, which wants the cotangent at once; the value is not asked for."""
        return None, lambda v: (torch.autograd.functional.vjp(f, x, v, create_graph=x.requires_grad)[1],)

    @staticmethod
    def jvp(f: Callable[[Tensor], Tensor], primals: tuple[Tensor], tangents: tuple[Tensor]) -> tuple[Tensor, Tensor]:
        """`functional.jvp`."""
        nested = primals[0].requires_grad or tangents[0].requires_grad
        return torch.autograd.functional.jvp(f, primals[0], tangents[0], create_graph=nested)

    @staticmethod
    def jacrev(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`functional.jacobian`."""
        return lambda x: torch.autograd.functional.jacobian(f, x, create_graph=x.requires_grad)

    jacfwd = jacrev

    @staticmethod
    def hessian(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """`functional.hessian`."""
        return lambda x: torch.autograd.functional.hessian(f, x, create_graph=x.requires_grad)
