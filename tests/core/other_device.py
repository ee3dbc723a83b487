"""A device made of Python, whose backward passes the engine runs on a thread of its own, as it does for accelerators.

Run as a script: prints what differs from the CPU, and on which threads backward passes ran.
"""

import threading
import warnings

import torch
from torch.utils._pytree import tree_map

import pushforward as pf

MAIN = threading.get_ident()
ELSEWHERE = set()


class There(torch.Tensor):
    """A tensor on the other device: its numbers are on the CPU."""

    @staticmethod
    def __new__(cls, here):
        return torch.Tensor._make_wrapper_subclass(
            cls, here.shape, here.stride(), dtype=here.dtype, device="another:0", requires_grad=False
        )

    def __init__(self, here):
        self.here = here

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        args, kwargs = tree_map(here, (args, kwargs))
        return tree_map(lambda t: There(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))

    __torch_function__ = torch._C._disabled_torch_function_impl


def here(t):
    return t.here if isinstance(t, There) else t


def cubed(cut):
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            if threading.get_ident() != MAIN:
                ELSEWHERE.add("backward")
            (x,) = ctx.saved_tensors
            return cut(g) * 3 * x * x

    return Cubed


CUBED, CUT = cubed(lambda g: g), cubed(lambda g: g.detach())


class Squared(torch.autograd.Function):
    """Its backward calls another class."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * CUBED.apply(x) / (x * x)


def hooked(x):
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return (y * y).sum()


FUNCTIONS = {
    "operators": lambda x: (x.sin() * x).sum(),
    "a norm": lambda x: (torch.nn.functional.layer_norm(x, (3,)) ** 3).sum(),
    "backward": lambda x: CUBED.apply(x.sin()).sum(),
    "backward with detach": lambda x: CUT.apply(x.sin()).sum(),
    "backward that calls another": lambda x: Squared.apply(x.sin()).sum(),
    "hook": hooked,
}
WAYS = {
    "grad": lambda f, x, v: pf.grad(f)(x),
    "jvp": lambda f, x, v: pf.jvp(f, (x,), (v,))[1],
    "linearize": lambda f, x, v: pf.linearize(f, x)[1](v),
    "vmap(grad)": lambda f, x, v: pf.vmap(pf.grad(f))(torch.stack([x, v])),
    "vmap(vmap(grad))": lambda f, x, v: pf.vmap(pf.vmap(pf.grad(f)))(torch.stack([x, v])[None]),
    "jvp(grad)": lambda f, x, v: pf.jvp(pf.grad(f), (x,), (v,))[1],
    "grad(grad)": lambda f, x, v: pf.grad(lambda x: (pf.grad(f)(x) * v).sum())(x),
    "grad(jvp)": lambda f, x, v: pf.grad(lambda x: pf.jvp(f, (x,), (v,))[1])(x),
    "vmap(jvp(grad))": lambda f, x, v: pf.vmap(lambda x: pf.jvp(pf.grad(f), (x,), (v,))[1])(torch.stack([x, v])),
}


def main():
    torch.utils.backend_registration._setup_privateuseone_for_python_backend("another")
    warnings.simplefilter("ignore")
    x = torch.tensor([0.3, 0.7, -0.2], dtype=torch.float64)
    v = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    for name, f in FUNCTIONS.items():
        for way, derivative in WAYS.items():
            want = derivative(f, x.clone(), v.clone())
            try:
                got = here(derivative(f, There(x.clone()), There(v.clone())))
            except Exception as error:  # the name of what failed says more than a trace of the engine
                print(f"{way} of {name}: {error!r}")
                continue
            if not torch.allclose(got, want):
                print(f"{way} of {name}: {got.tolist()} instead of {want.tolist()}")
    print("elsewhere:", *ELSEWHERE)


if __name__ == "__main__":
    main()
