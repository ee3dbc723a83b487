"""The subject of a check: a function of any pytree, seen as a map from real directions to real directions.

Inputs are the floating-point and complex leaves of the primals, and for a module the parameters that require grad;
outputs the floating-point and complex leaves of the result. Inner products are real: ⟨a, b⟩ = Re Σ conj(a) b.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..core import tree
from ..forward.jvp import jvp
from ..modules import functional_call
from ..reverse import vjp
from .observe import Observer, modes_off

Tensor = torch.Tensor
WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def differentiable(x: Any) -> bool:
    """Whether a leaf has a derivative at all."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def inner(a: list[Tensor], b: list[Tensor]) -> float:
    """Re Σ conj(a) b over all leaves, in float64."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += float(torch.dot(real_vector(x), real_vector(y)))
    return total


def real_vector(x: Tensor) -> Tensor:
    """A leaf as a float64 vector."""
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.reshape(-1).to(torch.float64)


def moved(leaves: list[Tensor], direction: list[Tensor], step: float) -> list[Tensor]:
    """x + step · direction."""
    return [x + step * t for x, t in zip(leaves, direction, strict=True)]


class Subject:
    """A function at a point: values, directional derivatives, gradients; counts its calls."""

    def __init__(self, function: Callable[..., Any], leaves: list[Tensor], names: list[str], name: str) -> None:
        self.function = function  # takes the list of input leaves
        self.point = leaves
        self.names = names
        self.name = name
        self.calls = 0
        self.output_names: list[str] = []
        self.returned: Any = None  # the result, where nothing in it has a derivative
        self.wide_mode = False
        self.before: Callable[[], None] = lambda: None  # puts back what an earlier call changed outside

    def outputs(self, leaves: list[Tensor]) -> list[Tensor]:
        """The output leaves, with whatever graph or tangent they carry."""
        self.calls += 1
        result = self.function(*leaves)
        outs, _ = tree.flat(result)
        keep = [k for k, o in enumerate(outs) if differentiable(o)]
        if not keep:
            self.returned = result
        if not self.output_names:
            paths = tree.paths(result, "output")
            self.output_names = [paths[k] for k in keep]
        return [outs[k] for k in keep]

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """The world as it was at the first call: random numbers, buffers, precision."""
        self.before()
        with same_draws(), widened() if self.wide_mode else contextlib.nullcontext(), torch.enable_grad():
            yield

    def values(self, leaves: list[Tensor], observer: Observer | None = None) -> list[Tensor]:
        """The output leaves at other inputs, as plain numbers."""
        with self.ready():
            inputs = [x.detach().clone() for x in leaves]
            with observer.watching() if observer else contextlib.nullcontext():
                outs = self.outputs(inputs)
            return [o.detach() for o in outs]

    def push(self, direction: list[Tensor], observer: Any = None, leaves: list[Tensor] | None = None) -> list[Tensor]:
        """J · direction by forward mode."""
        given = [x.detach().clone() for x in (self.point if leaves is None else leaves)]
        with self.ready():

            def called(*inputs: Tensor) -> list[Tensor]:
                with observer.watching() if observer else contextlib.nullcontext():
                    return self.outputs(list(inputs))

            return [t.detach() for t in jvp(called, tuple(given), tuple(direction))[1]]

    def pull(self, cotangents: list[Tensor], observer: Any = None, leaves: list[Tensor] | None = None) -> list[Tensor]:
        """Jᵀ · cotangents by reverse mode; an observer sees the call, and is told of the graph before it runs."""
        given = [x.detach().clone() for x in (self.point if leaves is None else leaves)]
        with self.ready():

            def called(*inputs: Tensor) -> list[Tensor]:
                with observer.watching() if observer else contextlib.nullcontext():
                    outs = self.outputs(list(inputs))
                if observer is not None:
                    observer.graph(list(inputs), outs)
                return outs

            _, pulled = vjp(called, *given)
            return [g.detach() for g in pulled(list(cotangents), retain_graph=False)]

    def gradient(self, cotangents: list[Tensor]) -> Subject:
        """x ↦ J(x)ᵀ u, whose derivative is of one order more."""

        def function(*leaves: Tensor) -> Any:
            _, pulled = vjp(lambda *inputs: self.outputs(list(inputs)), *leaves)
            return pulled(list(cotangents))

        made = Subject(function, self.point, self.names, f"the gradient of {self.name}")
        made.output_names = [f"d/d {n}" for n in self.names]
        made.wide_mode, made.before = self.wide_mode, self.before
        return made


def subject_of(func: Callable[..., Any], primals: Any) -> Subject:
    """The subject of `func` at `primals`, in the types given."""
    primals = primals if isinstance(primals, (tuple, list)) else (primals,)
    leaves, spec = tree.flat(tuple(primals))
    places = [k for k, x in enumerate(leaves) if differentiable(x)]
    paths = tree.paths(tuple(primals), "primals")
    point = [leaves[k].detach() for k in places]
    names = [paths[k] for k in places]
    count = len(point)
    params: list[str] = []
    if isinstance(func, torch.nn.Module):
        found = [(n, p) for n, p in func.named_parameters() if p.requires_grad and differentiable(p)]
        params = [n for n, _ in found]
        point += [p.detach() for _, p in found]
        names += [f"parameter {n!r}" for n in params]

    def function(*inputs: Tensor) -> Any:
        full = list(leaves)
        for k, x in zip(places, inputs[:count], strict=True):
            full[k] = x
        args = tree.unflatten(full, spec)
        if params:
            return functional_call(func, dict(zip(params, inputs[count:], strict=True)), args)  # type: ignore[arg-type]
        return func(*args)

    return Subject(function, point, names, getattr(func, "__name__", None) or type(func).__name__)


def wide_subject_of(func: Callable[..., Any], primals: Any) -> Subject:
    """As `subject_of`, in float64 throughout: modules are copied, captured tensors and factories widened."""
    primals = primals if isinstance(primals, (tuple, list)) else (primals,)
    with contextlib.suppress(Exception):
        if isinstance(func, torch.nn.Module):
            func = copy.deepcopy(func).double()
    made = subject_of(
        func,
        tree.map_leaves(lambda x: x.to(WIDE.get(x.dtype, x.dtype)) if isinstance(x, Tensor) else x, tuple(primals)),
    )
    made.wide_mode = True
    return made


@contextlib.contextmanager
def same_draws() -> Iterator[None]:
    """Random numbers of torch, numpy and Python start where they stood, and stand there again afterwards."""
    import numpy as np

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextlib.contextmanager
def widened() -> Iterator[None]:
    """What runs inside works in float64: a default type, and each narrower tensor widened where it is used."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widen():
            yield
    finally:
        torch.set_default_dtype(before)


class _Widen(TorchFunctionMode):
    """float32 stands for float64, in arguments and as a type asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is Tensor.float or func is Tensor.half or func is Tensor.bfloat16:
            return Tensor.double(*args, **kwargs)
        if name in ("__get__", "__set__", "set_default_dtype", "detach", "__repr__", "finfo"):
            return func(*args, **kwargs)
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        start = 1 if writes else 0
        args = (*args[:start], *[_wide(a) for a in args[start:]])
        if kwargs:
            kwargs = {k: a if k == "out" else _wide(a) for k, a in kwargs.items()}
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        wanted = WIDE.get(value.dtype)
        if wanted is None:
            return value
        if value.grad_fn is None and type(value) in (Tensor, torch.nn.Parameter):
            with modes_off(), torch.no_grad():  # a captured constant: its conversion is no operator of the function
                return value.to(wanted).requires_grad_(value.requires_grad)
        return value.to(wanted)
    if isinstance(value, torch.dtype):
        return WIDE.get(value, value)
    if type(value) in (list, tuple):
        return type(value)(_wide(v) for v in value)
    return value
