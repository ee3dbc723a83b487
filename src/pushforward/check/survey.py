"""The survey of one run: its operators in order, what each decided, what was drawn, and what was written outside.

Kept for each operator are a name, a line and two fingerprints, so a survey of any function is small. Where two
surveys differ in a decision, a second look (`Look`) keeps the choices and margins of those operators only.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ops.table import entry
from .decisions import decision, exact, fingerprint, moving_kind
from .observe import Call, Observer, tensors

Tensor = torch.Tensor
_STATISTICS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"})


class Survey(Observer):
    """What happened, in the order of the operators."""

    sees_inside = True  # a kink inside of a torch.autograd.Function is a kink

    def __init__(self, *, results: bool = False) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sources: list[str] = []
        self.choices: list[int | None] = []
        self.results: list[int] | None = [] if results else None
        self.random: list[int] = []
        self.writes: list[tuple[str, str, Tensor, Tensor]] = []  # name, line, target outside, its value before
        self.casts: list[int] = []
        self.narrow: set[torch.dtype] = set()
        self._own: set[int] = set()

    def places(self) -> list[tuple[str, str]]:
        """Name and line of each operator."""
        return list(zip(self.names, self.sources, strict=True))

    def made(self, value: Any) -> None:
        """A tensor from numbers: ours, not captured."""
        self._own.update(t.untyped_storage().data_ptr() for t in tensors(value))

    def operator(self, call: Call) -> Any:
        """Keep names, lines and fingerprints."""
        choice: Any = None
        writes = False
        if call.kind == "operator":
            e = entry(call.function)
            writes = bool(e.writes or e.out_names)
            if e.random:
                self.random.append(len(self.names))
            if writes or (call.name in _STATISTICS and len(call.args) > 5 and call.args[5]):
                self.keep_targets(call, e)
            if writes:
                choice = self.choice_of(call, None)
        out = call.run()
        if call.kind == "operator":
            if choice is None:
                choice = self.choice_of(call, out)
            if (
                call.name == "_to_copy"
                and moving_kind(call.args[0])
                and not moving_kind(out)
                and out.dtype is not torch.bool
            ):
                self.casts.append(len(self.names))
        self.names.append(call.name)
        self.sources.append(call.source)
        self.choices.append(choice)
        found = tensors(out)
        if self.results is not None:
            self.results.append(exact(found) if call.name not in _EMPTY else 0)
        for t in found:
            if moving_kind(t):
                self.narrow.add(t.dtype)
            if t.layout is torch.strided and not writes:
                self._own.add(t.untyped_storage().data_ptr())
        return out

    def choice_of(self, call: Call, out: Any) -> int | None:
        """The fingerprint of an operator's decision."""
        if call.name == "_local_scalar_dense":
            return hash(out) if isinstance(out, (int, bool)) and out is not None else None
        try:
            found = decision(call.name, call.function, call.args, call.kwargs, out)
        except (RuntimeError, TypeError, IndexError):  # an overload whose arguments the table does not know
            return None
        return None if found is None else fingerprint(found[0])

    def keep_targets(self, call: Call, e: Any) -> None:
        """Remember what is about to be written, if it was not made in this run."""
        targets = [call.args[k] for k in e.writes] + [call.kwargs[n] for n in e.out_names if n in call.kwargs]
        if call.name in _STATISTICS:
            targets += [t for t in call.args[3:5] if t is not None]
        known = {id(w[2]) for w in self.writes}
        for t in tensors(targets):
            if t.layout is torch.strided and t.untyped_storage().data_ptr() not in self._own and id(t) not in known:
                self.writes.append((call.name, call.source, t, t.detach().clone()))

    def changed(self) -> list[tuple[str, str, Tensor]]:
        """The tensors outside that the run left different: operator, line, tensor."""
        return [(n, s, t) for n, s, t, before in self.writes if not torch.equal(t.detach(), before)]

    def restore(self) -> None:
        """Put back what was written outside."""
        with torch.no_grad():
            for _, _, t, before in self.writes:
                t.detach().copy_(before)


_EMPTY = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_"}
)


def crossings(a: Survey, b: Survey) -> tuple[list[int], int | None]:
    """Operators that decided differently, up to the first where the runs took different ways (given second)."""
    found = []
    for k, (x, y) in enumerate(zip(a.places(), b.places(), strict=False)):
        if x != y:
            return found, k
        if a.choices[k] != b.choices[k]:
            found.append(k)
    return found, None if len(a.names) == len(b.names) else min(len(a.names), len(b.names))


class Look(Observer):
    """A second look at a few operators of a run: their choices and margins."""

    sees_inside = True

    def __init__(self, wanted: list[int]) -> None:
        super().__init__()
        self.wanted = set(wanted)
        self.index = -1
        self.seen: dict[int, tuple[list[Tensor], list[Tensor], Any]] = {}

    def operator(self, call: Call) -> Any:
        """Keep the decision of a wanted operator."""
        if call.kind == "function":
            out = call.run()
            self.index += 1
            return out
        self.index += 1
        k = self.index
        if k not in self.wanted:
            return call.run()
        e = entry(call.function)
        before = decision(call.name, call.function, call.args, call.kwargs, None) if e.writes else None
        source = call.args[0].detach().clone() if call.args and isinstance(call.args[0], Tensor) else None
        out = call.run()
        if call.name == "_local_scalar_dense":
            self.seen[k] = ([torch.tensor(int(out))], [], None)
            return out
        found = before or decision(call.name, call.function, call.args, call.kwargs, out)
        if found is not None:
            self.seen[k] = ([s.detach().clone() for s in found[0]], [m.detach().clone() for m in found[1]], source)
        return out
