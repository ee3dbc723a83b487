"""The routes to a Jacobian-vector product, side by side: time, memory, error, and what each asks for.

Showing how torch's own routes do is the purpose here, so this is the one module that calls `torch.func` and
`torch.autograd.functional`.

    own jvp                 one pass with dual numbers
    double backward         J v = d/du ⟨Jᵀu, v⟩: two backward passes, by torch.autograd.functional.jvp or by hand
    torch.func.jvp          one pass with torch's dual numbers
    differences             (f(x + hv) − f(x)) / h, and central; the error over h is a V: truncation, rounding
"""

from __future__ import annotations

import statistics
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.torch_private import TorchDispatchMode
from ..core.words import check_function, kind, name_of, without_derivative
from ..forward.jvp import checked, jvp
from .differences import STEP, base_step, best, central, gap
from .observe import tensors
from .precision import relative
from .subject import differentiable, subject_of, wide_subject_of

Tensor = torch.Tensor
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
EXPONENTS = tuple(range(-12, 0))
ROUNDS = 15


@dataclass
class Route:
    """One way to the product.

    Attributes:
        name: what it is.
        seconds: median time of a call; the routes take turns.
        slower: median over the turns of its time by that of pf.jvp.
        peak_bytes: the most memory that one call held at a time, beyond what was held before.
        error: the largest difference from the float64 reference, relative to the largest entry.
        needs_requires_grad: whether it records a graph of the inputs.
        differentiable: whether the result can be differentiated again.
        refused: why it did not run; empty when it did.
    """

    name: str
    seconds: float = float("nan")
    slower: float = float("nan")
    peak_bytes: int = 0
    error: float = float("nan")
    needs_requires_grad: bool = False
    differentiable: bool = False
    refused: str = ""


@dataclass
class RoutesReport:
    """The result of `pf.routes`: the routes, and the error of differences over the step."""

    name: str
    sizes: str
    routes: list[Route] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    forward_errors: list[float] = field(default_factory=list)
    central_errors: list[float] = field(default_factory=list)
    reference: str = ""

    def __getitem__(self, name: str) -> Route:
        """The route of a name."""
        return next(r for r in self.routes if r.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values."""
        return {
            "name": self.name,
            "sizes": self.sizes,
            "reference": self.reference,
            "routes": [vars(r).copy() for r in self.routes],
            "steps": list(self.steps),
            "forward_errors": list(self.forward_errors),
            "central_errors": list(self.central_errors),
        }

    def __str__(self) -> str:
        head = ("route", "time", "by pf.jvp", "peak memory", "error", "records a graph", "again")
        rows: list[tuple[str, ...]] = [head]
        for r in self.routes:
            if r.refused:
                rows.append((r.name, "refused:", r.refused, "", "", "", ""))
                continue
            rows.append(
                (
                    r.name,
                    duration(r.seconds),
                    f"{r.slower:.2f}x",
                    size(r.peak_bytes),
                    f"{r.error:.1e}",
                    "yes" if r.needs_requires_grad else "no",
                    "yes" if r.differentiable else "no",
                )
            )
        widths = [max(len(row[k]) for row in rows if "refused:" not in row) for k in range(len(head))]
        lines = [f"routes to J v of {self.name}: {self.sizes}", f"errors against {self.reference}", ""]
        for row in rows:
            if row[1] == "refused:":
                lines.append(f"  {row[0]:<{widths[0]}}  refused: {row[2]}")
            else:
                lines.append("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
        lines.insert(4, "  " + "  ".join("-" * w for w in widths))
        return "\n".join(lines)

    def plot(self, path: Any = None) -> Any:
        """A picture: the error of differences over the step beside the errors of the exact routes, and the times.

        Args:
            path: where to save it; None only returns the figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed (`pip install 'pushforward[plot]'`).
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 5), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"Routes to J v of {self.name}: {self.sizes}", fontsize=13, fontweight="bold")
        left, right = figure.subplots(1, 2)
        left.loglog(self.steps, self.forward_errors, "o-", color=COLOURS[1], label="forward differences")
        left.loglog(self.steps, self.central_errors, "s-", color=COLOURS[0], label="central differences")
        exact = [r for r in self.routes if not r.refused and "difference" not in r.name]
        for r, colour in zip(exact, COLOURS[2:] + COLOURS[:2], strict=False):
            left.axhline(max(r.error, 1e-17), color=colour, linestyle="--", linewidth=1.4, label=r.name)
        left.set_xlabel("step h, relative to the size of the inputs")
        left.set_ylabel("error, relative to the largest entry")
        left.set_title("Differences err both ways: truncation right, rounding left", fontsize=10, loc="left")
        left.legend(fontsize=8, frameon=False)
        ran = [r for r in self.routes if not r.refused]
        places = range(len(ran))
        right.barh(places, [1e6 * r.seconds for r in ran], color=COLOURS[0])
        right.set_yticks(list(places), [r.name for r in ran], fontsize=8)
        right.invert_yaxis()
        right.set_xlabel("time of one call (µs)")
        for k, r in zip(places, ran, strict=True):
            right.annotate(f" {r.slower:.2f}x", (1e6 * r.seconds, k), va="center", fontsize=8)
        right.set_title("Median time, the routes taking turns", fontsize=10, loc="left")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        right.margins(x=0.12)
        if path is not None:
            figure.savefig(path, dpi=130)
        return figure


