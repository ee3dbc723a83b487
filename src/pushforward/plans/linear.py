"""The derivative that `linearize` returns, as a list of operators: recorded in one walk over its graph, replayed from then on.

The graph is that of the reverse pass, differentiated by its seeds (twice transposed, so forward again). Walking it computes
again in every call what does not depend on the direction, and more: torch's formula for a convolution gives gradients that
nobody asked for. A recording shows which operators lead from the directions to the outputs. What they need besides is
computed once and kept, if it is little; all else is left out.

    def push(directions):
        [a0] = directions
        directions.clear()       # who calls holds them no longer than they are needed
        b2 = k4(a0, k5)          # a0 · cos(x)
        del a0
        return [b2]

Nothing is recorded where Python code of the user's has a say in the walk (hooks, functions with a backward of their own, checkpoints),
and nothing is believed that does not give twice the numbers for twice the direction, to the last bit.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..core import carry
from ..core.level import THREAD
from ..core.opaque import made_opaque
from ..core.torch_private import (
    autocast_on,
    foreign_transforms,
    function_mode_on,
    library_folder,
    mode_count,
    pop_mode,
    push_mode,
)
from ..forward import jvp
from . import steps
from .record import Unrecorded
from .steps import Recording, folded, line, needed
from .write import freed

Tensor = torch.Tensor
WORTH = 1 << 14  # numbers in a value from which the first walk is recorded: it takes longer than the recording
MOST = 4  # recordings of one function, by layouts of directions
VARIABLE = re.compile(r"\b[ab]\d+\b")
OWN_CODE = (__file__, steps.__file__, carry.__file__, library_folder)  # what runs in a walk without the user's doing


class Pushes:
    """The walks over one graph: the gradients of `outputs`, by `seeds`, along directions."""

    def __init__(self, outputs: tuple[Tensor, ...], seeds: tuple[Tensor, ...]) -> None:
        self.outputs, self.seeds = outputs, seeds
        self.programs: dict[Any, Any] = {}  # by layouts of directions; True: met once; False: not to be recorded

    def __call__(self, directions: list[Tensor]) -> Any:
        """The outputs' tangents by a recording, or None: the engine has to walk."""
        if THREAD.levels or mode_count() or function_mode_on() or autocast_on() or foreign_transforms():
            return None
        key = layouts(directions)
        program = self.programs.get(key, None) if key is not None else False
        if program is False:
            return None
        if program is None:
            if len(self.programs) >= MOST:
                return None
            self.programs[key] = True
            if not large(self.outputs):
                return None
            return self.recorded(key, directions, at_once=False)
        if program is True:
            return self.recorded(key, directions, at_once=True)
        if any([x._version != version for x, version in program.versions]):
            return None  # the engine says what is wrong
        if type(program) is Doubted:
            return self.believed(key, program, directions)
        return program(directions)

    def recorded(self, key: Any, directions: list[Tensor], *, at_once: bool) -> Any:
        """One walk, with the recording on; its program is kept if it is right, which the next call may find out."""
        if not all([bool(d.any()) for d in directions]):
            return None  # of zeros nothing can be learnt
        self.programs[key] = False
        if sys.getprofile() is not None or torch.is_anomaly_enabled():
            return None
        given, directions = directions, [d.view_as(d) for d in directions]  # what the graph has saved too is a constant
        recording = Recording(tuple(directions))
        moved = walk(self.outputs, self.seeds, directions, recording)
        if not recording.good:
            return moved
        try:
            ends = [None if m is None else recording.of(m) for m in moved]
            if not at_once and len(moved) == 1 and is_large(moved[0]):
                self.programs[key] = Doubted(recording, ends, given, fingerprint(moved[0]))
                return moved
            program = written(recording, ends)
            doubled = program([d + d for d in directions])
        except (Unrecorded, RuntimeError, IndexError):
            return moved
        with torch.no_grad():
            right = all(
                p is q
                if p is None or q is None
                else p.stride() == q.stride() and p.dtype is q.dtype and torch.equal(p, q + q)
                for p, q in zip(doubled, moved, strict=True)
            )
        if right:
            self.programs[key] = program
        return moved

    def believed(self, key: Any, doubted: Doubted, directions: list[Tensor]) -> Any:
        """The second call on large tensors: the program is tried on the first one's direction, then used."""
        if any([d._version != version for d, version in doubted.given]):
            return self.recorded(key, directions, at_once=True)
        self.programs[key] = False
        with torch.no_grad():
            try:
                program = written(doubted.recording, doubted.ends)
                (twice,) = program([d + d for d, _ in doubted.given])
            except (Unrecorded, RuntimeError, IndexError):
                return None
            if twice is None or fingerprint(twice.mul_(0.5)) != doubted.known:
                return None
            del twice
        self.programs[key] = program
        return program(directions)


