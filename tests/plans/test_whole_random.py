"""Random functions that only compute, under every transform: replayed calls beside calls that run the function."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf
from pushforward.core import tree
from pushforward.plans import whole

D = torch.float64
PROGRAMS = 10

ONE = (
    "torch.sin({})", "{}.tanh()", "torch.exp({} * 0.1)", "torch.relu({})", "F.softplus({})", "({} ** 2)", "{}.abs()", "({} * C)",
    "torch.cumsum({}, 0)", "{}.flip(0)", "F.softmax({}, dim=-1)", "helper({})", "{}.clamp(-1, 1)", "F.gelu({})", "{}.roll(1, 0)",
    "{}.sort()[0]", "F.layer_norm({}, (4,))", "{}[INDEX]", "torch.gather({}, 0, INDEX)", "torch.stack([{}, T]).mean(0)",
    "torch.cat([{}, T])[1:5]", "(M @ {})", "torch.fft.irfft(torch.fft.rfft({}), n=4)", "torch.outer({}, T).diagonal()",
    "F.conv1d({}[None, None], T[None, None], padding=2)[0, 0, :4]", "torch.topk({}, 4)[0]", "F.normalize({}, dim=0)",
    "torch.einsum('i,i->i', {}, T)", "(torch.tensor([1.0, 2.0, 3.0, 4.0]) * {})",
    "({} * torch.tensor(NUMBER, dtype=torch.float64))", "torch.atan2({}, T)",
)  # fmt: skip
TWO = ("({} + {})", "({} * {})", "({} - {} * 0.5)", "torch.maximum({}, {})", "torch.hypot({}, {} + 3)", "torch.lerp({}, {}, 0.3)")
ENDS = (
    "{}.sum()", "{}.prod()", "torch.linalg.vector_norm({} + 2)", "{}.logsumexp(0)", "({} @ T)", "{}.max()", "{}.var()",
    "F.mse_loss({}, T)", "F.cross_entropy({}[None], torch.tensor([1]))", "{}.dot(T)",
)  # fmt: skip
TRANSFORMS: dict[str, Any] = {
    "vmap": lambda f, x, v: pf.vmap(f)(torch.stack([x, v, x * v])),
    "grad": lambda f, x, v: pf.grad(f)(x),
    "grad_and_value": lambda f, x, v: pf.grad_and_value(f)(x),
    "jvp": lambda f, x, v: pf.jvp(f, (x,), (v,)),
    "jacfwd": lambda f, x, v: pf.jacfwd(f)(x),
    "jacrev": lambda f, x, v: pf.jacrev(lambda y: y * f(y))(x),
    "hessian": lambda f, x, v: pf.hessian(f)(x),
    "hvp": lambda f, x, v: pf.hvp(f, (x,), (v,)),
    "vmap(grad)": lambda f, x, v: pf.vmap(pf.grad(f))(torch.stack([x, v])),
    "vmap(jvp)": lambda f, x, v: pf.vmap(lambda y: pf.jvp(f, (y,), (y * y,)))(torch.stack([x, v])),
}


def expression(draw: random.Random, depth: int, names: list[str]) -> str:
    """A value of four numbers."""
    if depth == 0:
        return draw.choice(names)
    if draw.random() < 0.6:
        one = draw.choice(ONE).replace("NUMBER", str(draw.randint(1, 9) / 4))
        return one.format(expression(draw, depth - 1, names))
    return draw.choice(TWO).format(expression(draw, depth - 1, names), expression(draw, depth - 1, names))


def program(draw: random.Random) -> str:
    """The source of a function of four numbers, with loops, lists and functions of its own."""
    lines, names = ["def f(x, scale=1.3):"], ["x"]
    for k in range(draw.randint(1, 3)):
        new, how = f"v{k}", draw.random()
        if how < 0.5:
            lines.append(f"    {new} = {expression(draw, 2, names)}")
        elif how < 0.7:
            lines.append(f"    {new} = {draw.choice(names)}")
            lines.append(f"    for i in range({draw.randint(1, 3)}):")
            lines.append(f"        {new} = {expression(draw, 1, [*names, new])} * scale")
        elif how < 0.85:
            lines.append(f"    {new} = torch.stack([{draw.choice(names)}[i] * i for i in range(4)])")
        else:
            lines.append(f"    g = lambda y: {expression(draw, 1, [*names, 'y'])}")
            lines.append(f"    {new} = g({draw.choice(names)}) + g(T)")
        names.append(new)
    lines.append(f"    return {draw.choice(ENDS).format(f'({names[-1]} * 0.3 + {draw.choice(names)})')}")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_functions(seed: int) -> None:
    draw, source = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=D, generator=source)

    text = program(draw)
    space = {"torch": torch, "F": F, "C": 1.7, "T": normal(4), "M": normal(4, 4), "helper": lambda y: y.sin() * 2}
    space["INDEX"] = torch.tensor([3, 0, 2, 1])
    exec(text, space)
    f = space["f"]
    for name, call in TRANSFORMS.items():
        for k in range(7):
            if k == 4:  # what it takes from outside changes
                space["C"], space["T"] = draw.random(), normal(4)
                space["M"].add_(0.1)
            if k == 5:
                space["INDEX"] = torch.tensor([0, 1, 1, 2])
            x, v = normal(4), normal(4)
            got = call(f, x, v)
            with pf.no_replay():
                expected = call(f, x, v)
            for p, q in zip(tree.leaves(got), tree.leaves(expected), strict=True):
                torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11, equal_nan=True, msg=lambda m: f"{name}\n{text}\n{m}")
    plans = whole.CALLS[id(f.__code__)][1]
    if "fft" in text:
        return  # complex numbers are not replayed
    assert plans
    assert any(type(p) is whole.Replayed and not p.doubts for p in plans.values()), text
