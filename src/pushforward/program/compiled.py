"""`compile`: a function whose transforms are gone after the first call.

Each call goes down a short list of entries, the last used one first; an entry is generated code that checks whether
its program fits and runs it. What no entry takes is recorded, simplified, compiled and added to the list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..core import tree
from ..core.errors import ArgumentError, SlowFallback
from ..core.level import THREAD
from ..core.opaque import opaque
from ..core.source import warn
from ..core.words import check_function
from .backends import check_backend, questions
from .capture import TooManyQuestions
from .differentiable import Flat
from .guards import MISS, guard
from .program import Program, build, label
from .torch_private import mode_count

Tensor = torch.Tensor
PATHS = 8  # programs for one kind of arguments whose Python code took different branches
PROGRAMS = 64  # programs of one function
ANSWERS = 32  # values that Python may ask for in one program


def compile(fn: Callable[..., Any], *, backend: str = "auto", dynamic: bool | None = None) -> Any:
    """A function that does what `fn` does, from a program recorded at the first call.

    Transforms inside and around `fn` are gone from the program. Tensors and module parameters that `fn` captures are
    inputs, read at each call: writes, `.data`, `load_state_dict`, optimiser steps and rebinding are seen. Python
    numbers in closures, in globals and among the attributes that the code names are conditions: when one changes, a
    new program is made. What no code of `fn` names (a number in a foreign object, a hook, an environment variable) is
    taken as it was.

    Args:
        fn: a function of tensors in any pytrees; other leaves are part of the program.
        backend: "inductor" (machine code; needs a C++ compiler), "graph" (the simplified operators, replayed), or
            "auto": the first that works.
        dynamic: True makes the first dimension of every tensor argument a symbol, so that one program serves all
            sizes; None does so for dimensions that are seen to change; False makes a program for each size.

    Returns:
        A function; `programs` lists its programs. Its results can be differentiated by autograd and by the transforms
        here.

    Example:
        >>> import torch, pushforward as pf
        >>> hvp = pf.compile(lambda x, v: pf.jvp(pf.grad(lambda x: (x ** 3).sum()), (x,), (v,))[1], backend="graph")
        >>> hvp(torch.tensor([1.0, 2.0]), torch.ones(2))
        tensor([ 6., 12.])
        >>> len(hvp.programs)
        1
    """
    check_backend(backend)
    check_function("compile", fn, "compile(f)(x)", "fn")
    if dynamic not in (None, True, False):
        msg = f"compile({label(fn)}): dynamic is {dynamic!r}; it must be True, False or None"
        raise ArgumentError(msg)
    cache = Cache(fn, backend, dynamic)
    entries, slow, miss = cache.entries, cache.slow, MISS

    @opaque
    def compiled(*args: Any, **kwargs: Any) -> Any:
        for entry in entries:
            out = entry(args, kwargs)
            if out is not miss:
                if entry is not entries[0]:
                    entries.remove(entry)
                    entries.insert(0, entry)
                return out
        return slow(args, kwargs)

    functools.update_wrapper(compiled, fn, updated=())
    compiled.programs = cache.programs  # type: ignore[attr-defined]
    compiled.cache = cache  # type: ignore[attr-defined]
    return compiled


class Cache:
    """The programs of one compiled function."""

    def __init__(self, fn: Callable[..., Any], backend: str, dynamic: bool | None) -> None:
        self.fn, self.backend, self.dynamic = fn, backend, dynamic
        self.entries: list[Callable[..., Any]] = []
        self.programs: list[Program] = []
        self.eager: set[Any] = set()  # kinds of arguments that are left to the function itself
        self.paths: dict[Any, int] = {}
        self.sizes: dict[Any, list[tuple[torch.Size, ...]]] = {}
        self.said: set[str] = set()

    def slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the entries did not take."""
        leaves, spec = tree.flat((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if (
            mode_count()
            or THREAD.reader is not None
            or any(type(x) not in (Tensor, torch.nn.Parameter) for x in tensors)
        ):
            return self.fn(*args, **kwargs)  # inside a transform, or inside another recording: it goes through
        if torch.compiler.is_compiling():
            return self.fn(*args, **kwargs)
        kind = (spec, tuple(kind_of(leaf) for leaf in leaves), state())
        key = (kind, tuple((x.shape, x.stride()) for x in tensors))
        if key in self.eager or kind in self.eager:
            return self.fn(*args, **kwargs)
        if len(self.programs) >= PROGRAMS:
            return self.give_up(key, f"{PROGRAMS} programs were made already", args, kwargs)
        if self.paths.get(key, 0) >= PATHS:
            return self.give_up(key, f"its Python code took {PATHS} different paths", args, kwargs)
        try:
            made = self.add(kind, tensors, args, kwargs)
        except TooManyQuestions:
            return self.give_up(key, f"its Python code asks for more than {ANSWERS} values", args, kwargs)
        except Exception as error:
            out = self.fn(*args, **kwargs)  # the function's own error, if it has one, is the one to see
            why = str(error).strip().splitlines() or [""]
            self.say(f"it could not be recorded ({type(error).__name__}: {why[0]})")
            self.eager.add(key)
            return out
        if made is None:
            return self.give_up(key, "it writes into tensors that require grad", args, kwargs)
        self.paths[key] = self.paths.get(key, 0) + 1
        self.entries.insert(0, made)
        out = made(args, kwargs)
        if out is MISS:  # the call itself changes what the program depends on (a counter, a flag)
            self.entries.remove(made)
            self.programs.pop()
            return self.give_up(key, "a call changes the Python values it depends on", args, kwargs)
        return out

    def add(self, kind: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a program for these arguments and make its entry."""
        open_dims = self.open_dims(kind, tensors)
        program = None
        if open_dims is not None:
            try:
                program = build(self.fn, args, kwargs, answers=ANSWERS, dynamic=open_dims)
            except TooManyQuestions:
                raise
            except Exception as error:
                self.say(f"its sizes could not be symbols ({type(error).__name__}): each size has a program of its own")
                self.dynamic = False
        if program is None:
            open_dims = None
            program = build(self.fn, args, kwargs, answers=ANSWERS)
        inputs = [*tensors, *[c.example for c in program.captured]]
        records = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if records and program.writes:
            return None
        flat = Flat(program, live_function(self.fn, args, kwargs), self.backend)
        run = flat if records else flat.run
        holds = (
            questions(program.graph, program.constants, [q.answer for q in program.questions])
            if program.questions
            else None
        )
        entry = guard(program, args, kwargs, open_dims, run, holds)
        self.programs.append(program)
        return entry

    def open_dims(self, kind: Any, tensors: list[Tensor]) -> list[tuple[int, ...]] | None:
        """The dimensions of each tensor whose sizes become symbols; None for all static."""
        shapes = tuple(x.shape for x in tensors)
        seen = self.sizes.setdefault(kind, [])
        known = list(seen)
        seen.append(shapes)
        if self.dynamic is False or not tensors:
            return None
        if self.dynamic:
            dims = [(0,) if x.dim() and x.shape[0] > 1 and x.is_contiguous() else () for x in tensors]
            return dims if any(dims) else None
        changed = [
            tuple(
                d
                for d in range(x.dim())
                if x.shape[d] > 1 and x.is_contiguous() and any(old[k][d] != x.shape[d] for old in known)
            )
            for k, x in enumerate(tensors)
        ]
        return changed if any(changed) else None

    def give_up(self, key: Any, why: str, args: Any, kwargs: Any) -> Any:
        """Leave a kind of call to the function itself, and say so once."""
        self.say(why)
        self.eager.add(key)
        return self.fn(*args, **kwargs)

    def say(self, why: str) -> None:
        """Warn once for each reason."""
        if why not in self.said:
            self.said.add(why)
            warn(f"compile({label(self.fn)}): {why}; it runs without being compiled", SlowFallback)


def kind_of(leaf: Any) -> Any:
    """What of an argument leaf makes programs different, sizes aside."""
    if isinstance(leaf, Tensor):
        return (type(leaf), leaf.dtype, leaf.device, leaf.requires_grad, leaf.dim())
    return (type(leaf), leaf if leaf.__hash__ is not None else id(leaf))


def state() -> tuple[Any, ...]:
    """The modes of torch that a program depends on."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
    )


def live_function(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., list[Tensor]]:
    """`fn` as a function of the tensors among its arguments, giving the tensors of its result."""
    leaves, spec = tree.flat((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def live(*xs: Tensor) -> list[Tensor]:
        full = list(fixed)
        for k, x in zip(places, xs, strict=True):
            full[k] = x
        a, kw = tree.unflatten(full, spec)
        return [o for o in tree.leaves(fn(*a, **kw)) if isinstance(o, Tensor)]

    return live