class Doubted:
    """A recording of a walk over large tensors, of which the result is known by its fingerprint only: no two are in memory at once."""

    __slots__ = ("ends", "given", "known", "recording", "versions")

    def __init__(self, recording: Recording, ends: list[Any], given: list[Tensor], known: Any) -> None:
        self.recording, self.ends, self.known, self.versions = recording, ends, known, recording.versions
        self.given = [(d, d._version) for d in given]


def is_large(x: Any) -> bool:
    """Whether a result is large, and its numbers lie one after another."""
    return x is not None and x.numel() >= WORTH and x.is_contiguous()


def fingerprint(x: Tensor) -> tuple[Any, ...]:
    """The layout of a tensor and three sums over its numbers, for which no other tensor is made."""
    flat = x.detach().view(-1)
    return x.shape, x.stride(), x.dtype, *[s.item() for s in (flat.sum(), flat[::3].sum(), torch.dot(flat, flat))]


def large(outputs: Any) -> bool:
    """Whether a value of a graph has many numbers."""
    stack = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen = {None, *stack}
    while stack:
        node = stack.pop()
        if any(math.prod(value.shape) >= WORTH for value in node._input_metadata):
            return True
        for source, _ in node.next_functions:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return False


def layouts(directions: list[Tensor]) -> Any:
    """What a program depends on; None of what none is made for."""
    key: list[Any] = []
    for d in directions:
        if (
            type(d) is not Tensor
            or d.device.type != "cpu"
            or d.requires_grad
            or d.layout is not torch.strided
            or d.is_neg()
        ):
            return None
        key += (d.shape, d.stride(), d.dtype)
    return None if len({id(d) for d in directions}) < len(directions) else (*key, torch.is_inference_mode_enabled())


def walk(outputs: Any, seeds: Any, directions: list[Tensor], recording: Recording) -> Any:
    """A walk of the engine under a recording; not good if Python code other than the recording's ran in it."""

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and not recording.inside and not frame.f_code.co_filename.startswith(OWN_CODE):
            recording.good = False

    push_mode(recording)
    sys.setprofile(watch)
    try:
        return carry.run_backward(outputs, tuple(directions), True, False, seeds, True, accumulate_grad=False)
    finally:
        sys.setprofile(None)
        pop_mode(None)


def written(recording: Recording, ends: list[Any]) -> Callable[[list[Tensor]], list[Tensor | None]]:
    """The function of the directions that a recording stands for."""
    steps = recording.steps
    if any(end is not None and end in recording.constants for end in ends):
        raise Unrecorded
    space: dict[str, Any] = dict(recording.constants)
    if not recording.in_place:
        with torch.no_grad():
            steps = folded(needed(steps, ends), space)
    lines = [line(step, space, recording.largest) for step in steps]  # what is kept stays in `space`, and is not let go
    result = f"[{', '.join(map(str, ends))}]"
    taken = ", ".join(f"a{k}" for k in range(recording.count))
    body = "".join(f"    {text}\n" for text in freed(lines, " ".join([result, *space]), VARIABLE))
    text = f"def push(directions):\n    [{taken}] = directions\n    directions.clear()\n{body}    return {result}\n"
    exec(text, space)
    push = made_opaque(space.pop("push"))  # or its own namespace would keep it, and its tensors, until cycles are collected
    push.versions, push.text = recording.versions, text
    return push


jvp.PUSHES = Pushes
