"""`JacobianPlan`: a decision that can be run at other points, read, drawn, saved and loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core import tree
from ..core.errors import ArgumentError
from ..core.words import name_of
from ..sparsity.csr import Pattern
from ..sparsity.detect import Detected
from .basis import random_direction
from .colouring import Colouring
from .complex import check_columns, is_checked, of_dtype, refuse_where, turned
from .compress import Block, cut_blocks, gather_index
from .cost import Candidate, Measured
from .passes import Passes, one_hot
from .problem import Problem

Tensor = torch.Tensor


class PatternError(ArgumentError):
    """The sparsity pattern in use misses nonzeros of the Jacobian, so the entries found would be wrong.

    Failing:

    >>> import torch, pushforward as pf
    >>> f = lambda x: x * x.sum()
    >>> pf.jacobian(f, sparsity=torch.eye(3))(torch.ones(3))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.jacobian.jacobian_plan.PatternError: ...

    Fixed, by a pattern that holds every place that can be nonzero, or by `sparsity="global"`, which finds it.
    """


class JacobianPlan:
    """How a Jacobian is computed; call it with arguments like those it was made for.

    Attributes:
        n: input elements. m: output elements.
        mode: "forward", "reverse", "both" or "narrow".
        passes: passes of the mode(s).
        colours: the colours of the pattern in use, None without one.
        nnz: places of the pattern in use, None without one.
        chunk_size: passes at a time; None for all at once.
        predicted_bytes: the most bytes of tensors alive at once, above the inputs (worked out when first read).
        candidates: what was considered.
        reason: why this one.
        pattern: the sparsity pattern in use, or None.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        candidate: Candidate,
        cost: Measured,
        candidates: list[Candidate],
        detected: Detected | None,
        colouring: Colouring | None,
        sparse_result: bool,
        verify: bool,
        show_progress: bool,
        symmetric: bool,
        narrow: Any = None,
    ) -> None:
        self.problem, self.candidate, self.cost, self.candidates = problem, candidate, cost, candidates
        self.detected, self.colouring, self.sparse_result = detected, colouring, sparse_result
        self.verify, self.show_progress, self.symmetric, self.narrow = verify, show_progress, symmetric, narrow
        self.n, self.m = problem.n, problem.m
        self.outs_like = [(tuple(o.shape), o.dtype) for o in problem.outs]
        self.like = signature(problem.args, problem.kwargs)
        self.reason = ""
        self.title = ""  # what to call the function, where its own name says nothing
        self.budget = 0
        self._verified = False
        self._index: Tensor | None = None
        self._blocks: list[list[Block]] | None = None
        self._seeds: dict[str, list[Tensor]] = {}
        problem.forget_values()

    # -- what it says ---------------------------------------------------------------------------------------------

    @property
    def trusted(self) -> bool:
        """Whether one check is enough: the pattern was given, or found for every point."""
        return self.detected is None or self.detected.kind == "given" or self.detected.holds_elsewhere

    @property
    def mode(self) -> str:
        """The mode chosen."""
        return self.candidate.mode

    @property
    def passes(self) -> int:
        """How many passes."""
        return self.candidate.passes

    @property
    def pattern(self) -> Pattern | None:
        """The pattern in use."""
        return self.detected.pattern if self.detected is not None else None

    @property
    def colours(self) -> int | None:
        """The colours in use."""
        return self.colouring.passes if self.colouring is not None else None

    @property
    def nnz(self) -> int | None:
        """Places of the pattern in use."""
        return self.pattern.nnz if self.pattern is not None else None

    @property
    def chunk_size(self) -> int | None:
        """Passes at a time."""
        return self.candidate.chunk_size

    @property
    def predicted_bytes(self) -> int | None:
        """Predicted peak; None where the function cannot run on tensors without numbers."""
        if self.candidate.predicted_bytes is None:
            try:
                self.candidate.predicted_bytes = self.simulated(self.candidate.chunk_size)
            except Exception:  # the function branches on values
                return None
        return self.candidate.predicted_bytes

    def explain(self) -> None:
        """Print the table that led to the decision; `str(plan)` is the same text."""
        from .explain import explained

        explained(self)

    def __str__(self) -> str:
        from .explain import table

        return table(self)

    def plot(self, path: Any = None) -> Any:
        """Draw the pattern with its colours, and the memory by chunk (matplotlib is an extra)."""
        from .explain import plotted

        return plotted(self, path)

    def __repr__(self) -> str:
        sparse = f", {self.nnz} places, {self.colours} colours" if self.colouring is not None else ""
        return f"JacobianPlan({self.m} × {self.n}, {self.mode}, {self.passes} passes{sparse})"

    # -- running --------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The Jacobian at another point (with `has_aux`: and the aux)."""
        jacobian, _, aux = self.run(args, kwargs)
        return (jacobian, aux) if self.problem.has_aux else jacobian

    def value_and_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """The output and the Jacobian at another point (with `has_aux`: and the aux)."""
        jacobian, value, aux = self.run(args, kwargs)
        return (value, jacobian, aux) if self.problem.has_aux else (value, jacobian)

    def values(self, *args: Any, **kwargs: Any) -> Tensor:
        """The nnz values alone, in the order of `pattern` (row by row).

        Raises:
            ArgumentError: the plan uses no pattern.

        Example:
            >>> import torch, pushforward as pf
            >>> p = pf.plan(lambda x: x ** 2, torch.ones(3), sparsity="global")
            >>> p.values(torch.tensor([1.0, 2.0, 3.0]))
            tensor([2., 4., 6.])
        """
        if self.colouring is None:
            msg = "values: this plan uses no sparsity pattern; call the plan"
            raise ArgumentError(msg)
        check_alike(self, args, kwargs)
        old = self.problem
        problem = old.at(args, kwargs)
        wanted = self.verify and (not self._verified or not self.trusted)
        passes = Passes(problem)
        found = self.sparse(passes, check=wanted)
        passes.draws.end()
        self._verified = self._verified or wanted
        return found

    def compiled(self, *, backend: str = "auto") -> Any:
        """A function that does what the plan does, from a program recorded at the first call, as `pushforward.compile`.

        Column by column where a few more passes do not matter: forward programs compile to fewer, larger loops. The
        random product is checked when this is called, and not in the compiled function.

        Raises:
            ArgumentError: the plan uses no pattern (compile `jacfwd` or `jacrev` then).
        """
        from .compiling import compiled

        return compiled(self, backend)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, verify: bool | None = None) -> tuple[Any, Any, Any]:
        """Jacobian, value and aux."""
        check_alike(self, args, kwargs)
        old = self.problem
        problem = old.at(args, kwargs)
        wanted = self.verify and (not self._verified or not self.trusted) if verify is None else verify
        passes = Passes(problem, self.progress())
        if not self.m:  # integers, or nothing at all
            with passes.draws:
                passes.keep(*problem.of_inputs(*[x.detach() for x in problem.leaves]))
            blocks = cut_dense(problem, problem.leaves[0].new_zeros((0, self.n)))
        elif self.mode == "narrow":
            blocks = self.through_cut(passes, check=wanted)
            self._verified = self._verified or wanted
        elif self.colouring is None:
            blocks = self.dense(passes)
        else:
            blocks = self.as_blocks(problem, self.sparse(passes, check=wanted))
            self._verified = self._verified or wanted
        assert passes.values is not None
        passes.draws.end()
        return problem.assembled(blocks), problem.value(passes.values), passes.aux

    def progress(self) -> Any:
        """A display of the progress, for long chunked work."""
        if not self.show_progress:
            return None
        from .progress import display

        return display(self.passes)

    def dense(self, passes: Passes) -> list[list[Tensor]]:
        """Blocks from a pass for each input or each output."""
        problem, chunk = passes.problem, self.chunk_size
        leaves = problem.leaves
        if self.mode == "forward":
            matrix = passes.forward(lambda a, b: one_hot(None, leaves, a, b), self.n, chunk, turned=True)
        else:
            outs = self.outs_smooth()
            matrix = passes.reverse(lambda a, b: one_hot(None, outs, a, b), self.m, chunk)
        if is_checked(leaves):
            self.check_complex(passes, matrix)
        return cut_dense(problem, matrix)

    def check_complex(self, passes: Passes, matrix: Tensor) -> None:
        """Compare J (i v) with forward mode for one random real v, where inputs are complex.

        Raises:
            ArgumentError: they differ.
        """
        from ..forward.jvp import jvp

        problem = passes.problem
        direction = turned(problem.leaves)
        with passes.draws:
            moved = jvp(lambda *inputs: problem.of_inputs(*inputs)[0], tuple(problem.leaves), tuple(direction))[1]
        flat = torch.cat([t.reshape(-1) for t in moved if t.is_floating_point() or t.is_complex()])
        check_columns(problem.what, problem.func, problem.complex_path, matrix.T.detach(), direction, flat.detach())

    def through_cut(self, passes: Passes, *, check: bool) -> list[list[Tensor]]:
        """Blocks from the two parts of a function that narrows inside; `check` compares one random product."""
        problem = passes.problem
        outer, inner, outs = self.narrow.factors(problem, self.chunk_size)
        if check:
            self.check_factors(passes, outer.detach(), inner.detach())
        elif problem.has_aux:
            passes.keep(*problem.of_inputs(*problem.leaves))
        else:
            problem.is_tensor, problem.out_spec = self.problem.is_tensor, self.problem.out_spec
            passes.keep(outs, None)
        return cut_dense(problem, outer @ inner)

    def check_factors(self, passes: Passes, outer: Tensor, inner: Tensor) -> None:
        """Compare J₂ (J₁ v) with forward mode for one random v; the function's value is kept.

        Raises:
            PatternError: they differ.
        """
        from ..forward.jvp import jvp

        problem = passes.problem
        direction = random_direction(problem.leaves)
        with passes.draws:
            values, moved, aux = jvp(problem.of_inputs, tuple(problem.leaves), tuple(direction), has_aux=True)
        passes.keep(values, aux)
        smooth = [t for o, t in zip(values, moved, strict=True) if o.is_floating_point() or o.is_complex()]
        with torch.no_grad():
            wanted = torch.cat([t.detach().reshape(-1) for t in smooth])
            vector = torch.cat([d.reshape(-1) for d in direction]).to(outer.dtype)
            terms = outer @ (inner @ vector)
            scale = outer.abs() @ (inner.abs() @ vector.abs()) + wanted.abs()
            bad = (terms - wanted).abs() > scale * torch.finfo(outer.dtype).eps ** 0.5
        if bool(bad.any()):
            msg = (
                f"{problem.what}({name_of(problem.func)}): the traced program that was cut at its narrow place "
                "is not the function any more (a captured value changed, or a branch); make another plan"
            )
            raise PatternError(msg)

    def outs_smooth(self) -> list[Tensor]:
        """Zero-cost stand-ins for the outputs that have a derivative."""
        device = self.problem.leaves[0].device
        return [
            torch.zeros((), dtype=dtype, device=device).expand(shape)
            for shape, dtype in self.outs_like
            if dtype.is_floating_point or dtype.is_complex
        ]

    def sparse(self, passes: Passes, *, check: bool) -> Tensor:
        """The values of the places, from a pass for each colour."""
        problem, chunk, colouring, pattern = passes.problem, self.chunk_size, self.colouring, self.pattern
        assert colouring is not None
        assert pattern is not None
        device = problem.leaves[0].device
        self.prepare(device)
        parts = []
        probe = None
        if colouring.forward:
            columns = torch.from_numpy(colouring.columns).to(device)
            extra = 1 if check else 0
            direction = random_direction(problem.leaves) if check else []

            def seeds(a: int, b: int) -> list[Tensor]:
                if chunk is None and not check and "forward" in self._seeds:
                    return self._seeds["forward"]
                made = one_hot(columns, problem.leaves, a, min(b, colouring.forward))
                if b > colouring.forward:  # the random direction of the check rides along
                    return [torch.cat([s, d[None]]) for s, d in zip(made, direction, strict=True)]
                if chunk is None:
                    self._seeds["forward"] = made
                return made

            product = passes.forward(seeds, colouring.forward + extra, chunk, turned=False)
            if check:
                probe = torch.cat([d.reshape(-1) for d in direction]), product[-1]
                product = product[:-1]
            parts.append(product.reshape(-1))
        if colouring.reverse:
            rows = torch.from_numpy(colouring.rows).to(device)
            outs = self.outs_smooth()

            def cotangents(a: int, b: int) -> list[Tensor]:
                if chunk is None and "reverse" in self._seeds:
                    return self._seeds["reverse"]
                made = one_hot(rows, outs, a, b)
                if chunk is None:
                    self._seeds["reverse"] = made
                return made

            product = passes.reverse(cotangents, colouring.reverse, chunk)
            parts.append(product.reshape(-1))
        if not parts:  # nothing depends on anything
            passes.keep(*problem.of_inputs(*problem.leaves))
            values = torch.zeros(0, dtype=problem.leaves[0].dtype, device=device)
        else:
            assert self._index is not None
            values = (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, self._index)
        if check:
            self.check(passes, values, probe)
        return values

    def prepare(self, device: torch.device) -> None:
        """The gather index and the blocks, once."""
        if self._index is not None and self._index.device == device:
            return
        assert self.pattern is not None
        assert self.colouring is not None
        if self.symmetric and self.colouring.order == "star":
            from .symmetric import star_places

            colour, place = star_places(self.pattern, self.colouring.columns)
            index = colour * self.m + place
        else:
            index = gather_index(self.pattern, self.colouring)
        self._index = torch.from_numpy(index).to(device)
        heights = [
            int(np.prod(shape)) for shape, dtype in self.outs_like if dtype.is_floating_point or dtype.is_complex
        ]
        self._blocks = cut_blocks(self.pattern, heights, [x.numel() for x in self.problem.leaves], device)

    def as_blocks(self, problem: Problem, values: Tensor) -> list[list[Any]]:
        """The values cut into blocks, sparse or filled in."""
        assert self._blocks is not None
        rows, out = iter(self._blocks), []
        for o in problem.outs:
            if not (o.is_floating_point() or o.is_complex()):
                out.append([x.new_zeros((*o.shape, *x.shape)) for x in problem.leaves])
                continue
            line = [b.filled(values, values.dtype) for b in next(rows)]
            if not self.sparse_result:
                line = [b.to_dense().reshape((*o.shape, *x.shape)) for b, x in zip(line, problem.leaves, strict=True)]
            out.append(line)
        return out

    def check(self, passes: Passes, values: Tensor, probe: Any) -> None:
        """Compare J v with forward mode for one random v.

        Raises:
            PatternError: they differ in some rows.
        """
        problem, pattern = passes.problem, self.pattern
        assert pattern is not None
        if probe is None:
            from ..forward.jvp import jvp

            direction = random_direction(problem.leaves)
            with passes.draws:
                moved = jvp(lambda *inputs: problem.of_inputs(*inputs)[0], tuple(problem.leaves), tuple(direction))[1]
            flat = [t.reshape(-1) for t in moved if t.is_floating_point() or t.is_complex()]
            probe = torch.cat([d.reshape(-1) for d in direction]), torch.cat(flat)
        with torch.no_grad():
            vector, wanted = (t.detach() for t in probe)
            rows = torch.from_numpy(pattern.rows).to(values.device)
            terms = values.detach() * vector[torch.from_numpy(pattern.indices).to(values.device)]
            got = torch.zeros_like(wanted, dtype=torch.promote_types(wanted.dtype, terms.dtype)).index_add_(0, rows, terms)
            scale = torch.zeros_like(wanted).index_add_(0, rows, terms.abs().to(wanted.dtype)).abs() + wanted.abs()
            bad = (got - wanted).abs() > scale * torch.finfo(wanted.dtype).eps ** 0.5
            bad &= got.isfinite() & wanted.isfinite()
        if any(x.is_complex() for x in problem.leaves):
            refuse_where(bad, problem.what, problem.func, problem.complex_path)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            msg = (
                f"{problem.what}({name_of(problem.func)}): the sparsity pattern misses nonzeros in {int(bad.sum())} "
                f"of {self.m} rows, first in row {first}: a random product J v gives {got[first].item():.6g}, forward "
                f"mode {wanted[first].item():.6g}. "
                f"A pattern must hold every place that can be nonzero; sparsity='global' finds one."
            )
            raise PatternError(msg)

    # -- prediction -----------------------------------------------------------------------------------------------

    def simulated(self, chunk: int | None) -> int:
        """The peak bytes of a run with this chunk, on tensors without numbers."""
        from .simulate import simulated_peak

        return simulated_peak(self, chunk)

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, path: Any) -> None:
        """Keep the pattern, the colours and the choice in an `.npz` file; the function itself is not in it."""
        from .storing import save

        save(self, path)

    @staticmethod
    def load(path: Any, func: Any, *args: Any, argnums: Any = 0, has_aux: bool = False, **kwargs: Any) -> JacobianPlan:
        """A saved plan for a function and an example point; nothing is searched again.

        Raises:
            ArgumentError: the function has other sizes than the one the plan was made for.
        """
        from .storing import load

        return load(path, func, args, argnums, has_aux, kwargs)


