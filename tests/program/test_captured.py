"""What a compiled function captures is read at each call, or is a condition of the program."""

from __future__ import annotations

import functools

import pytest
import torch

import pushforward as pf

x = torch.tensor([0.5, -1.0, 2.0])
SCALE = 2.0
GLOBAL = torch.ones(3)
TABLE = {"weight": torch.ones(3), "power": 2}


def graph(function):
    return pf.compile(function, backend="graph")


def check(compiled, function, programs=None):
    torch.testing.assert_close(compiled(x), function(x))
    if programs is not None:
        assert len(compiled.programs) == programs


def test_a_closure():
    weight = torch.ones(3)

    def function(x):
        return (x * weight).sin()

    compiled = graph(function)
    check(compiled, function, 1)
    weight.mul_(3)
    check(compiled, function, 1)
    weight.data = torch.full((3,), 5.0)
    check(compiled, function, 1)
    weight = torch.full((3,), 7.0)  # rebound
    check(compiled, function, 1)
    weight = torch.full((3,), 7.0, dtype=torch.float64)
    check(compiled, function, 2)
    weight.data = torch.ones(1, dtype=torch.float64)
    check(compiled, function, 3)


def test_a_closure_below_transforms():
    weight = torch.ones(3)
    function = pf.grad(lambda x: (x.sin() * weight).sum())
    compiled = graph(function)
    for value in (1.0, 2.0, 3.0):
        weight = torch.full((3,), value)
        check(compiled, function, 1)


def test_a_number_in_a_closure_is_a_condition():
    scale = 2.0

    def function(x):
        return x * scale

    compiled = graph(function)
    check(compiled, function, 1)
    scale = 3.0
    check(compiled, function, 2)
    scale = 2.0
    check(compiled, function, 2)


def test_globals():
    def function(x):
        return x * GLOBAL * SCALE * TABLE["weight"] ** TABLE["power"]

    compiled = graph(function)
    check(compiled, function, 1)
    globals()["GLOBAL"] = torch.full((3,), 3.0)
    check(compiled, function, 1)
    globals()["SCALE"] = 4.0
    check(compiled, function, 2)
    TABLE["weight"] = torch.full((3,), 5.0)
    check(compiled, function, 2)
    TABLE["power"] = 3
    check(compiled, function, 3)


def helper(x):
    return x * GLOBAL


def test_globals_of_called_functions():
    def function(x):
        return helper(x).cos()

    compiled = graph(function)
    check(compiled, function)
    globals()["GLOBAL"] = torch.full((3,), 9.0)
    check(compiled, function)
    globals()["helper"] = lambda x: x - 1
    check(compiled, function)


class Model:
    def __init__(self):
        self.weight = torch.ones(3)
        self.gain = 2.0
        self.layers = [torch.ones(3), torch.full((3,), 2.0)]

    def __call__(self, x):
        return self.scaled(x) + sum(layer * x for layer in self.layers)

    def scaled(self, x):
        return x * self.weight * self.gain


CALLS = [lambda m: m, lambda m: m.__call__, lambda m: functools.partial(m), lambda m: lambda x: m(x)]


@pytest.mark.parametrize("call", CALLS)
def test_attributes_of_objects(call):
    model = Model()
    function = call(model)
    compiled = graph(function)
    check(compiled, function, 1)
    model.weight = torch.full((3,), 3.0)
    check(compiled, function, 1)
    model.layers[1] = torch.full((3,), 8.0)
    check(compiled, function, 1)
    model.gain = 5.0
    check(compiled, function, 2)
    model.layers.append(torch.ones(3))
    check(compiled, function, 3)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2)).eval()


def test_modules():
    model = network()

    def function(x):
        return pf.jacrev(model)(x)

    compiled = graph(function)
    with torch.no_grad():
        check(compiled, function, 1)
        for p in model.parameters():
            p.add_(0.1)
        check(compiled, function, 1)
        other = network()
        torch.nn.init.ones_(other[0].weight)
        model.load_state_dict(other.state_dict())
        check(compiled, function, 1)
        model[0].weight = torch.nn.Parameter(torch.full((4, 3), 0.3))
        check(compiled, function, 1)
        model[2].weight.data = torch.full((2, 4), 0.7)
        check(compiled, function, 1)
        model[2] = torch.nn.Linear(4, 5)
        check(compiled, function, 2)


def test_an_optimiser_step():
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(x):
        return model(x).square().sum()

    compiled = graph(loss)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), loss(x))
        optimiser.zero_grad()
        compiled(x).backward()
        ours = [p.grad.clone() for p in model.parameters()]
        optimiser.zero_grad()
        loss(x).backward()
        for a, p in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad)
        optimiser.step()
    assert len(compiled.programs) == 1


def test_training_mode_is_a_condition():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    X = torch.randn(5, 3)
    compiled = graph(model)
    with torch.no_grad():
        twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        twin.load_state_dict(model.state_dict())
        for _ in range(3):
            torch.testing.assert_close(compiled(X), twin(X))
            torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)  # buffers are written
        model.eval(), twin.eval()
        torch.testing.assert_close(compiled(X), twin(X))
        assert len(compiled.programs) == 2


def test_tied_weights_that_come_apart():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    compiled = graph(model)
    with torch.no_grad():
        check(compiled, model, 1)
        model[1].weight = torch.nn.Parameter(torch.ones(3, 3))
        check(compiled, model, 2)


def test_a_default_argument():
    def function(x, weight=torch.ones(3)):
        return x * weight

    compiled = graph(function)
    check(compiled, function, 1)
    function.__defaults__ = (torch.full((3,), 4.0),)
    check(compiled, function, 1)


def test_a_tensor_kept_nowhere_is_read_by_reference():
    hidden = torch.ones(3)
    kept = (lambda: (yield hidden))()
    next(kept)
    holder = Opaque(hidden)

    def function(x):
        return x * holder.get()

    compiled = graph(function)
    check(compiled, function, 1)
    hidden.mul_(4)
    check(compiled, function, 1)


class Opaque:
    __slots__ = ("_get",)

    def __init__(self, tensor):
        self._get = iter([tensor] * 100).__next__

    def get(self):
        return self._get()


def test_captured_tensors_are_named():
    weight = torch.ones(3)
    model = network()
    program = pf.trace(lambda x: model(x * weight))(x)
    expected = {"weight", "model.0.weight", "model.0.bias", "model.2.weight", "model.2.bias"}
    assert {i.path for i in program.captured} == expected
    assert [i.path for i in program.arguments] == ["args[0]"]
