"""The pattern interpreter: runs a function as it is and keeps beside each storage the set of inputs of every element.

No value is wrapped. A dispatch mode sees each operator on plain tensors; labels (see `sets`) live beside *storages*,
so views need no rule, a write through a view is seen by all, and a tensor's labels are its storage's labels read by
its own sizes and strides. Operators without a rule are dense: every output element depends on every element of every
input.

Under "global" a pattern holds at every point: only values that cannot vary with the inputs may cut a dependence. Under
"local" it holds at this point, and a factor that is exactly zero here cuts too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core.source import source_line
from ..core.torch_private import NoFunction, TorchDispatchMode, storage_reference
from ..ops.table import Entry, entry
from .csr import Array
from .sets import Sets

Tensor = torch.Tensor


DRAWN = 2  # `Kept.varies` of what depends on random numbers: another call draws others, also at this point


class NoPatternError(RuntimeError):
    """The function does something whose pattern cannot be followed; the message says what."""


class Kept:
    """What is known beside one storage."""

    __slots__ = ("itemsize", "labels", "reference", "varies")

    def __init__(self, reference: Any, itemsize: int, labels: Array | None, varies: int) -> None:
        self.reference, self.itemsize, self.labels, self.varies = reference, itemsize, labels, varies


class Call:
    """One operator call as a rule sees it: functional arguments, their labels, and the outputs already computed."""

    def __init__(
        self, level: PatternLevel, e: Entry, op: Any, args: list[Any], kwargs: dict[str, Any], out: Any
    ) -> None:
        self.level, self.entry, self.op, self.args, self.kwargs = level, e, op, args, kwargs
        self.outs: list[Any] = list(out) if isinstance(out, (tuple, list)) else [out]
        self.sets = level.sets
        self.local = level.local

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its schema name, positional or keyword."""
        for k, arg in enumerate(self.op._schema.arguments):
            if arg.name == name:
                if k < len(self.args) and not arg.kwarg_only:
                    return self.args[k]
                if name in self.kwargs:
                    return self.kwargs[name]
                return arg.default_value if arg.has_default_value() else default
        return default

    def labels(self, value: Any) -> Array | None:
        """The labels of a tensor (None: no dependence), for any argument."""
        return self.level.read(value) if isinstance(value, Tensor) else None

    def dense_labels(self, value: Tensor) -> Array:
        """As `labels`, with zeros for none."""
        found = self.labels(value)
        return np.zeros(tuple(value.shape), dtype=np.int64) if found is None else found

    def fixed(self, value: Any) -> bool:
        """Whether the value may be read: it is a constant, or the pattern is for this point only; random numbers never may."""
        return not isinstance(value, Tensor) or self.level.varies(value) <= self.local

    def tensors(self) -> list[Tensor]:
        """All tensor arguments."""
        return [t for t in flat_tensors(self.args, self.kwargs)]


