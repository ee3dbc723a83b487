"""The batching interpreter: a level whose values carry a payload with the mapped dimension in front.

A value is *mapped* (payload `[B, *sizes]`) or *uniform* (payload `[*sizes]`, the same for every lane). Whatever is made inside the
function is at least uniform, so that a mapped value can later be written into it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..core import traced
from ..core.carry import adopted, elsewhere
from ..core.cell import STOP, Cell, steps
from ..core.errors import CapturedWriteError
from ..core.fresh import stopped
from ..core.journal import about_to_write_value
from ..core.level import THREAD, Level, any_complex, autograd_on, is_grad_enabled, lazy_bits_on, taken_off
from ..core.source import source_line
from ..core.strides import move_offset, run_strided
from ..core.torch_private import NoFunction, make_wrapper, mode_count
from ..core.traced import NO_PLAN, TooLarge, Traced, copy_lazy_bits, wrap_like
from ..ops.movement import kept_alias
from ..ops.table import Entry, entry
from .failing import go_on_without_failing
from .lanes import Lanes, inspect_value
from .settle import renewed, settle_all, taken
from .writes import write

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
STRIDED = torch.strided
_SEQUENCES = (list, tuple)
DETACH = torch.ops.aten.detach.default  # the engine's, or for a value of its own: no derivative of the payload stops there


class Batched(Traced):
    """A value of a `vmap`: `_payload`, and `_mapped`: whether its first dimension is the mapped one."""

    __slots__ = ("_form", "_level", "_meta", "_payload")  # read in every operator; the rest is seldom set

    _payload: Tensor
    _mapped: bool = True
    _meta: Any  # how to make the wrapper of a like result, see `batch.fast`
    _form: Any  # what plans know it by, see `plans.describe`
    _fast: ClassVar[dict[Any, Any]] = {}
    _named: ClassVar[dict[Any, Any]] = {}

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        levels = THREAD.levels
        if not levels and elsewhere():
            with adopted():
                return cls.__torch_dispatch__(func, types, args, kwargs)
        if levels and levels[-1].quiet and mode_count() == levels[-1].depth - 1 + THREAD.recorders:
            return levels[-1].__torch_dispatch__(func, types, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def _renewed(cls, args: Any) -> bool:
        return renewed(args)

    def _below(self) -> Tensor:
        return self._payload

    def _alias(self) -> Batched:
        """Another value over the same payload, which autograd does not know yet."""
        p = self._payload
        if self._mapped and self._cell is None and type(p) is Tensor and not (p.is_conj() or p.is_neg()):
            return wrap(self._level, p, True)  # nothing can promote it, so they need no cell
        return self.detach()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    def _escaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        from .escape import call_on_payloads

        return call_on_payloads(func, args, kwargs)

    def _stopped(self) -> Batched:
        return self._level.wrap_view(self, (STOP, (), {}, None), stopped(self._payload), self._mapped)

    def _describe(self) -> str:
        size = self._level.size
        lanes = f"{size} lane" if size == 1 else f"{size} lanes"
        if not self._mapped:
            return f"<uniform over {lanes}: {self._payload!r}>"
        shape, dtype = list(self.shape), str(self.dtype).removeprefix("torch.")
        return f"<{lanes} of {dtype}{shape}, stacked at dim 0: {self._payload!r}>"


def wrap(level: BatchLevel, payload: Tensor, mapped: bool) -> Batched:
    """A traced value of `level` over `payload`."""
    if mapped:
        if level.most is not None and payload.numel() > level.most:
            raise TooLarge
        made: Any = make_wrapper(
            Batched, payload.shape[1:], payload.stride()[1:], None, None, payload.dtype, torch.strided, payload.device
        )
    else:
        made = make_wrapper(
            Batched, payload.shape, payload.stride(), None, None, payload.dtype, torch.strided, payload.device
        )
        made._mapped = False
    made._payload = payload
    made._level = level
    made._meta = made._form = None
    return made


def wrap_input(level: BatchLevel, payload: Tensor) -> Batched:
    """As `wrap`, for a mapped value of any layout or with lazy bits."""
    if payload.layout is not torch.strided:
        payload = payload.to_dense()
    made = wrap(level, payload, True)
    copy_lazy_bits(made, payload)
    return made


class BatchLevel(Level, Lanes):
    """A running `vmap` over `size` lanes."""

    name = "vmap"
    fixed: Any = ()  # ids of payloads: a run in which one is written into is given up

    def __init__(self, size: int, randomness: str = "error") -> None:
        Level.__init__(self)
        Lanes.__init__(self, size)
        self.randomness = randomness

    def lift(self, x: Tensor) -> Batched:
        """A value from outside as one of this level, the same for every lane."""
        return wrap(self, x, False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.successor is not None:
            return self.newest().__torch_dispatch__(func, types, args, kwargs)
        if not THREAD.levels and elsewhere():
            with adopted():
                return self.__torch_dispatch__(func, types, args, kwargs)
        e = getattr(func, "_pushforward", None) or entry(func)
        func = e.op
        try:
            with NoFunction():
                if e.pointwise and not kwargs:
                    out = self.pointwise(e.call, args)
                    if out is not None:
                        return out
                out = traced.PLANNED(func, args, kwargs, None, e, self)
                return self.handle(e, func, args, kwargs or {}) if out is NO_PLAN else out
        except (RuntimeError, IndexError) as error:
            with NoFunction():
                some_go_on = go_on_without_failing(self, e, error, args, kwargs or {})
            if not some_go_on:
                raise
        return self.newest().__torch_dispatch__(func, types, args, kwargs)

    def pointwise(self, call: Any, args: tuple[Any, ...]) -> Any:
        """An element-wise operator on plain payloads of one rank and dtype that need no recording; else None.

        What is the same for every lane may have a lower rank, for then it meets the lanes' own dimensions only.
        """
        values = []
        rank = below = -1  # of mapped payloads, of the others
        dtype = None
        for a in args:
            kind = type(a)
            if kind is Batched:
                p = a._payload
                if a._level is not self or type(p) is not Tensor or (p.requires_grad and is_grad_enabled()):
                    return None
                a_rank = p.dim()
                if a._mapped:
                    if rank < 0:
                        rank = a_rank
                    elif a_rank != rank:
                        return None
                elif a.requires_grad:
                    return None
                elif a_rank > below:
                    below = a_rank
                a = p
            elif kind is Tensor or kind is Parameter:
                if a.requires_grad:
                    return None
                below = max(below, a.dim())
            else:
                values.append(a)
                continue
            if dtype is None:
                dtype = a.dtype
                if dtype.is_complex:
                    return None
            elif a.dtype is not dtype:
                return None
            values.append(a)
        if dtype is None or (rank >= 0 and below >= rank):
            return None
        out = call(*values)
        return wrap(self, out, rank >= 0) if type(out) is Tensor else None

    def handle(self, e: Entry, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator for all lanes."""
        if self.kept is not None:
            settle_all(self, args)
            settle_all(self, kwargs.values())
        values: list[Any] = []
        flags: list[Any] = []
        mine = mapped = grad = False
        if self.complex or e.complex or any_complex(args):
            self.complex = True
            lazy_bits_on()
        for a in args:
            if type(a) is Batched and a._level is self:
                mine = True
                m = a._mapped
                if not m and a.requires_grad:
                    self.tracked = True
                a = a._payload
                mapped = mapped or m
                grad = grad or a.requires_grad
                values.append(a)
                flags.append(m)
            elif isinstance(a, Tensor):
                if a.requires_grad:
                    grad = True
                    self.captured_graph()
                values.append(a)
                flags.append(False)
            elif type(a) in _SEQUENCES and a and not isinstance(a[0], (int, float)):
                v, f, own, rg = self.unwrap_list(a)
                mine = mine or own
                mapped = mapped or any(f)
                grad = grad or rg
                values.append(v)
                flags.append(f)
            else:
                values.append(a)
                flags.append(False)
        plain = kwargs
        if kwargs:
            plain, kw_flags, own, rg = self.unwrap_kwargs(kwargs)
            mine, grad = mine or own, grad or rg
            if kw_flags:
                mapped = True
                flags = KeywordFlags(flags, kw_flags)
        if grad and is_grad_enabled():
            self.saw_grad = True
        if grad and is_grad_enabled() and self.records(e, args, kwargs, mine):
            with autograd_on():
                return self.compute(e, func, args, kwargs, values, flags, plain, mine, mapped)
        return self.compute(e, func, args, kwargs, values, flags, plain, mine, mapped)

    def records(self, e: Entry, args: Any, kwargs: Any, mine: bool) -> bool:
        """Whether payload operators must be recorded: not those whose result goes back as it is, for the caller records it."""
        if e.is_view:
            return mine
        if e.writes or e.out_names:
            target = args[e.writes[0]] if e.writes else kwargs.get(e.out_names[0])
            return type(target) is Batched and target._level is self
        return True

    def unwrap_list(self, items: Any) -> tuple[Any, tuple[bool, ...], bool, bool]:
        """Payloads of a list argument, which of them are mapped, whether any is ours, whether any requires grad."""
        values, flags, mine, grad = [], [], False, False
        for a in items:
            if type(a) is Batched and a._level is self:
                mine = True
                flags.append(a._mapped)
                if a.requires_grad:
                    self.tracked = True
                a = a._payload
                grad = grad or a.requires_grad
            else:
                flags.append(False)
                if isinstance(a, Tensor) and a.requires_grad:
                    grad = True
                    self.captured_graph()
            values.append(a)
        return values, tuple(flags), mine, grad

    def unwrap_kwargs(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str], bool, bool]:
        """As `unwrap_list` for keyword arguments; the names of the mapped ones come second."""
        out, mapped, mine, grad = {}, [], False, False
        for k, a in kwargs.items():
            if type(a) is Batched and a._level is self:
                mine = True
                if a._mapped:
                    mapped.append(k)
                a = a._payload
            if isinstance(a, Tensor):
                grad = grad or a.requires_grad
            out[k] = a
        return out, frozenset(mapped), mine, grad

    def compute(
        self,
        e: Entry,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: list[Any],
        flags: Any,
        plain: dict[str, Any],
        mine: bool,
        mapped: bool,
    ) -> Any:
        """Choose what the operator is here: a write, a draw, a uniform call or a mapped one; wrap what comes out.

        `args` and `kwargs` are the user's, `values` and `plain` their payloads.
        """
        if e.writes or e.out_names:
            return write(self, e, func, args, kwargs, values, flags, plain, mapped)
        kwargs = plain
        if e.strided and mine:
            move_offset(func, values, -args[0].storage_offset())
        if e.random and self.lanes_differ(e, func, values, kwargs):
            from .random import draw

            out, mapped = draw(self, e, func, values, flags, kwargs, mapped)
        elif mapped:
            out = self.rule_for(e)(func, self, values, flags, kwargs)
            mapped = not e.cache.get("uniform_result", False)
        else:
            if func is DETACH and mine:
                out = kept_alias(*values)
            else:
                out = run_strided(func, values, kwargs) if e.strided and mine else func(*values, **kwargs)
            if e.is_view and not mine:
                return out  # a view of a captured tensor: writes through it must be seen as such
        if not mine:
            self.tracked = self.tracked or mapped  # a draw may have been asked to require grad, which shows later
        if type(out) is Tensor or isinstance(out, Tensor):
            if e.is_view and mine:
                rest = tuple(values[1:]) if e.strided else args[1:]
                return self.wrap_view(args[0], (func, rest, kwargs, None), out, mapped)
            return (
                wrap(self, out.resolve_conj() if self.complex and out.is_conj() else out, mapped)
                if out.layout is torch.strided
                else self.wrap_odd(out, mapped)
            )
        return self.wrap_many(e, func, args, kwargs, out, mapped, mine)

    def rule_for(self, e: Entry) -> Any:
        """The batching rule of an operator: hand-written, by kind, or the loop over lanes."""
        rule = e.cache.get("batch")
        if rule is None:
            from .dims import checked
            from .kinds import batching_rule

            rule = e.cache["batch"] = checked(e, batching_rule(e))
        return rule

    def lanes_differ(self, e: Entry, func: Any, values: list[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a random operator draws at all with these arguments: the row's rule `draws` decides, if it has one."""
        draws = e.rule("draws")
        return draws is None or draws(func, values, kwargs)

    def wrap_odd(self, out: Tensor, mapped: bool) -> Any:
        """A result of another layout: dense where it is mapped, else left alone."""
        return wrap_input(self, out) if mapped else out

    def wrap_view(self, base: Batched, step: Any, payload: Tensor, mapped: bool) -> Any:
        """A view of `base`: it shares the cell, and knows its way from the root."""
        cell = base._cell
        if cell is None:
            cell = base._cell = Cell(base, (base._payload, base._mapped))
        sizes, dtype = payload.shape, payload.dtype
        if payload.layout is STRIDED:
            strides = payload.stride()
            if mapped:
                sizes, strides = sizes[1:], strides[1:]
            offset = payload.storage_offset() - cell.root[0].storage_offset()
            made: Any = make_wrapper(Batched, sizes, strides, offset or None, None, dtype, STRIDED, payload.device)
        else:
            made = wrap_like(Batched, payload, sizes[1:] if mapped else sizes, (), 0)
        if self.complex or dtype.is_complex:
            copy_lazy_bits(made, payload)
        made._payload = payload
        made._meta = made._form = None
        if not mapped:
            made._mapped = False
        made._level = self
        made._cell = cell
        made._path = (base._path, step)
        cell.add(made)
        return made

    def wrap_many(self, e: Entry, func: Any, args: Any, kwargs: Any, out: Any, mapped: bool, mine: bool) -> Any:
        """Wrap a tuple or list of results; anything that is no tensor passes as it is."""
        if type(out) in _SEQUENCES:
            made = []
            for k, o in enumerate(out):
                if not isinstance(o, Tensor):
                    made.append(o)
                elif e.is_view and mine:
                    made.append(self.wrap_view(args[0], (func, args[1:], kwargs, k), o, mapped))
                else:
                    made.append(wrap(self, o.resolve_conj() if o.is_conj() else o, mapped))
            return made if type(out) is list else tuple(made)
        return out

    # -- writes ---------------------------------------------------------------------------------------------------

    def keep_for_attempt(self, target: Batched) -> None:
        """Keep what a value is, should the differentiation that runs in this level begin again."""
        cell = target._cell

        def state() -> tuple[Tensor, bool]:
            payload, mapped = (target._payload, target._mapped) if cell is None else cell.root
            return payload if payload.requires_grad else payload.clone(), mapped  # what is recorded is not written into

        def back(kept: tuple[Tensor, bool]) -> None:
            newest = target._level
            with taken_off(newest), NoFunction():
                if newest is not self and kept[1]:  # lanes have left since
                    kept = taken(kept[0], self.place_of(newest)), True
                if cell is None:
                    target._payload, target._mapped = kept
                    target._meta = target._form = None
                else:
                    cell.root = kept
                    newest.refresh(cell)

        about_to_write_value(target, state, back)

    def promote(self, target: Batched) -> None:
        """Give a uniform buffer one copy for each lane; its views follow."""
        cell = target._cell
        if cell is None:
            target._payload, target._mapped = self.spread(target._payload), True
            target._meta = target._form = None
            return
        root, _ = cell.root
        cell.root = (self.spread(root), True)
        self.refresh(cell)

    def spread(self, payload: Tensor) -> Tensor:
        """`size` copies of a buffer, each with the strides of the original."""
        extent = 1 + sum((n - 1) * s for n, s in zip(payload.shape, payload.stride(), strict=True) if n > 0)
        out = payload.new_empty(0)
        dense = payload.numel() == extent or payload.numel() == 0
        if dense and type(payload) is Tensor:
            out = torch.empty_strided(
                (self.size, *payload.shape),
                (max(extent, 1), *payload.stride()),
                dtype=payload.dtype,
                device=payload.device,
            )
            return out.copy_(payload)
        return payload.unsqueeze(0).expand(self.size, *payload.shape).clone(memory_format=torch.contiguous_format)

    def refresh(self, cell: Cell) -> None:
        """Make every living view again from the cell's root."""
        for value in cell.living():
            value._payload, value._mapped = self.replay(cell, value._path)
            value._meta = value._form = None

    def replay(self, cell: Cell, path: Any) -> tuple[Tensor, bool]:
        """The payload that a path of view operators leads to."""
        payload, mapped = cell.root
        for func, rest, kwargs, index in steps(path):
            if func is STOP:
                payload = stopped(payload)
            elif mapped:
                rule = self.rule_for(entry(func))
                payload = rule(func, self, [payload, *rest], [True] + [False] * len(rest), kwargs)
            elif entry(func).strided:
                payload = run_strided(func, (payload, *rest), kwargs)
            else:
                payload = kept_alias(payload) if func is DETACH else func(payload, *rest, **kwargs)
            if index is not None:
                payload = payload[index]
        return payload, mapped

    def captured(self, name: str, what: str) -> CapturedWriteError:
        """The error for a write into a tensor from outside."""
        return CapturedWriteError(
            f"vmap: `{name}` at {source_line()} writes a value that differs between lanes into {what}, which was made outside "
            f"of the mapped function. Make the tensor inside the function, or pass it as an argument with an in_dim of its own."
        )

    def outside(self, value: Batched) -> Tensor | None:
        """A value as it is to those who know nothing of the lanes; None if it differs between them."""
        return None if value._mapped else value._payload

    def inspect(self, value: Batched) -> Any:
        """The Python value of a tensor, when Python needs one for all lanes."""
        return inspect_value(self, value)


class KeywordFlags(list):
    """Flags of the positional arguments, and in `keywords` the names of the mapped keyword arguments."""

    def __init__(self, flags: list[Any], keywords: frozenset[str]) -> None:
        super().__init__(flags)
        self.keywords = keywords
