"""Backward passes on other threads: what the engine does for accelerators, shown by a device made of Python."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import pushforward as pf

SETUP = "_setup_privateuseone_for_python_backend"


@pytest.mark.skipif(not hasattr(torch.utils.backend_registration, SETUP), reason="this torch makes no devices in Python")
def test_derivatives_where_the_engine_runs_backward_passes_on_a_thread_of_its_own():
    script = Path(__file__).with_name("other_device.py")  # in a process of its own: a device cannot be taken back
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "elsewhere: backward\n", done.stdout + done.stderr


def test_a_class_in_the_backward_pass_of_another_keeps_its_tangent():
    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x

    class Fourth(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**4

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 4 * Cubed.apply(x)

    f = lambda x: Fourth.apply(x).sum()
    x, v = torch.tensor([0.3, -0.7], dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64)
    want = 12 * x**2 * v
    torch.testing.assert_close(pf.jvp(pf.grad(f), (x,), (v,))[1], want)
    torch.testing.assert_close(pf.vmap(lambda x: pf.jvp(pf.grad(f), (x,), (v,))[1])(x.expand(2, 2))[1], want)
    torch.testing.assert_close(pf.grad(lambda x: pf.grad(f)(x) @ v)(x), want)


def test_transforms_in_two_threads_do_not_meet():
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    found, errors = {}, []

    def work(k):
        try:
            for _ in range(20):
                out = pf.vmap(lambda x: pf.jvp(pf.grad(lambda y: (y.sin() * k).sum()), (x,), (x,))[1])(x[:, None])
            found[k] = out[:, 0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for k, out in found.items():
        torch.testing.assert_close(out, -k * x.sin() * x)
