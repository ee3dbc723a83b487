"""The dual-number interpreter: a level whose values carry a primal and a tangent.

A tangent that is None is a symbolic zero: nothing is computed for it. Primal and tangent may be traced values of the levels
below, and the rules are ordinary torch code, so that lower levels and autograd differentiate them again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch

from ..core import traced
from ..core.carry import adopted, elsewhere
from ..core.cell import STOP, Cell, steps
from ..core.errors import CapturedWriteError, DerivativeLost, DerivativeLostError, EscapedValueError
from ..core.fresh import stopped
from ..core.level import (
    THREAD,
    Level,
    any_complex,
    autograd_on,
    is_grad_enabled,
    lazy_bits_on,
    no_plan,
    user_stopped_gradient,
)
from ..core.source import source_line, source_place, torch_call, warn
from ..core.strides import move_offset, run_strided
from ..core.torch_private import NoFunction, make_wrapper, no_function
from ..core.traced import NO_PLAN, NeedsGraph, Traced, copy_lazy_bits, wrap_like
from ..ops.movement import kept_alias
from ..ops.table import Entry, entry
from .writes import write

Tensor = torch.Tensor
OpOverload = torch._ops.OpOverload
DETACH = torch.ops.aten.detach.default  # the engine's, also in hooks that pack saved tensors, where recording is off
VIEW = torch.ops.aten.view.default
_SEQUENCES = (list, tuple)


class Dual(Traced):
    """A dual number: `_primal` and `_tangent` (None: zero)."""

    __slots__ = ("_form", "_level", "_meta", "_primal", "_tangent")  # read in every operator; the rest is seldom set

    _primal: Tensor
    _tangent: Tensor | None
    _loose = False  # the primal was made by a fast path, so that the levels below do not know it as theirs
    _meta: Any  # what a like result's wrapper is made from, see `forward.fast`
    _form: Any  # what plans know it by, see `plans.describe`
    _fast: ClassVar[dict[Any, Any]] = {}
    _named: ClassVar[dict[Any, Any]] = {}

    def _below(self) -> Tensor:
        return self._primal

    def _alias(self) -> Dual:
        """Another value over the same primal and tangent, which autograd does not know yet."""
        return self.detach()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    def _stopped(self) -> Dual:
        return self._level.wrap_view(self, (STOP, (), {}, None), stopped(self._primal), None)

    def _describe(self) -> str:
        return f"<dual: primal {self._primal!r}, tangent {'zero' if self._tangent is None else repr(self._tangent)}>"

    def _escaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        del args, kwargs
        msg = (
            f"`{func.name()}` was called on a dual number made in the {self._level.where}, which has ended. Return the value from the "
            "function instead of keeping it outside."
        )
        raise EscapedValueError(msg)


def wrap(level: DualLevel, primal: Tensor, tangent: Tensor | None) -> Dual:
    """A dual number of `level`."""
    if primal.layout is torch.strided:
        made: Any = make_wrapper(
            Dual, primal.shape, primal.stride(), None, None, primal.dtype, torch.strided, primal.device
        )
    else:
        made = wrap_like(Dual, primal, primal.shape, None)
    made._primal = primal
    made._tangent = tangent
    made._level = level
    made._meta = made._form = None
    return made


def wrap_input(level: DualLevel, primal: Tensor, tangent: Tensor | None) -> Dual:
    """A dual number over tensors of the caller: a write must not reach the caller's tangent."""
    made = wrap(level, primal, tangent)
    copy_lazy_bits(made, primal)
    made._cell = Cell(made, (primal, tangent))
    return made


def laid_out_like(tangent: Tensor, primal: Tensor) -> Tensor:
    """A tangent whose dimensions lie in memory in the order of the primal's, so that what can be viewed of one can be of the other."""
    with NoFunction():
        if primal.layout is not torch.strided or tangent.layout is not torch.strided:
            return tangent
        strides = primal.stride()
        if tangent.stride() == strides or (tangent.is_contiguous() and primal.is_contiguous()):
            return tangent
    order = sorted(range(primal.dim()), key=lambda k: -strides[k])
    back = sorted(range(primal.dim()), key=lambda k: order[k])
    return tangent.permute(order).contiguous().permute(back)


