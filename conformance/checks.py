"""The compositions that are swept, each as checks: what is expected and what the library gives.

vmap          every number mapped at 0; the first one only, with gaps in memory; the last dimension; integers too
vmap_vmap     two levels of lanes
jvp, vjp      value and derivative
vmap_jvp      over directions at one point; over points and directions
vmap_vjp      over cotangents of one `vjp_fn`; over points and cotangents (per-sample gradients)
jvp_vjp       forward over reverse, along the point and the cotangent; reverse over forward; Hessians of a weighted sum of the
              results times vectors
jvp_jvp       forward over forward
vjp_vjp       reverse over reverse, in the point and the cotangent
vmap_hessian  Hessians of a weighted sum of the results
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .compare import Tolerance, difference
from .database import Call, MustRefuseError, NothingToCompareError, TorchFailsError, first_line
from .names import WRONG_IN_TORCH
from .references import Reference, lane, stable_value

Tensor = torch.Tensor
Tensors = list[Tensor]
LANES, INNER = 3, 2
LARGEST_HESSIAN = 64


@dataclass(frozen=True)
class Check:
    """One comparison. `expected` gives the value and what it comes from; `opinion` a second one, where there is one."""

    name: str
    expected: Callable[[], tuple[Any, str]]
    actual: Callable[[], Any]
    opinion: Callable[[], tuple[Any, str]] | None = None


def copies(tensors: Tensors) -> Tensors:
    """The tensors anew: some operators write into their arguments."""
    return [x.detach().clone() for x in tensors]


def columns(rows: list[Any]) -> Tensors:
    """Rows of tensors as stacked columns."""
    try:
        return [torch.stack(list(column)) for column in zip(*rows, strict=True)]
    except RuntimeError:
        raise NothingToCompareError("the result's size depends on the data") from None


def apart(x: Tensor) -> Tensor:
    """`x` with gaps in memory between its lanes: a lane then looks contiguous, and all of them together are not."""
    gaps = x.new_full(x.shape, math.nan if x.is_floating_point() or x.is_complex() else 0)
    return torch.stack([x, gaps], 1)[:, 0]


# -- batching ---------------------------------------------------------------------------------------------------------


def one_for_all(call: Call, which: str, rows: list[Tensors], shared: range = range(0)) -> None:
    """Raise where each lane writes another value into a tensor that all of them share: a loop has no answer then.

    `shared` are the places in a row of tensors that are not mapped.
    """
    written = []
    for row in rows:
        function, given = call.function(which), copies(row)
        before = [x.clone() for x in (*function.constants, *(given[k] for k in shared))]
        function(*given)
        after = (*function.constants, *(given[k] for k in shared))
        pairs = zip(before, after, strict=True)
        written.append([None if same(old, new) else new for old, new in pairs])
    for column in zip(*written, strict=True):
        if any(new is not None and (column[0] is None or not same(column[0], new)) for new in column):
            raise MustRefuseError("each lane would write another value into a tensor that all lanes share")


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, to the bit."""
    return a.shape == b.shape and difference(a, b, Tolerance(0.0, 0.0)) is None


class Lanes:
    """A call's arguments for some lanes, and the loop over them."""

    def __init__(self, call: Call, which: str, count: int, first_only: bool = False) -> None:
        if not call.places[which]:
            raise NothingToCompareError("no tensor argument" if which == "tensors" else "no floating-point argument")
        stable_value(call, which)
        self.call, self.which = call, which
        for flipped in (True, False):  # an operator may refuse the flipped one, as a Cholesky factor does
            base = call.at(which)
            self.rows = [
                [lane(x, k, flipped) if not first_only or j == 0 else x for j, x in enumerate(base)]
                for k in range(count)
            ]
            try:
                self.outs = [[o.detach() for o in call.function(which)(*copies(row))] for row in self.rows]
            except Exception as error:
                failure = error
            else:
                one_for_all(call, which, self.rows, range(1, len(base)) if first_only else range(0))
                return
        raise TorchFailsError(f"the loop: {first_line(failure)}")

    def stacked(self, dim: int = 0) -> Tensors:
        """The arguments of all lanes."""
        return [torch.stack(list(column), dim) for column in zip(*self.rows, strict=True)]

    def expected(self) -> Tensors:
        """The loop's results, stacked."""
        if not self.outs[0]:
            raise NothingToCompareError("no tensor comes out")
        return columns(self.outs)