def routes(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any = None,
    *,
    steps: Sequence[float] = (1e-2, 1e-4, 1e-6),
    rounds: int = ROUNDS,
    seed: int = 0,
) -> RoutesReport:
    """Measure the routes to J v of one function at one point.

    Args:
        func: a function of the primals; returns a tensor or a pytree of tensors.
        primals: a tuple of inputs.
        tangents: the direction; drawn at random when not given.
        steps: relative steps of the differences in the table.
        rounds: how often each route is timed; the routes take turns.
        seed: for the random direction.

    Returns:
        A `RoutesReport`: `str()` is the table, `.plot(path)` the picture, `.to_dict()` the numbers.

    Example:
        >>> import torch, pushforward as pf
        >>> report = pf.routes(torch.sin, (torch.ones(3),), rounds=3)
        >>> report["pf.jvp"].error < 1e-6, report["torch.func.jvp"].refused
        (True, '')
    """
    check_function("routes", func, "routes(f, (x,))")
    primals = tuple(primals) if isinstance(primals, (tuple, list)) else (primals,)
    leaves, spec = tree.flat(primals)
    if not any(differentiable(x) for x in leaves):
        told = without_derivative(leaves, tree.paths(primals, "primals"))
        msg = f"routes({name_of(func)}): there is no floating-point input to differentiate by: {told}"
        raise ArgumentError(msg)
    if tangents is None:
        generator = torch.Generator().manual_seed(982451653 + seed)
        drawn = [
            torch.randn(x.shape, dtype=torch.float64, generator=generator).to(x.dtype).to(x.device)
            if differentiable(x)
            else None
            for x in leaves
        ]
        tangents = tree.unflatten(drawn, spec)
    _, _, flat, _ = checked(func, primals, tangents, "routes")
    places = [k for k, (x, t) in enumerate(zip(leaves, flat, strict=True)) if differentiable(x) and t is not None]
    xs, vs = tuple(leaves[k].detach() for k in places), tuple(flat[k].detach() for k in places)

    def of_leaves(*inputs: Tensor) -> tuple[Tensor, ...]:
        full = list(leaves)
        for k, x in zip(places, inputs, strict=True):
            full[k] = x
        return tuple(o for o in tree.leaves(func(*tree.unflatten(full, spec))) if differentiable(o))

    if not of_leaves(*xs):
        returned = func(*primals)
        msg = f"routes({name_of(func)}): the function must return a floating-point tensor, but returned {kind(returned)}"
        raise ArgumentError(msg)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measured(func, primals, of_leaves, xs, vs, places, steps, rounds)


def measured(
    func: Any, primals: Any, f: Any, xs: Any, vs: Any, places: list[int], steps: Sequence[float], rounds: int
) -> RoutesReport:
    """Run, time and compare all routes."""
    unit = base_step(xs, vs)
    ways: dict[str, tuple[Callable[..., Any], bool]] = {
        "pf.jvp": (lambda *x: jvp(f, x, vs)[1], False),
        "torch.autograd.functional.jvp": (lambda *x: _functional(f, x, vs), True),
        "double backward by hand": (lambda *x: by_hand(f, x, vs), True),
        "torch.func.jvp": (lambda *x: torch.func.jvp(f, x, vs)[1], False),
    }
    for h in steps:
        ways[f"forward differences, h = {h:.0e}"] = (lambda *x, h=h: forward_difference(f, x, vs, h * unit), False)
    for h in steps:
        ways[f"central differences, h = {h:.0e}"] = (lambda *x, h=h: central_difference(f, x, vs, h * unit), False)
    outs = f(*xs)
    kind = str(xs[0].dtype).removeprefix("torch.")
    sizes = f"{sum(x.numel() for x in xs)} inputs, {sum(o.numel() for o in outs)} outputs, {kind}"
    report = RoutesReport(getattr(func, "__name__", None) or type(func).__name__, sizes)
    reference, report.reference = reference_for(func, primals, vs, places)
    made: dict[str, Route] = {}
    for name, (call, graph) in ways.items():
        made[name] = route = Route(name, needs_requires_grad=graph)
        try:
            found = call(*xs)
            route.error = relative(list(found), reference)
            route.peak_bytes = peak(lambda call=call: call(*xs), xs[0].device)
            route.differentiable = again(call, xs)
        except Exception as error:
            route.refused = (
                f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
                if str(error)
                else type(error).__name__
            )
    ran = [n for n, r in made.items() if not r.refused]
    times: dict[str, list[float]] = {n: [] for n in ran}
    for _ in range(rounds):
        for n in ran:
            start = time.perf_counter()
            ways[n][0](*xs)
            _settled(xs[0].device)
            times[n].append(time.perf_counter() - start)
    for n in ran:
        made[n].seconds = statistics.median(times[n])
        if "pf.jvp" in times:
            made[n].slower = statistics.median(a / b for a, b in zip(times[n], times["pf.jvp"], strict=True))
    report.routes = list(made.values())
    for k in EXPONENTS:
        h = 10.0**k
        report.steps.append(h)
        report.forward_errors.append(relative(list(forward_difference(f, xs, vs, h * unit)), reference))
        report.central_errors.append(relative(list(central_difference(f, xs, vs, h * unit)), reference))
    return report


