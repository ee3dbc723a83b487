"""Composable function transforms for PyTorch: batching, forward and reverse mode, Jacobians and Hessians."""

from . import checkpoints as _checkpoints  # noqa: F401  (catches torch.utils.checkpoint)
from . import forward_ad, testing
from . import functions as _functions  # noqa: F401  (catches torch.autograd.Function.apply)
from .batch.ragged import Ragged, ragged
from .batch.report import report
from .batch.seeds import lane_generator
from .batch.vmap import vmap
from .check.check import check
from .check.nans import NanError, debug_nans
from .check.report import CheckReport, Finding, WrongDerivativeError
from .check.routes import RoutesReport, routes
from .core import branching as _branching  # noqa: F401  (catches torch.cond and its like)
from .core import constructors as _constructors  # noqa: F401  (catches torch.tensor)
from .core import lazy_modules as _lazy_modules  # noqa: F401  (modules that take their sizes from their first input)
from .core.errors import (
    ArgumentError,
    ArgumentWriteError,
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
from .core.opaque import opaque as _opaque
from .forward.jvp import jvp, linearize
from .jacobian.auto import hessian, jacobian, value_and_jacobian
from .jacobian.compress import to_scipy
from .jacobian.dense import hvp, jacfwd, jacrev
from .jacobian.jacobian_plan import JacobianPlan, PatternError
from .jacobian.memory import OutOfBudgetError
from .jacobian.planner import plan
from .modules import frozen_statistics, functional_call, stack_module_state
from .operators import OperatorCoverage, coverage
from .plans import replay as _replay  # noqa: F401  (repeats what calls did before)
from .plans.whole import no_replay
from .program.compiled import compile
from .program.program import Program, source, trace
from .reverse import grad, grad_and_value, vjp
from .sparsity.csr import Pattern
from .sparsity.detect import hessian_sparsity, jacobian_sparsity

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentWriteError",
    "CapturedWriteError",
    "CheckReport",
    "DerivativeLost",
    "DerivativeLostError",
    "DivergenceError",
    "EscapedValue",
    "EscapedValueError",
    "Finding",
    "JacobianPlan",
    "NanError",
    "NotDifferentiableError",
    "OperatorCoverage",
    "OutOfBudgetError",
    "Pattern",
    "PatternError",
    "Program",
    "Ragged",
    "RandomnessError",
    "RoutesReport",
    "SlowFallback",
    "TransformError",
    "TransformWarning",
    "WrongDerivativeError",
    "check",
    "compile",
    "coverage",
    "debug_nans",
    "forward_ad",
    "frozen_statistics",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "hessian_sparsity",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacobian_sparsity",
    "jacrev",
    "jvp",
    "lane_generator",
    "linearize",
    "no_replay",
    "plan",
    "ragged",
    "report",
    "routes",
    "source",
    "stack_module_state",
    "testing",
    "to_scipy",
    "trace",
    "value_and_jacobian",
    "vjp",
    "vmap",
]

# Under `torch.compile` each of these is a graph break; what runs inside is not traced.
for _name in __all__:
    if hasattr(globals()[_name], "__code__"):
        _opaque(globals()[_name])
