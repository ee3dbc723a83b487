"""Each private torch name that programs lean on still exists and still does what it is used for."""

from __future__ import annotations

import warnings

import pytest
import torch

from pushforward.program import torch_private

MOVED = "torch moved or changed what `program.torch_private.{}` needs: see the reason beside it"


@pytest.mark.parametrize("name", torch_private.__all__)
def test_name_exists(name):
    assert getattr(torch_private, name, None) is not None, MOVED.format(name)


def test_tensor_guards_see_every_difference():
    x = torch.ones(2, 3)
    guards = torch_private.tensor_guards([x])
    assert guards.check(torch.zeros(2, 3)), MOVED.format("tensor_guards")
    others = [
        torch.ones(3, 2),
        torch.ones(3, 2).t(),
        x.double(),
        torch.nn.Parameter(x),
        x.clone().requires_grad_(),
        x.to_sparse(),
        x.to("meta"),
        3,
        None,
    ]
    for other in others:
        assert not guards.check(other), (MOVED.format("tensor_guards"), other)
    open_rows = torch_private.tensor_guards([x], [[None, 3]], [[3, 1]])
    assert open_rows.check(torch.ones(7, 3))
    assert not open_rows.check(torch.ones(7, 4))


def test_the_state_guard_sees_modes():
    guard = torch_private.global_state_guard()
    assert guard.check()
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with context:
            assert not guard.check(), (MOVED.format("global_state_guard"), context)
    assert guard.check()


def test_backward_nodes_carry_the_number_of_their_forward_operator():
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            node = torch_private.current_backward_node()
            number = torch_private.next_sequence_number() - 1 if node is None else node._sequence_nr()
            seen.append((str(func), number))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3, requires_grad=True)
    with Mode():
        torch.autograd.grad(x.sin(), x, torch.ones(3))
    numbers = dict(seen)
    assert numbers["aten.sin.default"] == numbers["aten.cos.default"], MOVED.format("current_backward_node")


def test_the_last_node_of_a_graph():
    graph = torch.fx.Graph()
    graph.placeholder("x")
    assert torch_private.last_node(graph).name == "x"


def test_inductor_takes_a_flat_graph():
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = torch_private.new_fake_mode()
    fake = mode.from_tensor(torch.ones(3))
    module = make_fx(lambda x: (x.sin() + 1,), tracing_mode="fake")(fake)
    with warnings.catch_warnings(), torch_private.inductor_settings(mode, {}):
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor's own modules give some
        run = torch_private.inductor_compile(module, [fake])
    torch.testing.assert_close(run([torch.ones(3)])[0], torch.ones(3).sin() + 1)