def batching(call: Call, lib: Any) -> Iterator[Check]:
    """One level of lanes."""
    kept: dict[Any, Lanes] = {}

    def lanes(which: str, first_only: bool) -> Lanes:
        key = (which, first_only)
        if key not in kept:
            kept[key] = Lanes(call, which, LANES, first_only)
        return kept[key]

    def check(name: str, which: str, first_only: bool, dim: int) -> Check:
        def actual() -> Any:
            given = lanes(which, first_only).stacked(dim)
            if first_only:
                given = [apart(given[0]), *copies(call.at(which)[1:])]
            in_dims = (dim, *[None if first_only else dim] * (len(given) - 1))
            return lib.vmap(call.function(which), in_dims=in_dims, randomness="same")(*given)

        return Check(name, lambda: (lanes(which, first_only).expected(), "exact"), actual)

    integers = len(call.places["tensors"]) > len(call.places["numbers"])
    yield check("all", "numbers", False, 0)
    yield check("first", "numbers", True, 0)
    if not call.op.name.startswith("as_strided"):  # it reads how memory lies, which is another for a lane at the end
        yield check("last", "numbers", False, -1)
    if integers:
        yield check("integers too", "tensors", False, 0)


def batching_twice(call: Call, lib: Any) -> Iterator[Check]:
    """Two levels of lanes."""
    kept: list[Lanes] = []

    def lanes() -> Lanes:
        if not kept:
            kept.append(Lanes(call, "numbers", LANES * INNER))
        return kept[0]

    def expected() -> tuple[Any, str]:
        return [o.unflatten(0, (LANES, INNER)) for o in lanes().expected()], "exact"

    def actual() -> Any:
        given = [x.unflatten(0, (LANES, INNER)) for x in lanes().stacked()]
        inner = lib.vmap(call.function("numbers"), randomness="same")
        return lib.vmap(inner, randomness="same")(*given)

    yield Check("nested", expected, actual)


# -- derivatives ------------------------------------------------------------------------------------------------------


