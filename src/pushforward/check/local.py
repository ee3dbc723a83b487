"""The first wrong operator, each operator judged alone.

Forward mode runs once under observation. For an operator y = g(z) with input tangents ṫ, the true output tangent is
(g(z + hṫ) − g(z − hṫ)) / 2h, whatever its rule says; for reverse mode, ⟨ū, ẏ⟩ = Σ ⟨g's own vjp of ū, ṫ⟩. Both are
made on the spot, so nothing is stored and one wrong operator does not spoil the next: where a tangent is wrong the
true one is put in its place.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..forward.level import Dual
from ..ops import kinds as op_kinds
from ..ops.table import entry
from .decisions import decision, fingerprint, moving_kind
from .observe import Call, Observer, innermost_jvp, tensors
from .survey import Survey

Tensor = torch.Tensor
TOLERANCE = 1e-6
STEP = 6e-6
SUMS = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "sum",
        "mean",
        "cumsum",
        "addmm",
        "mm",
        "bmm",
        "baddbmm",
        "mv",
        "dot",
        "addmv",
        "addcmul",
        "addcdiv",
        "lerp",
    ]
)


@dataclass
class Suspect:
    """An operator whose own derivative is wrong."""

    index: int
    operator: str
    source: str
    function: Any
    whole: bool  # a torch.autograd.Function
    forward: float  # relative error of the tangent it gave
    reverse: float  # relative error of its inner product; 0 where reverse mode was not asked
    sizes: str
    failure: str = ""


class Truth(NamedTuple):
    """What differences of one operator say of one result: tangent, bound, value, and the slopes on both sides."""

    tangent: Tensor
    bound: Tensor
    value: Tensor
    left: Tensor
    right: Tensor

    def kinked(self) -> Tensor:
        """Where the slopes on both sides are not the same: next to a kink, or on it."""
        scale = float(self.tangent.abs().max()) if self.tangent.numel() else 0.0
        return (self.left - self.right).abs() > 1e-3 * scale + 64 * self.bound

    def between(self, given: Tensor) -> Tensor:
        """Where a kink makes `given`, a slope between those of both sides, as right as the mean."""
        if given.is_complex():
            return self.kinked()
        low, high = torch.minimum(self.left, self.right), torch.maximum(self.left, self.right)
        slack = 1e-3 * (high - low)
        return self.kinked() & (given >= low - slack) & (given <= high + slack)


class LocalCheck(Observer):
    """Judges each operator of a run on dual numbers."""

    def __init__(self, *, reverse: bool, skip_views: bool = True) -> None:
        super().__init__()
        self.reverse = reverse
        self.skip_views = skip_views
        self.index = -1
        self.suspects: list[Suspect] = []
        self.kinked: list[tuple[str, str]] = []  # operators with a kink where they are called
        self.cancelled: tuple[float, str, str] = (0.0, "", "")
        self.level: Any = None

    def operator(self, call: Call) -> Any:
        """Run an operator on dual numbers and judge its tangent."""
        self.index += 1
        if self.level is None:
            self.level = innermost_jvp()
        whole = call.kind == "function"
        e = None if whole else entry(call.function)
        if not self.moving((call.args, call.kwargs)) or (e is not None and (e.is_view or e.out_names)):
            return call.run()
        writes = e is not None and bool(e.writes)
        state = torch.get_rng_state() if e is not None and e.random else None
        with self.aside():
            places, primals, directions = self.taken(call)
            if writes:
                primals, directions = [p.clone() for p in primals], [t.clone() for t in directions]
            args, kwargs = self.bare(tuple(call.args), clone=writes), self.bare(call.kwargs, clone=False)
        out = call.run()
        made = [o for o in tensors(out) if moving_kind(o)]
        if made and primals:
            with self.aside():
                self.judge(call, Local(call, e, args, kwargs, places, state), primals, directions, made, whole)
        return out

    def judge(
        self,
        call: Call,
        operator: Local,
        primals: list[Tensor],
        directions: list[Tensor],
        made: list[Tensor],
        whole: bool,
    ) -> None:
        """Compare tangents with differences of this operator alone; repair them where they are wrong."""
        truth = operator.differences(primals, directions)
        if truth is None:
            return
        worst = 0.0
        # Tangents that cancel leave rounding alone: below this nothing is judged.
        reach = max((float(p.abs().max()) for p in primals if p.numel()), default=0.0)
        floor = 1e-9 * max((float(t.abs().max()) for t in directions if t.numel()), default=0.0) / (reach or 1.0)
        for o, true in zip(made, truth, strict=True):
            d, bound, value = true.tangent, true.bound, true.value
            if type(o) is not Dual or o._level is not self.level:
                given = torch.zeros_like(d)
            else:
                given = torch.zeros_like(d) if o._tangent is None else o._tangent.detach()
            if d.numel() == 0:
                continue
            scale = float(d.abs().max())
            off = (given - d).abs()
            bad = off > TOLERANCE * scale + 4 * bound + floor * max(float(value.abs().max()), 1e-3 * reach)
            if bool(bad.any()) and bool(true.kinked().any()):
                self.kinked.append((call.name, call.source))
                bad &= ~true.between(given)
            size = max(float(given.abs().max()), scale)
            relative = float(off[bad].max()) / size if bool(bad.any()) and size > 0 else 0.0
            if relative > 10 * TOLERANCE:
                worst = max(worst, relative)
                if type(o) is Dual and o._level is self.level:
                    o._tangent, o._form = torch.where(bad, d, given).to(o._primal.dtype), None
            self.note_cancellation(call, operator, value)
        reverse, failure = 0.0, ""
        if self.reverse:
            try:
                reverse = operator.reverse_error(primals, directions, truth, floor * 1e-3 * reach)
            except RuntimeError as error:
                reverse, failure = 1.0, str(error).split("\n")[0]
        if worst > 10 * TOLERANCE or reverse > 10 * TOLERANCE:
            sizes = ", ".join(str(list(p.shape)) for p in tensors(operator.args))
            self.suspects.append(
                Suspect(self.index, call.name, call.source, call.function, whole, worst, reverse, sizes, failure)
            )

    def note_cancellation(self, call: Call, operator: Local, value: Tensor) -> None:
        """Remember the sum or difference that loses most digits."""
        if call.name not in ("add", "sub", "rsub", "sum", "mean", "add_", "sub_") or not value.numel():
            return
        with torch.no_grad():
            terms = [float(t.detach().abs().max()) for t in tensors(operator.args) if t.numel() and moving_kind(t)]
            terms += [abs(float(a)) for a in operator.args[:2] if isinstance(a, (int, float))]
            size = float(value.abs().min())
            lost = max(terms, default=0.0) / size if size > 0 else float("inf")
        if lost > self.cancelled[0]:
            self.cancelled = (lost, call.name, call.source)

    def moving(self, value: Any) -> bool:
        """Whether a dual number with a tangent is among the arguments."""
        return any(
            type(t) is Dual and t._level is self.level and t._tangent is not None for t in tensors(value_of(value))
        )

    def taken(self, call: Call) -> tuple[list[tuple[Any, ...]], list[Tensor], list[Tensor]]:
        """The arguments that move: where they are, their values and tangents."""
        places, primals, directions = [], [], []

        def walk(value: Any, path: tuple[Any, ...]) -> None:
            if type(value) is Dual and value._level is self.level:
                if value._tangent is not None and moving_kind(value._primal):
                    places.append(path)
                    primals.append(value._primal.detach())
                    directions.append(value._tangent.detach())
            elif isinstance(value, (list, tuple)):
                for k, v in enumerate(value):
                    walk(v, (*path, k))

        walk(tuple(call.args), ("args",))
        for name, v in call.kwargs.items():
            walk(v, ("kwargs", name))
        return places, primals, directions

    def bare(self, value: Any, *, clone: bool) -> Any:
        """Arguments as plain tensors."""
        if type(value) is Dual and value._level is self.level:
            return value._primal.detach().clone() if clone else value._primal.detach()
        if isinstance(value, Tensor):
            return value.detach().clone() if clone else value.detach()
        if isinstance(value, (list, tuple)):
            return type(value)(self.bare(v, clone=clone) for v in value) if type(value) in (list, tuple) else value
        if isinstance(value, dict):
            return {k: self.bare(v, clone=clone) for k, v in value.items()}
        return value


def value_of(value: Any) -> Any:
    """Positional and keyword arguments as one list."""
    args, kwargs = value
    return [*args, *kwargs.values()]


class Local:
    """One operator alone, as a function of the arguments that move."""

    def __init__(self, call: Call, e: Any, args: Any, kwargs: Any, places: list[tuple[Any, ...]], state: Any) -> None:
        self.call, self.entry, self.args, self.kwargs, self.places, self.state = call, e, args, kwargs, places, state
        self.inner: Survey | None = None  # sees what a whole function decides inside
        self.sums = call.name.rstrip("_") in SUMS
        self.elementwise = (
            e is not None
            and e.row is not None
            and isinstance(e.row.kind, (op_kinds.Elementwise, op_kinds.ElementwiseLinear, op_kinds.ElementwiseBilinear))
        )

    def filled(self, values: list[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with other values in the moving places."""
        args, kwargs = _copied(list(self.args)), dict(self.kwargs)
        for path, v in zip(self.places, values, strict=True):
            target: Any = args if path[0] == "args" else kwargs
            for step in path[1:-1]:
                target = target[step]
            target[path[-1]] = v
        return args, kwargs

    def call_with(self, values: list[Tensor]) -> Any:
        """The operator itself, outside of every transform."""
        args, kwargs = self.filled(values)
        if self.entry is not None and self.entry.writes:
            args = [a.clone() if k in self.entry.writes and isinstance(a, Tensor) else a for k, a in enumerate(args)]
        if self.state is not None:
            torch.set_rng_state(self.state)
        if self.entry is None:
            with contextlib.nullcontext() if self.inner is None else self.inner.watching():
                return self.call.function.apply(*args, **kwargs)
        return self.call.function(*args, **kwargs)

    def value(self, values: list[Tensor]) -> tuple[list[Tensor], int]:
        """Output tensors without a graph, and the fingerprint of the decision."""
        with torch.no_grad():
            self.inner = Survey() if self.entry is None else None
            out = self.call_with([v.clone() for v in values])
            found = [o.detach() for o in tensors(out) if moving_kind(o)]
            choice = 0 if self.inner is None else hash(tuple(self.inner.choices))
            self.inner = None
            if self.entry is not None:
                with contextlib.suppress(RuntimeError, TypeError, IndexError):
                    args, kwargs = self.filled(values)
                    made = decision(
                        self.call.name, self.call.function, args, kwargs, None if self.entry.writes else out
                    )
                    choice = fingerprint(made[0]) if made else 0
        return found, choice

    def steps(self, primals: list[Tensor], directions: list[Tensor]) -> Any:
        """A step: one for each element where the operator is elementwise, else one for all."""
        shapes = {p.shape for p in primals}
        if self.elementwise and len(shapes) == 1:
            made: Any = None
            for z, t in zip(primals, directions, strict=True):
                size = z.abs().clamp(min=1e-3 * float(z.abs().max()) if z.numel() and float(z.abs().max()) > 0 else 1.0)
                ratio = torch.where(t != 0, size / t.abs().clamp(min=1e-300), float("inf"))
                made = ratio if made is None else torch.minimum(made, ratio)
            return torch.where(torch.isfinite(made), made, 1.0)
        ratios = []
        for z, t in zip(primals, directions, strict=True):
            if t.numel() and float(t.abs().max()) > 0:
                size = float(z.abs().max())
                ratios.append((size if size > 0 else 1.0) / float(t.abs().max()))
        return min(ratios, default=1.0)

    def differences(self, primals: list[Tensor], directions: list[Tensor]) -> list[Truth] | None:
        """True tangents by differences, their bounds and the values; None where it decides anew."""
        zero, at = self.value(primals)
        unit = self.steps(primals, directions)
        for h in (STEP, STEP / 100, STEP / 3000):
            step = h * unit
            ways = {}
            for s in (1.0, -1.0, 0.5, -0.5):
                ways[s] = self.value([z + s * step * t for z, t in zip(primals, directions, strict=True)])
            decided = all(choice == at for _, choice in ways.values())
            if decided or (self.elementwise and h < STEP / 1000):
                break
        else:
            return None
        made = []
        for j, z in enumerate(zero):
            over = step if isinstance(step, float) or step.shape == z.shape else None
            if over is None:
                return None
            a = (ways[1.0][0][j] - ways[-1.0][0][j]) / (2 * over)
            b = (ways[0.5][0][j] - ways[-0.5][0][j]) / over
            eps = torch.finfo(z.dtype).eps if not z.is_complex() else 2.3e-16
            size = z.abs() if self.elementwise else (z.abs().max() if z.numel() else z.abs())
            if self.sums:  # terms that cancel leave the rounding of the terms
                size = size.clamp(min=max((float(p.abs().max()) for p in primals if p.numel()), default=0.0))
            bound = (a - b).abs() + 16 * eps * size / over
            bound = bound + (0.0 if self.elementwise or not z.numel() else bound.mean())
            left, right = (z - ways[-0.5][0][j]) / (over / 2), (ways[0.5][0][j] - z) / (over / 2)
            made.append(Truth((4 * b - a) / 3, bound, z, left, right))
        return made

    def reverse_error(self, primals: list[Tensor], directions: list[Tensor], truth: Any, floor: float) -> float:
        """How far ⟨ū, ẏ⟩ is from Σ ⟨vjp(ū), ṫ⟩, relative to the size of the products."""
        # Hooks of a surrounding checkpoint would keep what is saved here for a backward pass of their own.
        plain = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
        with torch.enable_grad(), plain:
            inputs = [p.clone().requires_grad_() for p in primals]
            used = [x.view_as(x) for x in inputs]
            outs = [o for o in tensors(self.call_with(used)) if moving_kind(o)]
            pairs = [(o, true) for o, true in zip(outs, truth, strict=True) if o.requires_grad]
            generator = torch.Generator().manual_seed(11)
            seeds = []
            expected, size, noise = 0.0, 0.0, 0.0
            for o, true in pairs:
                d, b = true.tangent, true.bound
                u = torch.randn(o.shape, dtype=torch.float64, generator=generator).to(o.device)
                u = torch.where((b <= 1e-4 * d.abs().max() + 1e-300) & ~true.kinked(), u, 0.0).to(o.dtype)
                seeds.append(u)
                products = torch.real(u.conj() * d)
                expected += float(products.sum())
                size += float(products.abs().sum())
                noise += float((u.abs() * b).sum())
            if not pairs:
                return 1.0 if any(float(true.tangent.abs().max()) > 0 for true in truth if true.value.numel()) else 0.0
            grads = torch.autograd.grad([o for o, _ in pairs], inputs, seeds, allow_unused=True)
        got = sum(
            float(torch.real(g.conj() * t).sum()) for g, t in zip(grads, directions, strict=True) if g is not None
        )
        scale = max(size, abs(got), 1e-300)
        off = abs(got - expected)
        return off / scale if off > TOLERANCE * scale + 4 * noise + floor else 0.0


def _copied(value: Any) -> Any:
    return [_copied(v) if isinstance(v, (list, tuple)) else v for v in value]
