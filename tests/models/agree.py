"""What must hold of every model: each transform against a loop, autograd or central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pushforward as pf

H = 1e-6  # the step of the central differences


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over all positions; classes come last."""
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


@dataclass(frozen=True)
class Model:
    """A network, examples for it stacked at dim 0, and a loss.

    `single` says that the network takes one example; otherwise it takes a batch, and one example is a batch of one.
    `floats(net, inputs)` gives inputs of floating point to differentiate by, where the examples are tokens.
    `rounds` says that the network computes parts of itself in float32, whatever it is given: central differences are
    lost in rounding then, and the referee is reverse mode twice.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    target: Callable[[], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    floats: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda net, inputs: inputs
    single: bool = False
    rounds: bool = False

    @property
    def exact(self) -> dict[str, float]:
        """How near two ways to compute the same must be."""
        return {"rtol": 1e-4, "atol": 1e-6} if self.rounds else {"rtol": 1e-8, "atol": 1e-10}

    @property
    def near(self) -> dict[str, float]:
        """How near the referee must be."""
        return {"rtol": 1e-4, "atol": 1e-6} if self.rounds else {"rtol": 1e-5, "atol": 1e-7}

    def slope(self, f: Callable[[Any], Tensor], x: Any, direction: Any) -> Tensor:
        """The referee of forward mode: how `f` moves along a direction."""
        return reverse_twice(f, x, direction) if self.rounds else slope(f, x, direction)

    def curvature(self, f: Callable[[Any], Tensor], x: Any, direction: Any) -> Any:
        """The referee of Hessian-vector products."""
        if not self.rounds:
            return slope(lambda p: reverse(f, p), x, direction)
        leaves, grads = recorded_gradient(f, x)
        along = sum((g * direction[k]).sum() for k, g in grads.items())
        second = torch.autograd.grad(along, tuple(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, second, strict=True))

    def built(self, seed: int = 0) -> nn.Module:
        """The network in float64, in evaluation mode."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().double().eval()

    def examples(self) -> tuple[Tensor, ...]:
        """The inputs and, last, the target."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return (*self.inputs(), self.target())

    def example_loss(self, net: nn.Module) -> Callable[..., Tensor]:
        """The loss of one example as a function of the parameters."""

        def loss(params: dict[str, Tensor], *example: Tensor) -> Tensor:
            *inputs, target = example if self.single else [x[None] for x in example]
            out = pf.functional_call(net, params, tuple(inputs))
            return self.loss(out[None] if self.single else out, target[None] if self.single else target)

        return loss

    def batch_output(self, net: nn.Module) -> Callable[..., Tensor]:
        """The outputs of all examples as a function of the parameters and the inputs."""

        def output(params: dict[str, Tensor], *inputs: Tensor) -> Tensor:
            if self.single:
                return torch.stack([pf.functional_call(net, params, x) for x in zip(*inputs, strict=True)])
            return pf.functional_call(net, params, inputs)

        return output


def parameters(net: nn.Module) -> dict[str, Tensor]:
    """The parameters, detached; shared ones once."""
    return {name: p.detach() for name, p in net.named_parameters()}


def like(tree: Any, seed: int) -> Any:
    """A random direction."""
    g = torch.Generator().manual_seed(seed)
    if isinstance(tree, dict):
        return {k: torch.randn(v.shape, generator=g, dtype=torch.float64) for k, v in tree.items()}
    return torch.randn(tree.shape, generator=g, dtype=torch.float64)


def moved(tree: Any, direction: Any, step: float) -> Any:
    """A point a step away."""
    if isinstance(tree, dict):
        return {k: v + step * direction[k] for k, v in tree.items()}
    return tree + step * direction


def slope(f: Callable[[Any], Any], x: Any, direction: Any) -> Any:
    """The central difference of a function along a direction."""
    above, below = f(moved(x, direction, H)), f(moved(x, direction, -H))
    if isinstance(above, dict):
        return {k: (above[k] - below[k]) / (2 * H) for k in above}
    return (above - below) / (2 * H)


def reverse(f: Callable[[dict[str, Tensor]], Tensor], params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient by torch.autograd."""
    leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
    grads = torch.autograd.grad(f(leaves), tuple(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def recorded_gradient(f: Callable[[Any], Tensor], params: Any) -> tuple[Any, Any]:
    """Fresh leaves and the gradient by torch.autograd, which can be differentiated again."""
    leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        grads = torch.autograd.grad(f(leaves), tuple(leaves.values()), create_graph=True, materialize_grads=True)
    return leaves, dict(zip(leaves, grads, strict=True))


def reverse_twice(f: Callable[[Any], Tensor], x: Any, direction: Any) -> Tensor:
    """J v as the derivative of u ↦ ⟨Jᵀu, v⟩, which is linear."""
    tree, directions = (x, direction) if isinstance(x, dict) else ({"": x}, {"": direction})
    leaves = {k: v.detach().requires_grad_() for k, v in tree.items()}
    with sdpa_kernel(SDPBackend.MATH):
        out = f(leaves if isinstance(x, dict) else leaves[""])
        u = torch.zeros_like(out, requires_grad=True)
        pulled = torch.autograd.grad(out, tuple(leaves.values()), u, create_graph=True, materialize_grads=True)
    along = sum((g * d).sum() for g, d in zip(pulled, directions.values(), strict=True))
    return torch.autograd.grad(along, u)[0]


def assert_per_sample_gradients(model: Model) -> None:
    """`vmap(grad)` over the examples equals a loop over them."""
    net, examples = model.built(), model.examples()
    params, loss = parameters(net), model.example_loss(net)
    in_dims = (None, *[0] * len(examples))
    got = pf.vmap(pf.grad(loss), in_dims=in_dims)(params, *examples)
    alone = [reverse(lambda p, example=example: loss(p, *example), params) for example in zip(*examples, strict=True)]
    for name in params:
        stacked = torch.stack([g[name] for g in alone])
        torch.testing.assert_close(got[name], stacked, **model.exact, msg=lambda m: f"{name}: {m}")


def assert_jvp_in_parameters(model: Model) -> None:
    """Outputs move as central differences say, and the loss as the gradient says."""
    net = model.built()
    *inputs, target = model.examples()
    params, output = parameters(net), model.batch_output(net)
    direction = like(params, 2)
    value, tangent = pf.jvp(lambda p: output(p, *inputs), (params,), (direction,))
    torch.testing.assert_close(value, output(params, *inputs), **model.exact)
    torch.testing.assert_close(tangent, model.slope(lambda p: output(p, *inputs), params, direction), **model.near)

    def total(p: dict[str, Tensor]) -> Tensor:
        return model.loss(output(p, *inputs), target)

    _, change = pf.jvp(total, (params,), (direction,))
    gradient = reverse(total, params)
    torch.testing.assert_close(change, sum((gradient[k] * direction[k]).sum() for k in params), **model.exact)


def assert_jvp_in_input(model: Model) -> None:
    """The same, by the inputs of floating point."""
    net = model.built()
    params, output = parameters(net), model.batch_output(net)
    first, *others = model.floats(net, model.examples()[:-1])
    first = first.detach()
    direction = like(first, 3)
    _, tangent = pf.jvp(lambda x: output(params, x, *others), (first,), (direction,))
    expected = model.slope(lambda x: output(params, x, *others), first, direction)
    torch.testing.assert_close(tangent, expected, **model.near)
    assert tangent.abs().max() > 0


def assert_hessian_vector_product(model: Model) -> None:
    """`hvp` equals the central difference of gradients, and so does reverse mode over forward mode."""
    net = model.built()
    *inputs, target = model.examples()
    params, output = parameters(net), model.batch_output(net)
    direction = like(params, 4)

    def total(p: dict[str, Tensor]) -> Tensor:
        return model.loss(output(p, *inputs), target)

    gradient, product = pf.hvp(total, (params,), (direction,))
    expected_gradient = reverse(total, params)
    expected = model.curvature(total, params, direction)
    over_forward = pf.grad(lambda p: pf.jvp(total, (p,), (direction,))[1])(params)
    for name in params:
        torch.testing.assert_close(gradient[name], expected_gradient[name], **model.exact)
        torch.testing.assert_close(product[name], expected[name], **model.near, msg=lambda m: f"{name}: {m}")
        torch.testing.assert_close(over_forward[name], product[name], **model.exact, msg=lambda m: f"{name}: {m}")


def assert_ensemble(model: Model) -> None:
    """Three networks at once by `stack_module_state` and `vmap`: outputs, and the gradient of each."""
    nets = [model.built(seed) for seed in range(3)]
    *inputs, target = model.examples()
    params, buffers = pf.stack_module_state(nets)
    params = {k: v.detach() for k, v in params.items()}

    def output(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return model.batch_output(nets[0])(p | b, *inputs)

    got = pf.vmap(output)(params, buffers)
    expected = torch.stack([model.batch_output(net)({}, *inputs) for net in nets])
    torch.testing.assert_close(got, expected.detach(), **model.exact)
    grads = pf.vmap(pf.grad(lambda p, b: model.loss(output(p, b), target)))(params, buffers)
    for k, net in enumerate(nets):
        single = reverse(lambda p, net=net: model.loss(model.batch_output(net)(p, *inputs), target), parameters(net))
        for name, g in single.items():
            torch.testing.assert_close(grads[name][k], g, **model.exact, msg=lambda m: f"{name}: {m}")


CHECKS = (
    assert_per_sample_gradients,
    assert_jvp_in_parameters,
    assert_jvp_in_input,
    assert_hessian_vector_product,
    assert_ensemble,
)
