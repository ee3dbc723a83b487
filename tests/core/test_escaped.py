"""Values of a transform that are used after it has ended, or in another thread than its own."""

from __future__ import annotations

import concurrent.futures
import threading

import numpy as np
import pytest
import torch

import pushforward as pf

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
READINGS = {
    "numpy": lambda v: v.numpy(),
    "detach": lambda v: v.detach().numpy(),
    "asarray": np.asarray,
    "tolist": lambda v: v.tolist(),
    "array of rows": lambda v: np.stack([np.asarray(r) for r in v]),
    "item": lambda v: v.sum().item(),
    "number": lambda v: float(v.sum()),
    "iteration": lambda v: [r.tolist() for r in v],
    "operator": lambda v: (v + 1).tolist(),
}


def kept(transform):
    values = []

    def f(x):
        values.append(x * 2)
        return x

    transform(f)
    return values[0]


@pytest.mark.parametrize("name", READINGS)
def test_the_stack_of_the_lanes_stands_for_a_mapped_value(name):
    v = kept(lambda f: pf.vmap(f)(X))
    with pytest.warns(pf.EscapedValue, match="after its vmap had ended"):
        assert np.array_equal(READINGS[name](v), READINGS[name](X * 2))


@pytest.mark.parametrize("name", READINGS)
def test_a_dual_number_is_refused(name):
    v = kept(lambda f: pf.jvp(f, (X,), (X,)))
    with pytest.raises(pf.EscapedValueError, match="Return the value from the function"):
        READINGS[name](v)


def test_memory_is_not_shared():
    for transform in (lambda f: pf.vmap(f)(X), lambda f: pf.jvp(f, (X,), (X,))):
        with pytest.raises(pf.TransformError, match="share the memory"):
            transform(torch.from_dlpack)
        with pytest.raises(pf.TransformError, match="share the memory"):
            np.from_dlpack(kept(transform))
        transform(lambda x: x if x.is_pinned() is False else None)


USES = {
    **READINGS,
    "in place": lambda v: v.add_(1),
    "item set": lambda v: v.__setitem__(0, 1.0),
    "inner vmap": lambda v: pf.vmap(lambda y: y * v)(X),
    "inner grad": lambda v: pf.grad(lambda y: (y * v).sum())(X[0]),
    "answer": lambda v: bool(v[0] > 1),
}


@pytest.mark.parametrize("transform", ["vmap", "jvp", "vmap(jvp)"])
@pytest.mark.parametrize("name", USES)
def test_another_thread_cannot_use_a_value(name, transform):
    def f(x):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with pytest.raises(pf.TransformError, match="runs in another thread"):
                pool.submit(USES[name], x).result()
            plain = pool.submit(lambda: pf.vmap(pf.grad(lambda x: x.sin().sum()))(X)).result()
        assert torch.equal(plain, X.cos())
        return x * 2

    for _ in range(3):
        if transform == "vmap":
            assert torch.equal(pf.vmap(f)(X), X * 2)
        elif transform == "jvp":
            assert torch.equal(pf.jvp(f, (X[0],), (X[1],))[1], X[1] * 2)
        else:
            assert torch.equal(pf.vmap(lambda x: pf.jvp(f, (x,), (x,))[1])(X), X * 2)


def test_other_threads_use_a_value_of_reverse_mode_as_autograd_does():
    def f(x):
        found = []
        thread = threading.Thread(target=lambda: found.append((x * x).sum()))
        thread.start()
        thread.join()
        return found[0]

    assert torch.equal(pf.grad(f)(X), 2 * X)
