"""What a function may do and only compute: bytecode instructions, attributes of tensors, functions of torch's and of Python's."""

from __future__ import annotations

import math
import types
from typing import Any

import torch

from ..core import constructors
from ..core.torch_private import operator_spaces

Tensor = torch.Tensor

# CPython 3.11 to 3.14 (the last as documented, it was not run). Not among them: setting an item, an attribute, a global, a
# variable of an outer function; imports, `with`, `try`, classes, coroutines.
_INSTRUCTIONS = """
    RESUME NOP CACHE PRECALL KW_NAMES PUSH_NULL EXTENDED_ARG COPY SWAP POP_TOP POP_ITER END_FOR TO_BOOL NOT_TAKEN LOAD_FAST
    LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST
    STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST LOAD_CONST LOAD_CONST_IMMORTAL
    LOAD_CONST_MORTAL LOAD_SMALL_INT LOAD_COMMON_CONSTANT LOAD_GLOBAL LOAD_DEREF LOAD_CLOSURE STORE_DEREF MAKE_CELL
    COPY_FREE_VARS LOAD_ATTR LOAD_METHOD CALL CALL_KW CALL_FUNCTION_EX BINARY_OP BINARY_SUBSCR BINARY_SLICE BUILD_TUPLE
    BUILD_LIST BUILD_SLICE BUILD_MAP BUILD_CONST_KEY_MAP LIST_EXTEND LIST_APPEND LIST_TO_TUPLE MAP_ADD DICT_MERGE DICT_UPDATE
    UNARY_NEGATIVE UNARY_NOT UNARY_INVERT UNARY_POSITIVE COMPARE_OP IS_OP CONTAINS_OP GET_ITER FOR_ITER JUMP_FORWARD
    JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP RETURN_VALUE RETURN_CONST
    UNPACK_SEQUENCE UNPACK_EX MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE RETURN_GENERATOR YIELD_VALUE RERAISE RAISE_VARARGS
    LOAD_ASSERTION_ERROR CALL_INTRINSIC_1 FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE BUILD_STRING
"""
INSTRUCTIONS = frozenset(_INSTRUCTIONS.split())
JUMPS = "POP_JUMP_"
# Of what CALL_INTRINSIC_1 does; the others make types and asynchronous generators.
INTRINSICS = frozenset(f"INTRINSIC_{name}" for name in ("LIST_TO_TUPLE", "UNARY_POSITIVE", "STOPITERATION_ERROR"))

_DOES_MORE = """
    apply_ as_subclass backward const_data_ptr cuda data data_ptr element_size grad grad_fn grad_dtype is_leaf
    is_pinned is_set_to is_shared item layout map_ map2_ module_load name names new new_tensor numpy output_nr
    pin_memory record_stream refine_names register_hook register_post_accumulate_grad_hook reinforce rename
    requires_grad resize resize_as retain_grad retains_grad set share_memory storage storage_offset storage_type
    tolist type untyped_storage volatile
"""
# What they do is chosen by settings, or by numbers of their arguments that they read where no mode sees it.
_CHOOSE = """
    scaled_dot_product_attention multi_head_attention_forward tensor_split tensordot ctc_loss lobpcg pca_lowrank svd_lowrank
"""
FLAGGED = frozenset(_CHOOSE.split())
CHANGING = frozenset(("append", "sort"))  # a list on which they are called
_OF_MAPPINGS = frozenset(("items", "keys", "values"))
_OF_TENSORS = frozenset(n for n in dir(Tensor) if n[0] != "_" and n[-1] != "_")
ATTRIBUTES = (_OF_TENSORS - frozenset(_DOES_MORE.split()) - FLAGGED) | _OF_MAPPINGS


def torch_functions() -> set[Any]:
    """Functions of torch's API that only compute. Those that draw or write are found out when they do."""
    found = set()
    for space in operator_spaces:
        found.update(
            f for name in dir(space) if name[0] != "_" and name not in FLAGGED and callable(f := getattr(space, name))
        )
    for space in (torch.nn.functional, torch.functional):
        for name, f in vars(space).items():
            if name[0] != "_" and name not in FLAGGED and isinstance(f, (types.FunctionType, types.BuiltinFunctionType)):
                found.add(f)
    found.update(f for name in ATTRIBUTES if callable(f := getattr(Tensor, name, None)))
    return found


_BUILTINS = (
    abs, all, any, bool, dict, enumerate, float, int, isinstance, len, list, map, max, min, pow, range, reversed, round, slice, sum,
    tuple, type, zip,
)  # fmt: skip
_CAUGHT = tuple(getattr(torch, name) for name in constructors.CAUGHT)
PURE: set[Any] = {*torch_functions(), *_BUILTINS, *_CAUGHT, Tensor, *[f for f in vars(math).values() if callable(f)]}
