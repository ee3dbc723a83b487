"""Recording: a function, whatever transforms it is made of, as one flat graph of ATen operators.

The function runs once on fake tensors, so nothing is computed. Where Python needs a value (`if x > 0`, `.item()`),
the operators recorded so far are run on the real inputs, the answer is noted as a question with its answer, and
recording goes on along the path taken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.level import THREAD
from ..core.source import is_library_file
from ..core.torch_private import TorchDispatchMode
from .torch_private import (
    FakeTensorMode,
    current_backward_node,
    fake_with_dynamic_dims,
    get_proxy_mode,
    get_proxy_slot,
    last_node,
    make_fx,
    new_fake_mode,
    next_sequence_number,
    without_modes,
)

Tensor = torch.Tensor
aten = torch.ops.aten


@dataclass(frozen=True)
class Origin:
    """Where in the user's code an operator comes from, and whether it is part of a backward pass."""

    code: Any
    instruction: int
    line: int
    backward: bool = False


@dataclass
class Question:
    """A value that Python asked for while recording: the node that computes it, and the answer."""

    node: Any
    answer: Any
    where: Origin | None


@dataclass
class Recording:
    """A recorded graph, its questions, and the fake mode that its shapes live in."""

    module: torch.fx.GraphModule
    mode: FakeTensorMode
    inputs: list[Any]
    questions: list[Question] = field(default_factory=list)
    symbolic: bool = False


class TooManyQuestions(Exception):
    """The function asks for more values than a program keeps."""


def user_frame(start: Any) -> Any:
    """The innermost frame that is neither ours nor torch's."""
    frame = start
    while frame is not None:
        if not is_library_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


class Notes(TorchDispatchMode):
    """The lowest of the modes while recording: notes where operators come from, and answers questions."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.forward: dict[int, Origin] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self.recorder
        if func is aten._local_scalar_dense.default and recorder.knows(args[0]):
            return recorder.ask(args[0]).item()
        if func is aten.equal.default and any(recorder.knows(a) for a in args[:2]):
            if args[0].shape != args[1].shape:
                return False
            with self:
                same = (args[0] == args[1]).all()
            return bool(recorder.ask(same).item())
        graph = recorder.graph
        last = last_node(graph)
        out = func(*args, **kwargs)
        if last_node(graph) is not last:
            origin = self.origin()
            node = last_node(graph)
            while node is not last:
                node.meta["origin"] = origin
                node = node.prev
        return out

    def origin(self) -> Origin | None:
        """Where the operator now running comes from."""
        backward = current_backward_node()
        if backward is not None:
            return self.forward.get(backward._sequence_nr())
        frame = user_frame(sys._getframe(2))
        if frame is None:
            return None
        origin = Origin(frame.f_code, frame.f_lasti, frame.f_lineno)
        if torch.is_grad_enabled():
            number = next_sequence_number() - 1
            self.forward.setdefault(number, Origin(frame.f_code, frame.f_lasti, frame.f_lineno, backward=True))
        return origin


class Recorder:
    """One recording under way."""

    def __init__(self, real: Sequence[Any], *, answers: int) -> None:
        self.real = real
        self.answers = answers
        self.questions: list[Question] = []
        self.graph: Any = None
        self.tracer: Any = None
        self.values: dict[Any, Any] = {}
        self.captured: dict[int, Tensor] = {}

    def knows(self, x: Any) -> bool:
        """Whether a tensor is a value of this recording, or one the function has captured."""
        return isinstance(x, Tensor)

    def ask(self, x: Tensor) -> Tensor:
        """The real value of a recorded tensor: everything recorded so far is run, each operator once."""
        proxy = get_proxy_slot(x, self.tracer, None, lambda slot: slot)
        if proxy is None:
            node = self.tracer.create_arg(x)
            if not isinstance(node, torch.fx.Node):
                msg = "a tensor from outside the recording was read"
                raise TypeError(msg)
        elif proxy.constant is not None:
            return proxy.constant
        else:
            node = proxy.proxy.node
        if len(self.questions) >= self.answers:
            raise TooManyQuestions(str(self.answers))
        with without_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            self.catch_up()
            value = self.values[node].detach().clone()
        frame = user_frame(sys._getframe(1))
        where = None if frame is None else Origin(frame.f_code, frame.f_lasti, frame.f_lineno)
        self.questions.append(Question(node, value.tolist(), where))
        return value

    def catch_up(self) -> None:
        """Run the recorded operators that have not run yet."""
        inputs = iter(self.real)
        for node in self.graph.nodes:
            if node.op == "placeholder":
                given = next(inputs)
                if node not in self.values:
                    self.values[node] = given.detach().clone() if isinstance(given, Tensor) else given
            elif node in self.values:
                continue
            elif node.op == "get_attr":
                found = getattr(self.tracer.root, node.target)
                if id(found) not in self.captured:
                    self.captured[id(found)] = found.detach().clone()
                self.values[node] = self.captured[id(found)]
            elif node.op == "call_function":
                args = torch.fx.map_arg(node.args, self.values.__getitem__)
                kwargs = torch.fx.map_arg(node.kwargs, self.values.__getitem__)
                self.values[node] = node.target(*args, **kwargs)


def record(
    function: Callable[..., list[Tensor]],
    inputs: Sequence[Tensor],
    *,
    answers: int = 0,
    dynamic: Sequence[tuple[int, ...]] | None = None,
    decompositions: Any = None,
) -> Recording:
    """Run `function(*inputs)` once on fake tensors and return what it did.

    Args:
        function: takes tensors, returns a list of tensors.
        inputs: example inputs; read only where Python asks for a value.
        answers: how many values Python may ask for.
        dynamic: for each input the dimensions whose sizes become symbols; None for all static.
        decompositions: operators to take apart while recording.
    """
    symbolic = dynamic is not None
    mode = new_fake_mode(static=not symbolic)
    if symbolic:
        fakes = [
            fake_with_dynamic_dims(mode, x, d, f"input{k}")
            for k, (x, d) in enumerate(zip(inputs, dynamic, strict=True))
        ]
    else:
        fakes = [mode.from_tensor(x) for x in inputs]
    recorder = Recorder(inputs, answers=answers)

    def run(*xs: Tensor) -> list[Tensor]:
        proxy_mode: Any = get_proxy_mode()
        recorder.tracer = proxy_mode.tracer
        recorder.graph = proxy_mode.tracer.graph
        reader = THREAD.reader
        THREAD.reader = lambda x: recorder.ask(x).tolist()
        try:
            with Notes(recorder):
                return function(*xs)
        finally:
            THREAD.reader = reader

    kind = "symbolic" if symbolic else "fake"
    module = make_fx(run, tracing_mode=kind, decomposition_table=decompositions, _allow_non_fake_inputs=True)(*fakes)
    return Recording(module, mode, fakes, recorder.questions, symbolic)