def _functional(f: Any, xs: Any, vs: Any) -> Any:
    create = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
    found = torch.autograd.functional.jvp(f, xs, vs, create_graph=create)[1]
    return found if isinstance(found, tuple) else (found,)


def by_hand(f: Any, xs: Any, vs: Any) -> tuple[Tensor, ...]:
    """J v = d/du ⟨Jᵀu, v⟩ with two calls of torch.autograd.grad."""
    with torch.enable_grad():
        outside = any(x.requires_grad for x in xs)
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in xs]
        outs = f(*inputs)
        seeds = [torch.zeros_like(o, requires_grad=True) for o in outs]
        pulled = torch.autograd.grad(outs, inputs, seeds, create_graph=True, allow_unused=True, materialize_grads=True)
        return torch.autograd.grad(pulled, seeds, vs, create_graph=outside, allow_unused=True, materialize_grads=True)


def forward_difference(f: Any, xs: Any, vs: Any, h: float) -> tuple[Tensor, ...]:
    """(f(x + hv) − f(x)) / h."""
    above, at = f(*[x + h * v for x, v in zip(xs, vs, strict=True)]), f(*xs)
    return tuple((a - b) / h for a, b in zip(above, at, strict=True))


def central_difference(f: Any, xs: Any, vs: Any, h: float) -> tuple[Tensor, ...]:
    """(f(x + hv) − f(x − hv)) / 2h."""
    above, below = (
        f(*[x + h * v for x, v in zip(xs, vs, strict=True)]),
        f(*[x - h * v for x, v in zip(xs, vs, strict=True)]),
    )
    return tuple((a - b) / (2 * h) for a, b in zip(above, below, strict=True))


def reference_for(func: Any, primals: Any, vs: Any, places: list[int]) -> tuple[list[Tensor], str]:
    """J v in float64: extrapolated differences; with all digits of the dual numbers where the two agree."""
    try:
        subject = wide_subject_of(func, primals)
        subject.values(subject.point)
    except Exception:
        subject = subject_of(func, primals)
    floating = [k for k, x in enumerate(tree.leaves(primals)) if differentiable(x)]
    direction = [torch.zeros_like(x) for x in subject.point]
    for k, v in zip(places, vs, strict=True):
        direction[floating.index(k)] = v.to(subject.point[floating.index(k)].dtype)
    unit = base_step(subject.point, direction)
    # A smaller step may miss a kink that the usual one crosses.
    differences = best([central(subject, direction, h * unit, observe=False) for h in (STEP, STEP / 300)])
    try:
        found = subject.push(direction)
        agrees, off, _ = gap(found, differences, 1e-5)
    except Exception:
        agrees, off = False, float("nan")
    if agrees:
        return (
            found,
            f"dual numbers in {str(found[0].dtype).removeprefix('torch.')}, which agree with differences to {off:.0e}",
        )
    shaped = [
        d.view_as(torch.view_as_real(o)) if o.is_complex() else d.reshape(o.shape)
        for d, o in zip(differences.values, subject.values(subject.point), strict=True)
    ]
    return shaped, "extrapolated central differences in float64"


def again(call: Callable[..., Any], xs: Any) -> bool:
    """Whether the result depends on the inputs for autograd."""
    inputs = [x.detach().clone().requires_grad_() for x in xs]
    try:
        found = [o for o in call(*inputs) if o.requires_grad]
        if not found:
            return False
        torch.autograd.grad([torch.real(o).sum() for o in found], inputs, allow_unused=True)
    except Exception:
        return False
    return True


def peak(call: Callable[[], Any], device: torch.device) -> int:
    """The most bytes that a call held at a time, beyond what was held before it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        _settled(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with Held() as held:
        call()
    return held.most


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make, while they live."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that hides us from the compiler imports it, which takes seconds

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.living: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tensors(out):
            if t.layout is torch.strided:
                self.add(t.untyped_storage())
        return out

    def add(self, storage: Any) -> None:
        """Count a storage until it dies."""
        key, count = storage._cdata, storage.nbytes()
        if key in self.living or not count:
            return

        def gone(_: Any, key: int = key, count: int = count) -> None:
            if self.living.pop(key, None) is not None:
                self.now -= count

        self.living[key] = weakref.ref(storage, gone)
        self.now += count
        self.most = max(self.most, self.now)


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, word in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {word}"
    return f"{seconds / 1e-6:.3g} µs"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, word in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {word}"
    return f"{count} B"
