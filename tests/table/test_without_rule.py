"""Every operator of torch that runs on a CPU has a rule of its own, or belongs to a group that is named here, with the reason."""

from __future__ import annotations

import re

import torch

from pushforward.batch import kinds as batching
from pushforward.forward import kinds as forward
from pushforward.ops import families  # noqa: F401  (fills the table)
from pushforward.ops.kinds import DERIVED, LOOP, Random
from pushforward.ops.table import entry

DRAWN = "draws are made for all lanes before the table is asked"
REASONS = {
    r"_?(to_)?sparse_\w*|_to_sparse\w*|_spdiags|_coalesced|is_coalesced|copy_sparse_to_sparse|dense_dim|resize_as_sparse|"
    r"_?(c?col_|c?crow_|row_)?indices(_copy)?|_?values(_copy)?|_sparse_\w+|_convert_indices\w+|_validate_compressed\w+": (
        "sparse and compressed layouts: lanes of their own numbers of elements have no common layout"
    ),
    r"quantize_per_\w+|dequantize|quantized_(gru|lstm)|_make_per_\w+_quantized_tensor|_empty_per_channel_affine_quantized|"
    r"_choose_qparams\w*|int_repr|q_\w+": "quantised tensors hold integers, and have no derivative",
    r"_(convert_)?weight_(to_)?int\dpack\w*|_dyn_quant\w+|_scaled_\w*mm\w*": "products of packed integers or eight-bit floats",
    r"_fused_moving_avg_obs_fq_helper_functional|batch_norm_update_stats": "writes running statistics, which lanes cannot share",
    r"_nested_\w+|_jagged_\w+|_padded_dense_to_jagged\w*": "nested tensors",
    r"_test_\w+|_foobar": "torch's own tests",
    r"set|resize\w*|_resize_\w+|is_set_to|_has_same_storage_numel|_?(is_)?pin(ned|_memory)|_lazy_clone|to_mkldnn|"
    r"_assert_tensor_metadata|_new_zeros_with_same_feature_meta|_reshape_copy|_stack": "metadata, storage, and copies below views",
    r"\w*overrideable(_backward)?|_nnpack\w*|_slow_conv2d\w*|slow_conv\w*|_fused_sdp_choice|_grid_sampler_2d_cpu_fallback_backward|"
    r"_compute_linear_combination|_transform_bias_rescale_qkv": "kernels chosen below an operator that has a rule",
    r"_native_multi_head_attention|_transformer_encoder_layer_fwd": "short ways of layers in eval mode, not taken by traced values",
    r"_fused_(adam|adamw|sgd|adagrad)": "fused optimisers write parameters",
    r"_amp_\w+": "scaling for mixed precision",
    r"_fw_primal(_copy)?|_make_dual(_copy)?|glu_jvp|glu_backward_jvp": "torch's own forward mode",
    r"_functional_(assert|sym)\w+": "conditions in captured graphs",
    r"_pack_padded_sequence": "replaced above dispatch, by tests/ops/test_recurrent.py",
    r"_philox_\w+": "draws by a key, without a public name",
}


def operators():
    """The functional operators on tensors that have a kernel of their own."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        base, _, which = full.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), which or "default", None)
        if op is None or has(op.name(), "CompositeImplicitAutograd") or not any(has(op.name(), k) for k in keys):
            continue
        arguments = op._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        if any("Tensor" in str(a.type) for a in arguments):
            yield op


def reason(name):
    """Why an operator needs no rule; the last word is the group's."""
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, name)), None)


def without_rule():
    """The operators that are looped over, or whose tangent is derived from the reverse formula."""
    for op in operators():
        e = entry(op)
        drawn = e.random or (e.row is not None and isinstance(e.row.kind, Random))
        if not drawn and (batching.chosen(e)[0] == LOOP or forward.chosen(e)[0] == DERIVED):
            yield e.name, op


def test_every_operator_has_a_rule_or_a_reason():
    found = {str(op): reason(name) for name, op in without_rule()}
    assert len(list(operators())) > 500  # the list itself is not empty
    missing = sorted(name for name, why in found.items() if why is None)
    assert not missing, f"neither a rule nor a reason: {missing}"


def test_no_reason_is_left_over():
    names = {name for name, _ in without_rule()}
    unused = [pattern for pattern in REASONS if not any(re.fullmatch(pattern, name) for name in names)]
    assert not unused


def test_what_people_call_has_a_rule():
    """Operators outside of torch's own database of operators."""
    called = (
        "_weight_norm_interface _weight_norm_interface_backward affine_grid_generator conv_tbc _int_mm _grouped_mm "
        "embedding_renorm "
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask _standard_gamma _sample_dirichlet"
    )
    without = {name for name, _ in without_rule()}
    assert not without & set(called.split())