def cut_dense(problem: Problem, matrix: Tensor) -> list[list[Tensor]]:
    """The matrix m × n as blocks by output and input leaf; zeros for outputs without a derivative."""
    smooth = [o for o in problem.outs if o.is_floating_point() or o.is_complex()]
    rows = iter(matrix.split([o.numel() for o in smooth]) if len(smooth) > 1 else [matrix])
    widths = [x.numel() for x in problem.leaves]
    out = []
    for o in problem.outs:
        if not (o.is_floating_point() or o.is_complex()):
            out.append([x.new_zeros((*o.shape, *x.shape)) for x in problem.leaves])
            continue
        row = next(rows)
        parts = row.split(widths, 1) if len(widths) > 1 else [row]
        out.append([of_dtype(p.reshape((*o.shape, *x.shape)), o, x) for p, x in zip(parts, problem.leaves, strict=True)])
    return out


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What must be equal to use a plan again: structure, shapes, dtypes, devices, plain values that are no floats."""
    leaves, spec = tree.flat((args, kwargs))
    return spec, tuple(
        (tuple(x.shape), x.dtype, str(x.device)) if isinstance(x, Tensor) else (float if isinstance(x, float) else x)
        for x in leaves
    )


def check_alike(plan: JacobianPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The arguments are like those the plan was made for.

    Raises:
        ArgumentError: other structure, shapes, dtypes, devices or plain values.
    """
    spec, values = signature(args, kwargs)
    old_spec, old = plan.like
    if spec != old_spec:
        msg = (
            f"plan of {name_of(plan.problem.func)}: the arguments have another structure than those it was made for: "
            f"{tree.words(spec)}, not {tree.words(old_spec)}"
        )
        raise ArgumentError(msg)
    for k, (new, before) in enumerate(zip(values, old, strict=True)):
        same = new == before if not isinstance(new, np.ndarray) else np.array_equal(new, before)
        if not same:
            path = (tree.paths(args, "args") + tree.paths(kwargs, "kwargs"))[k]
            msg = (
                f"plan of {name_of(plan.problem.func)}: {path} is {describe(new)}, but the plan was made for "
                f"{describe(before)}; make another plan for it"
            )
            raise ArgumentError(msg)


def describe(part: Any) -> str:
    """A leaf of a signature, for messages."""
    if isinstance(part, tuple):
        shape, dtype, device = part
        return f"a {dtype} tensor of shape {list(shape)} on {device}".replace("torch.", "")
    return repr(part)