def resolved(out: Tensor, tangent: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both without lazy conjugation, which a value that is no view does not have."""
    if out.is_conj():
        out = out.resolve_conj()
    if tangent is not None and tangent.is_conj():
        tangent = tangent.resolve_conj()
    return out, tangent


class Constant(torch.Tensor):
    """A primal that has a tangent, and that autograd takes for a constant: no short way is open to it."""

    __torch_function__ = no_function  # pyright: ignore[reportAssignmentType]


def beyond_autograd(outs: Any, tangents: Any) -> Any:
    """The results, with `Constant`s for those that have a tangent and no gradient beside others that have both."""
    known = [isinstance(o, Tensor) and o.requires_grad for o in outs]
    if True not in known:
        return outs
    return [
        o.as_subclass(Constant) if t is not None and not k and o.is_floating_point() else o
        for o, t, k in zip(outs, tangents, known, strict=True)
    ]


class DualLevel(Level):
    """A running `jvp`."""

    name = "jvp"

    def __init__(self, *, strict: bool = False) -> None:
        Level.__init__(self)
        self.strict = strict
        self.inputs: list[Any] = []  # the primals of the caller, while the function runs

    def input_of(self, x: Dual) -> Any:
        """The tensor of the caller that a value looks at, or None."""
        root = None if x._cell is None else x._cell.root[0]
        return root if any(root is p for p in self.inputs) else None

    def lift(self, x: Tensor) -> Dual:
        """A value from outside as one of this level, without a tangent."""
        return wrap(self, x, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not THREAD.levels and elsewhere():
            with adopted():
                return self.__torch_dispatch__(func, types, args, kwargs)
        e = getattr(func, "_pushforward", None) or entry(func)
        func = e.op
        with NoFunction():
            out = traced.PLANNED(func, args, kwargs, None, e, self)
            return self.handle(e, func, args, kwargs or {}) if out is NO_PLAN else out

    def handle(self, e: Entry, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator on primals and tangents."""
        primals: list[Any] = []
        tangents: list[Any] = []
        mine = moving = grad = False
        if self.complex or e.complex or any_complex(args):
            self.complex = True
            lazy_bits_on()
        for a in args:
            if type(a) is Dual and a._level is self:
                mine = True
                t = a._tangent
                if t is not None:
                    moving = True
                    grad = grad or t.requires_grad
                elif a.requires_grad:
                    self.tracked = True
                a = a._primal
                grad = grad or a.requires_grad
                primals.append(a)
                tangents.append(t)
            elif isinstance(a, Tensor):
                if a.requires_grad:
                    grad = True
                    self.captured_graph()
                primals.append(a)
                tangents.append(None)
            elif type(a) in _SEQUENCES and a and not isinstance(a[0], (int, float)):
                p, t, own, live, rg = self.unwrap_list(a)
                mine, moving, grad = mine or own, moving or live, grad or rg
                primals.append(p)
                tangents.append(t if live else None)
            else:
                primals.append(a)
                tangents.append(None)
        plain = kwargs
        if kwargs:
            plain, kw_tangents, own, rg = self.unwrap_kwargs(kwargs)
            mine, grad = mine or own, grad or rg
            if kw_tangents and not set(kw_tangents) <= set(e.out_names):
                moving = True
                tangents = KeywordTangents(tangents, kw_tangents)
        if moving and func is not DETACH and (self.suspended or user_stopped_gradient()):
            moving = False
        if grad and is_grad_enabled():
            self.saw_grad = True
        if grad and is_grad_enabled() and self.records(e, args, kwargs, mine):
            with autograd_on():
                return self.compute(e, func, args, kwargs, primals, tangents, plain, mine, moving)
        return self.compute(e, func, args, kwargs, primals, tangents, plain, mine, moving)

    def records(self, e: Entry, args: Any, kwargs: Any, mine: bool) -> bool:
        """Whether payload operators must be recorded: not those whose result goes back as it is, for the caller records it."""
        if e.is_view:
            return mine
        if e.writes or e.out_names:
            target = args[e.writes[0]] if e.writes else kwargs.get(e.out_names[0])
            return type(target) is Dual and target._level is self
        return True

    def unwrap_list(self, items: Any) -> tuple[list[Any], list[Any], bool, bool, bool]:
        """Primals and tangents of a list argument; whether any is ours, has a tangent, requires grad."""
        primals, tangents, mine, moving, grad = [], [], False, False, False
        for a in items:
            t = None
            if type(a) is Dual and a._level is self:
                mine = True
                t = a._tangent
                a = a._primal
            if isinstance(a, Tensor):
                grad = grad or a.requires_grad or (t is not None and t.requires_grad)
            moving = moving or t is not None
            primals.append(a)
            tangents.append(t)
        return primals, tangents, mine, moving, grad

    def unwrap_kwargs(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor], bool, bool]:
        """Primals of keyword arguments, and the tangents by name."""
        out, tangents, mine, grad = {}, {}, False, False
        for k, a in kwargs.items():
            if type(a) is Dual and a._level is self:
                mine = True
                if a._tangent is not None:
                    tangents[k] = a._tangent
                    grad = grad or a._tangent.requires_grad
                a = a._primal
            if isinstance(a, Tensor):
                grad = grad or a.requires_grad
            out[k] = a
        return out, tangents, mine, grad

    def compute(
        self,
        e: Entry,
        func: Any,
        args: Any,
        kwargs: Any,
        primals: list[Any],
        tangents: Any,
        plain: dict[str, Any],
        mine: bool,
        moving: bool,
    ) -> Any:
        """Choose what the operator is here; `args` and `kwargs` are the user's, `primals` and `plain` the payloads."""
        if self.payload_graphs:  # what is written or drawn would be so twice, should the attempt be given up later
            if e.random or e.writes or e.out_names or Constant in map(type, [*primals, *plain.values()]):
                raise NeedsGraph(self)
            if any(type(p) is list and Constant in map(type, p) for p in primals):
                raise NeedsGraph(self)
        if e.writes or e.out_names:
            return write(self, e, func, args, kwargs, primals, tangents, plain, moving)
        strided = e.strided and mine
        if strided:
            move_offset(func, primals, -args[0].storage_offset())
        if moving:
            if func is VIEW and mine:
                tangents = [self.viewable(args[0]), *tangents[1:]]
            out, tangent = self.rule_for(e)(func, self, primals, tangents, plain)
        elif func is DETACH and mine:
            out, tangent = kept_alias(*primals), None
        else:
            out, tangent = run_strided(func, primals, plain) if strided else func(*primals, **plain), None
            if e.is_view and not mine:
                return out
        if isinstance(out, Tensor):
            if e.is_view and mine:
                rest = tuple(primals[1:]) if strided else args[1:]
                return self.wrap_view(args[0], (func, rest, kwargs, None), out, tangent)
            return wrap(self, *resolved(out, tangent)) if out.layout is torch.strided or tangent is not None else out
        if type(out) in _SEQUENCES:
            if self.payload_graphs and tangent is not None:
                out = type(out)(beyond_autograd(out, tangent))
            made = []
            for k, o in enumerate(out):
                t = None if tangent is None else tangent[k]
                if not isinstance(o, Tensor):
                    made.append(o)
                elif e.is_view and mine:
                    made.append(self.wrap_view(args[0], (func, args[1:], kwargs, k), o, t))
                else:
                    made.append(wrap(self, *resolved(o, t)))
            return made if type(out) is list else tuple(made)
        return out

    def rule_for(self, e: Entry) -> Any:
        """The tangent rule of an operator: hand-written, by kind, or derived from reverse mode."""
        rule = e.cache.get("tangent")
        if rule is None:
            from .kinds import tangent_rule

            rule = e.cache["tangent"] = tangent_rule(e)
        return rule

    def wrap_view(self, base: Dual, step: Any, primal: Tensor, tangent: Tensor | None) -> Dual:
        """A view of `base` that shares its cell."""
        cell = base._cell
        if cell is None:
            cell = base._cell = Cell(base, (base._primal, base._tangent), loose=base._loose)
        offset = primal.storage_offset() - cell.root[0].storage_offset() if primal.layout is torch.strided else 0
        made = wrap_like(Dual, primal, primal.shape, primal.stride(), offset)
        copy_lazy_bits(made, primal)
        made._primal, made._tangent, made._level = primal, tangent, self
        made._meta = made._form = None
        made._cell, made._path = cell, (base._path, step)
        cell.add(made)
        return made

    def give_tangent(self, target: Dual) -> None:
        """Give a value without a tangent one of zeros, so that one can be written; its views follow."""
        cell = target._cell
        if cell is None:
            target._tangent, target._form = torch.zeros_like(target._primal), None
            return
        root, tangent = cell.root
        tangent = torch.zeros_like(root) if tangent is None else tangent.clone()
        cell.root, cell.borrowed = (root, tangent), False
        self.refresh(cell)

    def viewable(self, x: Dual) -> Tensor | None:
        """The tangent of a value, which lies in memory as its primal does from now on."""
        made = x._tangent
        if made is None or (made := laid_out_like(made, x._primal)) is x._tangent:
            return made
        no_plan()
        cell = x._cell
        if cell is None:
            x._tangent, x._form = made, None
        else:
            root, tangent = cell.root
            cell.root = (root, laid_out_like(tangent, root))
            self.refresh(cell)
        return x._tangent

    def tie(self, target: Dual) -> None:
        """Make a loose primal known to the levels below, so that values of theirs can be written into it."""
        cell = target._cell
        if cell is None:
            target._primal, target._loose = target._primal.clone(), False
            target._meta = target._form = None
            return
        cell.root, cell.loose = (cell.root[0].clone(), cell.root[1]), False
        self.refresh(cell)

    def refresh(self, cell: Cell) -> None:
        """Make every living view again from the cell's root."""
        for value in cell.living():
            primal, tangent = cell.root
            for func, rest, kwargs, index in steps(value._path):
                if func is STOP:
                    primal, tangent = stopped(primal), None
                    continue
                if func is DETACH:
                    primal, tangent = kept_alias(primal), None if tangent is None else kept_alias(tangent)
                    continue
                run = partial(run_strided, func) if isinstance(func, OpOverload) and entry(func).strided else None
                primal = run((primal, *rest), kwargs) if run else func(primal, *rest, **kwargs)
                if tangent is not None:
                    tangent = run((tangent, *rest), kwargs) if run else func(tangent, *rest, **kwargs)
                if index is not None:
                    primal, tangent = primal[index], None if tangent is None else tangent[index]
            value._primal, value._tangent = primal, tangent
            value._meta = value._form = None

    def captured(self, name: str, what: str) -> CapturedWriteError:
        """The error for a write of a dual number into a tensor from outside."""
        return CapturedWriteError(
            f"jvp: `{name}` at {source_line()} writes a differentiated value into {what}, which was made outside of the "
            f"function: its tangent would be lost. Make the tensor inside the function, or write `value.detach()`."
        )

    def outside(self, value: Dual) -> Tensor | None:
        """A value as it is to those who know nothing of tangents; None if it has one."""
        return value._primal if value._tangent is None else None

    def inspect(self, value: Dual) -> Any:
        """The Python value of the primal; the tangent is lost, which is said."""
        from ..batch.lanes import python_value

        if value._tangent is not None:
            self.lose(".item(), float() or the like")
        return python_value(value._primal)

    def lose(self, how: str, what: str = "reads a differentiated value as a Python number") -> None:
        """Say that a derivative is lost here."""
        THREAD.unrepeatable += 1
        where, inside = source_line(), torch_call()
        how = f"{how} in torch's `{inside}`, called at {where}," if inside else f"{how} at {where}"
        text = f"{how} {what}: its derivative is lost. Stay with tensors that have one, or say `.detach()` first."
        if self.strict:
            raise DerivativeLostError(text)
        place = source_place()
        if place not in _LOST:
            warn(text, DerivativeLost)
            _LOST.add(place)


_LOST: set[tuple[str, int]] = set()  # lines of which it was said


class KeywordTangents(list):
    """Tangents of the positional arguments, and in `keywords` those of keyword arguments by name."""

    def __init__(self, tangents: list[Any], keywords: dict[str, Tensor]) -> None:
        super().__init__(tangents)
        self.keywords = keywords
