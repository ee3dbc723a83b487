"""What a first call loads: the compiler takes seconds to import, and nothing needs it that compiles nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CALLS = {
    "transforms": (
        "x = torch.randn(3, 4); f = lambda x: (x.roll(1, 0) * 2).sin().sum()\n"
        "pf.vmap(f)(x); pf.jvp(f, (x,), (x,)); pf.grad(f)(x); pf.vmap(pf.grad(f))(x); pf.jacfwd(f)(x); pf.hessian(f)(x)"
    ),
    "sparse Jacobian": "pf.plan(lambda x: x.roll(1) * x ** 3, torch.randn(40), sparsity='global')(torch.randn(40))",
    "check": "assert pf.check(lambda x: x.roll(1) * x ** 3, (torch.randn(4),)).ok",
    "nans": "with pf.debug_nans(): pf.grad(lambda x: x.sin().sum())(torch.randn(3))",
}


@pytest.mark.parametrize("name", CALLS)
def test_first_calls_do_not_import_the_compiler(name):
    code = f"import sys, torch\nimport pushforward as pf\n{CALLS[name]}\nassert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
