"""The ways through a function as a tree of lists of operators, with a question wherever two of them part.

Lanes that answer otherwise take along the values that are still needed and go on by themselves, so that nothing is done twice;
at the end the results of all ways are put together in lane order.

    def part(n, values):             # up to a question
        [a0] = values
        b1 = k1(a0, [n, 3])
        ...
        return b4, [a0, b1]          # what is asked, and what is needed after it
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ..core import tree
from ..core.opaque import made_opaque
from ..core.torch_private import BelowViews
from .call_program import VARIABLE, harmless, varying, wanted
from .record import Unrecorded
from .steps import ROOM, Step, given, line, sized
from .ways import Way, cut, same_value, with_shared_constants
from .write import agree, freed

Tensor = torch.Tensor
MOST_WAYS = 64
PAID, COST = 32, 4  # a call that goes an unknown way costs as much as so many that do not bring in


class NewWay(Exception):
    """Lanes go ways that are not known: these groups of them."""

    def __init__(self, groups: list[Tensor]) -> None:
        super().__init__()
        self.groups = groups


class Part:
    """What lanes do up to a question, or up to the end."""

    __slots__ = ("after", "lanes", "run", "takes", "way", "ways")

    def __init__(self, way: Way, ways: int) -> None:
        self.way = way  # one of those that lead here
        self.ways = ways  # how many there are
        self.run: Any = None
        self.takes: list[str] = []  # variables of what came before
        self.after: dict[bool, tuple[Part, list[Any]]] | None = (
            None  # by answer: what follows, and which values it takes
        )
        self.lanes = False  # whether each lane has an answer of its own


class Branching:
    """A call as a tree of parts; `doubts`: how often it must still give the numbers of a call; `credit`: see `missed`."""

    __slots__ = ("credit", "doubts", "folding", "lanes", "root", "used", "views", "ways")

    def __init__(self, ways: list[Way], lanes: tuple[int, int] | None, like: Branching | None = None) -> None:
        old = like.ways if like is not None else []
        known = {way.answers() for way in old}
        ways = with_shared_constants(old + [way for way in ways if way.answers() not in known])
        if len(ways) > MOST_WAYS:
            raise Unrecorded
        first = ways[0]
        if lanes is not None and not all(
            [w.spec == first.spec and w.many is first.many and same_outs(w, first) for w in ways]
        ):
            raise Unrecorded
        self.ways, self.lanes, self.doubts, self.used = ways, lanes, 2, False
        self.credit = PAID if like is None else like.credit
        self.views = any([way.shares for way in ways])
        self.folding = all(end is None or end in varying(way.steps) for way in ways for end in way.ends)
        root = like.root if like is not None and like.folding is self.folding else None
        self.root = grown(ways, 0, {}, self.folding, root, [f"a{k}" for k in range(first.inputs)])

    def __call__(self, leaves: list[Tensor]) -> Any:
        """The result for other tensors; `NewWay` where a question has an answer that it never had."""
        ends: list[Any] = []
        missing: list[Tensor] = []
        size = leaves[self.lanes[0]].shape[self.lanes[1]] if self.lanes is not None else 0
        with contextlib.nullcontext() if self.views else BelowViews():
            walk(self.root, size, leaves, None, ends, missing)
            if missing:
                raise NewWay(missing)
            part, _, made = ends[0]
            if len(ends) > 1:
                made = joined(ends, size)
        self.used = True
        if not self.doubts:
            self.credit = min(self.credit + 1, PAID)
        way = part.way
        if way.many is None:
            return made[0]
        return tuple(made) if way.many is tuple else tree.unflatten(made, way.spec)

    def lane_dims(self) -> list[int | None]:
        """For each result the dimension of its lanes, if it has any."""
        way = self.ways[0]
        return [out[0] if end and self.lanes else None for end, out in zip(way.ends, way.outs, strict=True)]

    def missed(self) -> bool:
        """Count a call that went a way that is not known; whether it happens too often."""
        self.credit -= COST
        return self.credit < 0


def same_outs(a: Way, b: Way) -> bool:
    """Whether two ways return the same kinds of tensors, and the same other values."""
    return all(
        [
            s == t if end is not None else other is None and same_value(s, t)
            for end, other, s, t in zip(a.ends, b.ends, a.outs, b.outs, strict=True)
        ]
    )


def walk(part: Part, n: int, values: list[Tensor], lanes: Any, ends: list[Any], missing: list[Tensor]) -> None:
    """Follow some lanes from a question on, `lanes` being their places in the call (None: all); those that get lost are missing."""
    while part.after is not None:
        asked, values = part.run(n, values)
        if part.lanes:
            yes = asked.nonzero().view(-1)
            answer = yes.numel() > 0
            if answer and yes.numel() < n:
                for answer, places in (True, yes), (False, asked.logical_not().nonzero().view(-1)):
                    theirs = places if lanes is None else lanes[places]
                    if answer not in part.after:
                        missing.append(theirs)
                        continue
                    following, takes = part.after[answer]
                    own = [values[k] if how is None else cut(values[k], how[0], how[1], places) for k, how in takes]
                    walk(following, places.numel(), own, theirs, ends, missing)
                return
        else:
            answer = asked.item()
        found = part.after.get(answer)
        if found is None:
            missing.append(torch.arange(n) if lanes is None else lanes)
            return
        part, takes = found
        values = [values[k] for k, _ in takes]
    ends.append((part, lanes, part.run(n, values)))


def joined(ends: list[Any], size: int) -> list[Any]:
    """The results of all ways, each with the part that it came from and its lanes, in lane order."""
    made = []
    way = ends[0][0].way
    for k, (end, out) in enumerate(zip(way.ends, way.outs, strict=True)):
        if end is None:
            made.append(out)
            continue
        d, sizes, dtype = out
        whole = torch.empty((size, *sizes), dtype=dtype)
        for _, lanes, results in ends:
            whole.index_copy_(0, lanes, results[k].movedim(d, 0) if d else results[k])
        made.append(whole.movedim(0, d) if d else whole)
    return made


def grown(
    ways: list[Way],
    start: int,
    known: dict[str, Tensor],
    folding: bool,
    old: Part | None,
    takes: list[str] | None = None,
) -> Part:
    """The tree of ways that have been the same up to a step; `known`: values of variables that depend on nothing.

    `old`: the tree as it was when some of the ways were not known yet; where no way was added it stays as it is.
    """
    if old is not None and old.ways == len(ways):
        return old
    first = ways[0]
    stop = start
    while stop < len(first.steps) and first.steps[stop].func is not None:
        stop += 1
    if not all([like(way, first, start, stop) for way in ways[1:]]):
        raise Unrecorded
    known = dict(known)
    for way in ways:
        known.update(way.constants)  # which have one name in all ways
    steps = first.steps[start:stop]
    if folding:
        steps = folded(steps, known)
    part = Part(first, len(ways))
    values = [None if end is not None else out for end, out in zip(first.ends, first.outs, strict=True)]
    space: dict[str, Any] = {}
    if stop == len(first.steps):
        if len(ways) > 1:
            raise Unrecorded
        needed = [end for end in first.ends if end is not None]
        space.update((f"e{k}", v) for k, v in enumerate(values) if first.ends[k] is None)
        result = f"[{', '.join(end or f'e{k}' for k, end in enumerate(first.ends))}]"
    else:
        question = first.steps[stop]
        part.lanes = question.kwargs["lanes"]
        after = {}
        for answer in (True, False):
            some = [way for way in ways if way.steps[stop].answer is answer]
            if some:
                before = old.after.get(answer) if old is not None and old.after is not None else None
                after[answer] = grown(some, stop + 1, known, folding, before[0] if before is not None else None)
        live = list(dict.fromkeys(name for following in after.values() for name in following.takes))
        needed = [*question.read(), *live]
        result = f"{question.args[0].name}, [{', '.join(live)}]"
        cuts = {name: lanes_in(first, name) if part.lanes else None for name in live}
        part.after = {
            answer: (following, [(live.index(name), cuts[name]) for name in following.takes])
            for answer, following in after.items()
        }
    steps = wanted(steps, needed)
    made = {name for step in steps for name in step.results()}
    read = [name for step in steps for name in step.read()] + needed
    used = [name for name in dict.fromkeys(read) if name not in made]
    part.takes = [name for name in used if name not in known] if takes is None else takes
    space.update((name, known[name]) for name in used if name in known)
    lines = [line(step, space, first.largest) for step in steps]
    body = "".join(f"    {text}\n" for text in freed(lines, " ".join([result, *space]), VARIABLE))
    text = f"def part(n, values):\n    [{', '.join(part.takes)}] = values\n{body}    return {result}\n"
    exec(text, space)
    part.run = made_opaque(space.pop("part"))
    part.run.text = text
    return part


def lanes_in(way: Way, name: str) -> Any:
    """How a value is cut down to some lanes, see `ways.lane_dim`."""
    how = way.dims.get(name)
    if how is False:
        raise Unrecorded
    return how


def like(way: Way, first: Way, start: int, stop: int) -> bool:
    """Whether two ways are the same from one step to another, and ask the same question there or end."""
    if (len(way.steps) <= stop) != (len(first.steps) <= stop):
        return False
    return all([same(s, t) for s, t in zip(way.steps[start : stop + 1], first.steps[start : stop + 1], strict=True)])


def same(s: Step, t: Step) -> bool:
    """Whether two steps are the same, up to the answer."""
    return s.func is t.func and s.made == t.made and agree(s.args, t.args) and agree(s.kwargs, t.kwargs)


def folded(steps: list[Step], known: dict[str, Tensor]) -> list[Step]:
    """The steps that depend on something; the results of others are computed now."""
    left = []
    for step in steps:
        fixed = all(name in known for name in step.read()) and not sized([step.args, list(step.kwargs.values())])
        if not fixed or not harmless(step):
            left.append(step)
            continue
        with torch.no_grad():
            out = step.func(*given(step.args, known), **{k: given(v, known) for k, v in step.kwargs.items()})
        values = out if isinstance(out, (tuple, list)) else (out,)
        if sum(x.nbytes for x in values if x is not None) > ROOM // 64:
            left.append(step)
            continue
        known.update((name, x) for name, x in zip(step.made, values, strict=True) if name)
    return left
