"""Composable function transforms for PyTorch: batching, forward and reverse mode, Jacobians and Hessians."""

from . import forward_ad
from . import functions as _functions  # noqa: F401  (catches torch.autograd.Function.apply)
from .batch.vmap import vmap
from .core.errors import (
    ArgumentError,
    CapturedWriteError,
    DerivativeLost,
    DerivativeLostError,
    DivergenceError,
    EscapedValue,
    EscapedValueError,
    NotDifferentiableError,
    RandomnessError,
    SlowFallback,
    TransformError,
    TransformWarning,
)
from .forward.jvp import jvp, linearize
from .jacobian.dense import hessian, hvp, jacfwd, jacrev
from .modules import functional_call, stack_module_state
from .program.program import Program, source, trace
from .reverse import grad, grad_and_value, vjp

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "CapturedWriteError",
    "DerivativeLost",
    "DerivativeLostError",
    "DivergenceError",
    "EscapedValue",
    "EscapedValueError",
    "NotDifferentiableError",
    "Program",
    "RandomnessError",
    "SlowFallback",
    "TransformError",
    "TransformWarning",
    "forward_ad",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "source",
    "stack_module_state",
    "trace",
    "vjp",
    "vmap",
]
