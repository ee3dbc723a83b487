"""Every private torch name the library leans on, each with the reason it is needed.

`tests/core/test_torch_private.py` fails with the name's reason when torch moves one of them.
"""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedTensorMixin
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

_C = torch._C

# A level is a dispatch mode that is entered for every call: pushing it directly skips a microsecond of bookkeeping.
push_mode = _C._push_on_torch_dispatch_stack
pop_mode = _C._pop_torch_dispatch_stack
mode_count = _C._len_torch_dispatch_stack
mode_at = _C._get_dispatch_stack_at

# A generator's state is no value of a level.
no_modes = torch.utils._python_dispatch._disable_current_modes

# Programs are also recorded above autograd, by modes on a stack of their own.
modes_above_autograd = torch._ops._len_torch_dispatch_stack_pre_dispatch


def top_mode() -> TorchDispatchMode | None:
    """The mode that an operator called now reaches first."""
    n = mode_count()
    return _C._get_dispatch_stack_at(n - 1) if n else None


def fake_tensor_mode() -> Any:
    """Tensors without numbers, to predict memory by; imported when asked for, because it takes seconds."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


# Operators on plain payloads need not pass the level that asked for them (the fast path): from the object's making to its end.
NoDispatch = _C._DisableTorchDispatch

# Inside a handler a traced value's attributes are read many times: without this each read calls Python.
NoFunction = _C.DisableTorchFunctionSubclass

# Whether the Python API hands calls over to traced values and to function modes: a method of theirs must do the same.
functions_on = _C._is_torch_function_enabled
function_mode_on = _C._is_torch_function_mode_enabled

# The API's own behaviour, for subclasses that are nothing but a mark.
no_function = _C._disabled_torch_function_impl

# The opposite, for the body of a function of torch.nn.functional whose calls are to be seen one by one.
EnableFunction = _C._EnableTorchFunction

# A function that is run again by the engine must find the function modes of its first run.
function_modes = _get_current_function_mode_stack

# Inside a handler autograd's keys are off; a payload that requires grad must be recorded all the same.
ForceKeys = _C._ForceDispatchKeyGuard
included_keys = _C._dispatch_tls_local_include_set
excluded_keys = _C._dispatch_tls_local_exclude_set

# Tells the user's `no_grad` from the engine's own: inside a backward pass the id is not -1.
graph_task_id = _C._current_graph_task_id

# Objects that the engine takes along to its threads for other devices; what stays when a thread ends would lock it.
keep_carried = _C._stash_obj_in_tls
named_carried = _C._get_obj_in_tls
is_carried = _C._is_key_in_tls
forget_carried = _C._remove_obj_from_tls

# What `torch.autograd.grad` and `backward` call: taken by name, to switch the user's Python API on around it.
run_user_backward = torch.autograd.graph._engine_run_backward

# Hooks that pack saved tensors see what is computed on the way: it must then be computed as it always is, and once.
saved_hooks = _C._autograd._top_saved_tensors_default_hooks

# The types of the graph's nodes, each named after an operator and the number of its formula.
node_types = vars(_C._functions)

# Counts the nodes that this thread has made.
nodes_made = _C._autograd._get_sequence_nr

# While TorchScript traces, no number may be looked at.
jit_tracing = _C._get_tracing_state

# Names the node whose backward is running, for the errors of `debug_nans`.
current_node = _C._current_autograd_node

# A dispatch handler runs with the keys above Python excluded, also those that resolve lazy conjugation: `x.conj() * y` would be x y.
CONJUGATE_KEY = _C.DispatchKey.Conjugate
NEGATIVE_KEY = _C.DispatchKey.Negative
ZERO_KEY = (
    _C.DispatchKey.ZeroTensor
)  # and zeros without memory, which torch's formulas make: computing with them would crash
set_key_excluded = _C._dispatch_tls_set_dispatch_key_excluded

# Lazy conjugation and negation are views: payload and wrapper must agree on their bits.
# Reading the numbers of a payload, or changing a wrapper's strides, is nothing for autograd to know of.
BelowAutograd = _C._AutoDispatchBelowAutograd
# What is replayed on plain tensors gives no views that autograd knows of, as an interpreter's results are none.
BelowViews = _C._AutoDispatchBelowADInplaceOrView

# Modules initialise themselves in `_infer_parameters`, a hook before their first call, and `materialize` gives a parameter its memory.
Uninitialized = UninitializedTensorMixin

# Makes the text of a tensor, for `repr` and f-strings, with all modes off: a function in which it runs has read numbers.
tensor_text = torch._tensor_str

set_conj = _C._set_conj
set_neg = _C._set_neg

# Says that an operator is torch's own composition of others: where autograd's keys are off it arrives whole.
COMPOSITE = _C.DispatchKey.CompositeImplicitAutograd

# Functions of the Python API that come to one operator parse their arguments faster than the operator called by its schema.
api_functions = _C._VariableFunctions

# Functions of the Python API that are operators and nothing else: a function that calls only these only computes.
operator_spaces = (_C._VariableFunctions, _C._nn, _C._linalg, _C._special, _C._fft)

# Values of torch.func's transforms, and torch's own dual numbers, look like plain tensors: nothing is replayed on them.
torch_func_levels = _C._functorch.peek_interpreter_stack
own_duals = torch.autograd.forward_ad


def foreign_transforms() -> bool:
    """Whether a transform of torch's own is running."""
    return torch_func_levels() is not None or own_duals._current_level >= 0


