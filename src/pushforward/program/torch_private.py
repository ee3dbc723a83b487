"""Private torch names that programs lean on, each with the reason it is needed.

`tests/program/test_torch_private.py` fails with the name's reason when torch moves one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.utils._python_dispatch import _disable_current_modes as without_modes

from ..core.torch_private import mode_count

# A program is what `make_fx` records below every transform; fake tensors make recording free of computation.
_RECORDING = (FakeTensor, FakeTensorMode, make_fx, get_proxy_mode, get_proxy_slot)

# Operators of a backward pass are annotated with the line of the forward operator of the same sequence number.
current_backward_node = torch._C._current_autograd_node
next_sequence_number = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]


def new_fake_mode(*, static: bool = True) -> FakeTensorMode:
    """A fake mode that also takes the real tensors a function has captured."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=static)


def fake_with_dynamic_dims(mode: FakeTensorMode, x: torch.Tensor, dims: tuple[int, ...], name: str) -> torch.Tensor:
    """A fake tensor like `x` whose sizes along `dims` are symbols."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if k in dims else DimDynamic.STATIC for k in range(x.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(x, static_shapes=False, source=ConstantSource(name), symbolic_context=context)


def functional_tools() -> Any:
    """What takes writes out of a graph: torch's functional tensors (`FunctionalTensorMode`, `FunctionalTensor`)."""
    from torch._subclasses import functional_tensor

    return functional_tensor


def tensor_guards(tensors: list[torch.Tensor], sizes: Any = None, strides: Any = None) -> Any:
    """One compiled check of type, dtype, device, requires_grad, sizes and strides of all arguments."""
    from torch._C._dynamo import guards

    return guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)


def global_state_guard() -> Any:
    """One compiled check of grad mode, autocast, default dtype, threads and the like."""
    from torch._C._dynamo import guards

    return guards.GlobalStateGuard()


def size_check(mode: FakeTensorMode, fakes: list[Any]) -> Any:
    """What symbolic sizes were assumed to be while recording, as a function of `{"t0": tensor, …}`; or None."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    code = mode.shape_env.produce_guards_expression(fakes, ignore_static=True)  # type: ignore[union-attr]
    return eval(f"lambda L: {code}", dict(SYMPY_INTERP)) if code else None


def last_node(graph: torch.fx.Graph) -> torch.fx.Node:
    """The node that was added last (the public list has no end that is cheap to look at)."""
    return graph._root.prev


# Whether a functional tensor was written to: writes to inputs become copies at the end of a program.
was_written = torch._functionalize_has_data_mutation  # type: ignore[attr-defined]


@contextlib.contextmanager
def inductor_settings(mode: FakeTensorMode, options: dict[str, Any]) -> Iterator[None]:
    """What all steps of inductor read: its options (decompositions depend on some) and the fake mode."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.virtualized import V

    with tracing(TracingContext(mode)), config.patch(options), V.set_fake_mode(mode):
        yield


def inductor_compile(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """Compile a flat graph without writes; what comes back takes one list of inputs and empties it.

    The wrapper of the whole compiler (AOTAutograd) costs microseconds a call; the graph has no autograd in it, so that
    the inner compiler suffices.
    """
    from torch._inductor.compile_fx import compile_fx_inner

    compiled = compile_fx_inner(gm, inputs, is_inference=True)
    return getattr(compiled, "current_callable", None) or compiled


def realized(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Let inductor keep a value, where it would compute it again for every element of what it is broadcast to."""
    import torch._inductor.test_operators  # registers the operator; it has no public name

    with graph.inserting_after(node):
        kept = graph.call_function(torch.ops._inductor_test.realize.default, (node,))
    kept.meta = dict(node.meta)
    node.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not kept)


def inductor_decompositions() -> Any:
    """The decompositions that inductor expects to have been applied."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def joint_graph_passes(gm: torch.fx.GraphModule) -> None:
    """Inductor's own rewrites on the whole graph (patterns of attention, padding of products)."""
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes as passes

    passes(gm)


__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "current_backward_node",
    "fake_with_dynamic_dims",
    "functional_tools",
    "get_proxy_mode",
    "get_proxy_slot",
    "global_state_guard",
    "inductor_compile",
    "inductor_decompositions",
    "inductor_settings",
    "joint_graph_passes",
    "last_node",
    "make_fx",
    "mode_count",
    "new_fake_mode",
    "next_sequence_number",
    "realized",
    "size_check",
    "tensor_guards",
    "was_written",
    "without_modes",
]