def flat_tensors(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among some arguments, lists included."""
    found = []
    for a in (*args, *kwargs.values()):
        if isinstance(a, Tensor):
            found.append(a)
        elif isinstance(a, (list, tuple)):
            found += [x for x in a if isinstance(x, Tensor)]
    return found


def has_labels(t: Any) -> bool:
    """Whether a tensor can carry a derivative."""
    return isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())


class PatternLevel(TorchDispatchMode):
    """The running interpreter over n input elements."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports the compiler, which takes seconds

    def __init__(self, n: int, *, local: bool, trusts_constants: bool = True) -> None:
        super().__init__()
        self.sets = Sets(n)
        self.local = local
        self.trusts_constants = trusts_constants or local  # False: also values without a known origin may vary
        self.memory: dict[int, Kept] = {}
        self.branches: list[str] = []  # source lines where Python read a value that depends on the inputs
        self.dense: dict[str, int] = {}  # operators without a rule, and how often they were met

    # -- labels beside storages -----------------------------------------------------------------------------------

    def kept(self, t: Tensor) -> Kept | None:
        """What is known beside the storage of a tensor."""
        if t.layout is not torch.strided:
            return None
        storage = t.untyped_storage()
        found = self.memory.get(storage._cdata)
        if found is not None and found.reference.expired():
            del self.memory[storage._cdata]
            return None
        return found

    def varies(self, t: Tensor) -> int:
        """Whether the value may change with the inputs, or is `DRAWN`."""
        found = self.kept(t)
        return max(0 if found is None else found.varies, not self.trusts_constants)

    def read(self, t: Tensor) -> Array | None:
        """The labels of each element of a tensor; None where there are none at all."""
        found = self.kept(t)
        if found is None or found.labels is None:
            return None
        view = self.seen(found, t)
        if view.ndim > t.dim():  # one element over several finer ones (a complex number over its parts)
            rows = np.repeat(np.arange(t.numel()), view.shape[-1])
            return self.sets.joined(rows, view.reshape(-1), t.numel()).reshape(tuple(t.shape))
        return view

    def seen(self, found: Kept, t: Tensor) -> Array:
        """The part of a storage's labels that a tensor sees: a view, with one more axis if its elements are wider."""
        assert found.labels is not None
        size = t.element_size()
        if size < found.itemsize:
            found.labels = np.repeat(found.labels, found.itemsize // size)
            found.itemsize = size
        ratio = size // found.itemsize
        shape, strides = list(t.shape), [s * ratio * 8 for s in t.stride()]
        if ratio > 1:
            shape, strides = [*shape, ratio], [*strides, 8]
        return np.lib.stride_tricks.as_strided(found.labels[t.storage_offset() * ratio :], shape, strides)

    def write(self, t: Tensor, labels: Array | None, varies: int) -> None:
        """Set the labels of the elements a tensor looks at."""
        if t.layout is not torch.strided:
            if labels is not None and labels.any():
                msg = f"a tensor of layout {t.layout} made from the inputs at {source_line()}"
                raise NoPatternError(msg)
            return
        found = self.kept(t)
        if found is None:
            if labels is None and not varies:
                return
            storage = t.untyped_storage()
            found = self.memory[storage._cdata] = Kept(storage_reference(storage), t.element_size(), None, False)
        found.varies = max(found.varies, varies)
        if labels is None and found.labels is None:
            return
        if found.labels is None:
            count = t.untyped_storage().nbytes() // found.itemsize
            found.labels = np.zeros(count, dtype=np.int64)
        view = self.seen(found, t)
        if labels is None:
            view[...] = 0
        elif view.ndim > t.dim():
            view[...] = np.broadcast_to(labels, tuple(t.shape))[..., None]
        else:
            view[...] = labels

    # -- operators ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with NoFunction():
            known = [t for t in flat_tensors(args, kwargs) if self.kept(t) is not None]
            if not known and torch.Tag.nondeterministic_seeded not in func.tags:
                return func(*args, **kwargs)
            return self.handle(entry(func), func, args, kwargs)

    def handle(self, e: Entry, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operator that touches a known storage."""
        if e.is_view:
            out = func(*args, **kwargs)
            outs = out if isinstance(out, (tuple, list)) else [out]
            if all(o.layout is torch.strided and self.kept(o) is not None for o in outs):
                return out
        if e.composite and e.rule("sparsity") is None:
            with self:
                return func.decompose(*args, **kwargs)
        if e.name in ("_local_scalar_dense", "equal", "is_nonzero") or e.dynamic:
            self.branches.append(source_line())
        written = {*e.writes}
        if not written and not e.out_names:
            out = func(*args, **kwargs)
            self.note(e, Call(self, e, func, list(args), kwargs, out))
            return out
        # A write: the rule sees the arguments as they were before.
        before = [self.snapshot(a) if k in written else a for k, a in enumerate(args)]
        targets = [args[k] for k in e.writes] + [kwargs[name] for name in e.out_names if name in kwargs]
        plain = {k: v for k, v in kwargs.items() if k not in e.out_names}
        out = func(*args, **kwargs)
        flat = [x for t in targets for x in (t if isinstance(t, (list, tuple)) else [t])]
        returned = out if isinstance(out, (tuple, list)) else [out]
        flat = [o for o in returned if isinstance(o, Tensor) and not any(o is t for t in flat)] + flat
        self.note(e, Call(self, e, e.functional or func, before, plain, flat))
        return out

    def snapshot(self, value: Any) -> Any:
        """A copy of a tensor that is about to be written, with its labels."""
        if isinstance(value, (list, tuple)):
            return [self.snapshot(v) for v in value]
        if not isinstance(value, Tensor):
            return value
        copy = value.clone()
        found = self.kept(value)
        if found is not None:
            labels = self.read(value)
            self.write(copy, None if labels is None else labels.copy(), found.varies)
        return copy

    def note(self, e: Entry, call: Call) -> None:
        """Work out the labels of the outputs and keep them."""
        from .kinds import pattern_rule

        inputs = call.tensors()
        active = any(self.read_any(t) for t in inputs)
        drawn = torch.Tag.nondeterministic_seeded in call.op.tags
        varies = max([DRAWN if drawn else int(active), *[self.varies(t) for t in inputs]])
        made: Any = None
        if active:
            rule = e.cache.get("sparsity")
            if rule is None:
                rule = e.cache["sparsity"] = pattern_rule(e)
            made = rule(call)
        if not isinstance(made, list):
            made = [made] * len(call.outs)
        for t, labels in zip(call.outs, made, strict=True):
            if isinstance(t, Tensor):
                if labels is not None and has_labels(t):
                    self.write(t, np.broadcast_to(labels, tuple(t.shape)), 0 if call.entry.cache.get("lends") else varies)
                else:
                    self.write(t, None, 0 if call.entry.cache.get("lends") else varies)

    def read_any(self, t: Tensor) -> bool:
        """Whether a tensor depends on any input."""
        labels = self.read(t)
        return labels is not None and bool(labels.any())