# `torch.autograd.grad` spends as long in Python as a small gradient takes; this is what it calls in the end.
run_backward = torch.autograd.Variable._execution_engine.run_backward

# What the sparsity interpreter knows of a storage must go when the storage goes, and must not be taken for that of a later one.
storage_reference = StorageWeakRef

# `torch.compile` must not trace the interpreters: frames of these code objects, and what they call, run as they are.
set_code_exec_strategy = _C._dynamo.eval_frame.set_code_exec_strategy
SKIP_RECURSIVELY = _C._dynamo.eval_frame._FrameExecStrategy(
    _C._dynamo.eval_frame._FrameAction.SKIP, _C._dynamo.eval_frame._FrameAction.SKIP
)

# TorchScript knows functions by identity: what stands in for a function of torch's must be made known to it.
register_builtin = torch.jit._builtins._register_builtin

# Tells a custom operator with a derivative from one without, which must be an error and not a zero.
has_kernel = _C._dispatch_has_kernel_for_dispatch_key

# Where `torch.library.custom_op` keeps the vmap that the author of an operator registered.
custom_operators = OPDEFS

# A short way that computes a product itself must leave it to torch where a lower precision was asked for, on any device.
autocast_on = _C._is_any_autocast_enabled

# Some functions of torch.nn.functional are these themselves, and are replaced by identity.
nn_functions = _C._nn

# The leaves of a pytree, where the public module does not exist yet.
tree_leaves = torch.utils._pytree.tree_leaves

# What every `Function.apply` comes to, also one bound before we were imported.
FunctionBase: Any = torch.autograd.function._SingleLevelFunction

# Where the Python of torch's own is that runs between the engine and a mode.
library_folder = os.path.dirname(torch._library.__file__) + os.sep

# What a loss's reduction is called by number.
reduction_number = torch.nn._reduction.legacy_get_enum

make_wrapper = torch.Tensor._make_wrapper_subclass
key_set_has = _C._dispatch_tls_is_dispatch_key_included

__all__ = [
    "COMPOSITE",
    "CONJUGATE_KEY",
    "NEGATIVE_KEY",
    "SKIP_RECURSIVELY",
    "ZERO_KEY",
    "BelowAutograd",
    "BelowViews",
    "EnableFunction",
    "ForceKeys",
    "FunctionBase",
    "LazyModuleMixin",
    "NoDispatch",
    "NoFunction",
    "TorchDispatchMode",
    "Uninitialized",
    "api_functions",
    "autocast_on",
    "current_node",
    "custom_operators",
    "excluded_keys",
    "fake_tensor_mode",
    "foreign_transforms",
    "forget_carried",
    "function_mode_on",
    "function_modes",
    "functions_on",
    "graph_task_id",
    "has_kernel",
    "included_keys",
    "is_carried",
    "jit_tracing",
    "keep_carried",
    "key_set_has",
    "library_folder",
    "make_wrapper",
    "mode_at",
    "mode_count",
    "modes_above_autograd",
    "named_carried",
    "nn_functions",
    "no_function",
    "no_modes",
    "node_types",
    "nodes_made",
    "operator_spaces",
    "own_duals",
    "pop_mode",
    "push_mode",
    "reduction_number",
    "register_builtin",
    "run_backward",
    "run_user_backward",
    "saved_hooks",
    "set_code_exec_strategy",
    "set_conj",
    "set_key_excluded",
    "set_neg",
    "storage_reference",
    "tensor_text",
    "top_mode",
    "torch_func_levels",
    "tree_leaves",
]