class Derivatives:
    """The checks of one sample that differentiate, for one library."""

    def __init__(self, reference: Reference, lib: Any) -> None:
        self.r, self.lib = reference, lib
        self.x, self.count = reference.primals, len(reference.primals)
        self.v, self.w, _ = reference.tangents
        self.u, self.du, _ = reference.cotangents
        self.points = [[lane(x, k) for x in self.x] for k in range(INNER)]

    # What is expected. `differences` asks for the second opinion.

    def push(self, x: Tensors, v: Tensors, differences: bool = False) -> tuple[Tensors, str]:
        """J v."""
        return self.best(lambda: self.r.push(x, v), lambda: self.r.push_differences(x, v), differences)

    def curve(self, x: Tensors, u: Tensors, v: Tensors, differences: bool = False) -> tuple[Tensors, str]:
        """The Hessian of ⟨u, f⟩ times v."""
        return self.best(lambda: self.r.curve(x, u, v), lambda: self.r.curve_differences(x, u, v), differences)

    def best(self, exact: Callable[[], Any], differences: Callable[[], Any], rough: bool) -> tuple[Any, str]:
        """Autograd's derivative of its own derivative where there is one, else differences."""
        if self.r.call.op.supports_gradgrad and not rough:
            try:
                return exact(), "exact"
            except Exception:  # torch has no double backward here, whatever it says
                pass
        return differences(), "differences"

    def bend(self, differences: bool = False) -> tuple[Tensors, str]:
        """D²f[v, w]."""
        ways = [(self.r.bend, "exact"), (self.r.bend_of_pushes, "differences")]
        for way, source in ways if self.r.call.op.supports_gradgrad and not differences else []:
            try:
                return way(self.x, self.v, self.w), source
            except Exception:  # torch has no double backward here, or none of that order
                pass
        return self.r.bend_differences(self.x, self.v, self.w), "second differences"

    # What the library gives.

    def jvp(self, x: Tensors, v: Tensors) -> Any:
        """Value and tangent."""
        return self.lib.jvp(self.r.function(), tuple(x), tuple(v))

    def vjp(self, x: Tensors, u: Tensors) -> tuple[Tensor, ...]:
        """Jᵀu."""
        return tuple(self.lib.vjp(self.r.function(), *x)[1](tuple(u)))

    def pullback(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Jᵀu as a function of x and u together."""
        return self.vjp(list(given[: self.count]), list(given[self.count :]))

    def scalar(self, *x: Tensor) -> Tensor:
        """⟨u, f(x)⟩."""
        outs = self.r.function()(*x)
        return sum((torch.real(u.conj() * o).sum() for u, o in zip(self.u, outs, strict=True)), x[0].new_zeros(()))

    def vmap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The library's, where the same numbers are drawn for each lane."""
        return self.lib.vmap(function, randomness="same")

    # The checks.

    def checks(self, transform: str) -> Iterator[Check]:
        """Those of one composition."""
        yield from getattr(self, "check_" + transform)()

    def check_jvp(self) -> Iterator[Check]:
        """Value and tangent."""

        def value(rough: bool = False) -> tuple[Any, str]:
            tangent, source = self.r.once(("push", rough), lambda: self.push(self.x, self.v, rough))
            return (self.r.outs, tangent), source

        yield Check("jvp", value, lambda: self.jvp(copies(self.x), self.v), lambda: value(True))

    def check_vjp(self) -> Iterator[Check]:
        """Value and cotangent."""

        def actual() -> Any:
            out, pull = self.lib.vjp(self.r.function(), *copies(self.x))
            return out, pull(tuple(self.u))

        def value(pull: Callable[..., Tensors] = self.r.pull) -> tuple[Any, str]:
            return (self.r.outs, pull(self.x, self.u)), "exact"

        yield Check("vjp", value, actual, lambda: value(self.r.pull_widely))

    def check_vmap_jvp(self) -> Iterator[Check]:
        """Directions, and points with directions."""

        def loop(points: list[Tensors], rough: bool = False) -> tuple[Any, str]:
            rows = [self.push(x, v, rough) for x, v in zip(points, self.r.tangents, strict=False)]
            return columns([r[0] for r in rows]), rows[-1][1]

        for name, points in (("directions", [self.x] * LANES), ("points", self.points)):
            seeds = columns(self.r.tangents[: len(points)])

            def actual(name: str = name, seeds: Tensors = seeds) -> Any:
                if name == "directions":
                    return self.vmap(lambda *v: self.jvp(copies(self.x), list(v))[1])(*seeds)
                apply = lambda *z: self.jvp(list(z[: self.count]), list(z[self.count :]))[1]
                return self.vmap(apply)(*map(apart, columns(self.points)), *seeds)

            yield Check(name, lambda p=points: loop(p), actual, lambda p=points: loop(p, True))

    def check_vmap_vjp(self) -> Iterator[Check]:
        """Cotangents, and points with cotangents."""

        def loop(points: list[Tensors], pull: Callable[..., Tensors] = self.r.pull) -> tuple[Any, str]:
            rows = [pull(x, u) for x, u in zip(points, self.r.cotangents, strict=False)]
            return columns(rows), "exact"

        def over_cotangents() -> Any:
            pull = self.lib.vjp(self.r.function(), *copies(self.x))[1]
            return self.vmap(lambda *u: tuple(pull(tuple(u))))(*columns(self.r.cotangents))

        def over_points() -> Any:
            given = [*columns(self.points), *columns(self.r.cotangents[:INNER])]
            return self.vmap(self.pullback)(*map(apart, given))

        for name, points, actual in (
            ("cotangents", [self.x] * LANES, over_cotangents),
            ("points", self.points, over_points),
        ):
            yield Check(name, lambda p=points: loop(p), actual, lambda p=points: loop(p, self.r.pull_widely))

    def check_jvp_vjp(self) -> Iterator[Check]:
        """d/dt Jᵀ(x + t v)(u + t du)."""

        def value(rough: bool = False) -> tuple[Any, str]:
            second, source = self.r.once(("curve", rough), lambda: self.curve(self.x, self.u, self.v, rough))
            return [a + b for a, b in zip(second, self.r.pull(self.x, self.du), strict=True)], source

        def actual() -> Any:
            return self.lib.jvp(self.pullback, (*copies(self.x), *self.u), (*self.v, *self.du))[1]

        # The other results have a tangent and no gradient: saved statistics.
        u = [w if c else torch.zeros_like(w) for w, c in zip(self.u, self.r.connected, strict=True)]

        def mixed(rough: bool = False) -> tuple[Any, str]:
            second, source = self.r.once(("curve", rough), lambda: self.curve(self.x, self.u, self.v, rough))
            return [*second, *self.r.pull(self.x, self.u)], source

        def push(*given: Tensor) -> Any:
            return self.jvp(list(given[: self.count]), list(given[self.count :]))[1]

        def reversed_() -> Any:
            return self.lib.vjp(push, *copies(self.x), *copies(self.v))[1](tuple(u))

        yield Check("jvp of vjp", value, actual, lambda: value(True))
        if self.r.call.op.name not in WRONG_IN_TORCH:
            yield Check("vjp of jvp", mixed, reversed_, lambda: mixed(True))
        if any(x.is_complex() for x in self.x):
            return

        def curve(rough: bool = False) -> tuple[Any, str]:
            return self.r.once(("curve", rough), lambda: self.curve(self.x, self.u, self.v, rough))

        def product() -> Any:
            gradient = self.lib.grad(self.scalar, argnums=tuple(range(self.count)))
            return self.lib.jvp(gradient, tuple(copies(self.x)), tuple(self.v))[1]

        yield Check("jvp of grad", curve, product, lambda: curve(True))

    def check_jvp_jvp(self) -> Iterator[Check]:
        """D²f[v, w]."""

        def actual() -> Any:
            inner = lambda *x: self.jvp(list(x), self.v)[1]
            return self.lib.jvp(inner, tuple(copies(self.x)), tuple(self.w))[1]

        yield Check("jvp of jvp", self.bend, actual, lambda: self.bend(True))

    def check_vjp_vjp(self) -> Iterator[Check]:
        """The gradient of ⟨Jᵀu, v⟩ in x and u."""

        def value(rough: bool = False) -> tuple[Any, str]:
            second, source = self.r.once(("curve", rough), lambda: self.curve(self.x, self.u, self.v, rough))
            first, other = self.r.once(("push", rough), lambda: self.push(self.x, self.v, rough))
            first = [t if c else torch.zeros_like(t) for t, c in zip(first, self.r.connected, strict=True)]
            return [*second, *first], source if other == "exact" else other

        def actual() -> Any:
            return self.lib.vjp(self.pullback, *copies(self.x), *copies(self.u))[1](tuple(self.v))

        yield Check("vjp of vjp", value, actual, lambda: value(True))

    def check_vmap_hessian(self) -> Iterator[Check]:
        """Σ⟨u, f⟩ in its first argument."""
        first, others = self.x[0], self.x[1:]
        if first.is_complex() or not 0 < first.numel() <= LARGEST_HESSIAN:
            raise NothingToCompareError(f"the first argument is complex, empty or over {LARGEST_HESSIAN} numbers")
        unit = torch.eye(first.numel(), dtype=first.dtype).reshape((-1, *first.shape))
        still = [torch.zeros_like(x) for x in others]
        points = [p[0] for p in self.points]

        def loop(rough: bool = False) -> tuple[Any, str]:
            made, source = [], "exact"
            for x in points:
                rows = [self.curve([x, *others], self.u, [e, *still], rough) for e in unit]
                source = rows[0][1]
                made.append(torch.stack([row[0][0] for row in rows]).reshape((*first.shape, *first.shape)))
            return torch.stack(made), source

        def actual() -> Any:
            hessian = self.lib.jacfwd(self.lib.jacrev(lambda x: self.scalar(x, *others)), randomness="same")
            return self.vmap(hessian)(torch.stack(points))

        yield Check("hessian", loop, actual, lambda: loop(True))


LANE_CHECKS = {"vmap": batching, "vmap_vmap": batching_twice}
