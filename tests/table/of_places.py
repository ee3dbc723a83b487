"""Samples of reductions, sorts, scans, movement and indices."""

from __future__ import annotations

import torch

from tests.table.samples import aten, each, sample, without
from tests.table.values import D, apart, b, given, i, n, p

# -- reductions, sorts, scans -------------------------------------------------------------------------------------------

each(
    "sum mean nansum amax amin logsumexp var std var_mean std_mean linalg_vector_norm",
    lambda op: (
        lambda x: getattr(torch, op._schema.name[6:].removeprefix("linalg_"), torch.linalg.vector_norm)(x, dim=1)
    ),
    apart(2, 3),
)
each(
    "prod argmax argmin count_nonzero",
    lambda op: lambda x: op.overloadpacket(x) * 1.0 + op.overloadpacket(x, 1),
    apart(2, 3),
)
each("any all", lambda op: lambda x: (op.overloadpacket(x > 0), op.overloadpacket(x > 0, 1)), apart(2, 3))
each("max.dim min.dim median.dim nanmedian.dim", lambda op: lambda x: op(x, 1, True), apart(2, 3))
each("max.default min.default median nanmedian", lambda op: lambda x: op.overloadpacket.default(x), apart(2, 3))
sample("aminmax", lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)), apart(2, 3))
sample("kthvalue", lambda x: torch.kthvalue(x, 2, 1), apart(2, 3))
sample("mode", lambda x: torch.mode(x, 1), given([1.0, 2.0, 1.0], [0.5, 0.5, 3.0]), values_only=True)
sample("topk", lambda x: torch.topk(x, 2, 1), apart(2, 3))
each("sort cummax cummin", lambda op: lambda x: op(x, 1), apart(2, 3))
sample("_softmax", lambda x: aten._softmax(x, 1, False), n(2, 3))
sample("_log_softmax", lambda x: aten._log_softmax(x, 1, False), n(2, 3))
sample("_softmax_backward_data", lambda g, y: aten._softmax_backward_data(g, y, 1, D), n(2, 3), p(2, 3))
sample("_log_softmax_backward_data", lambda g, y: aten._log_softmax_backward_data(g, y, 1, D), n(2, 3), p(2, 3))
sample("_masked_softmax", lambda x, m: aten._masked_softmax(x, m, 1), n(2, 3), b([1, 0, 0], [0, 0, 1]))
each("softmax log_softmax", lambda op: lambda x: op(x, 1), n(2, 3))
sample("msort", torch.msort, apart(3, 2))
sample("hash_tensor", lambda x: aten.hash_tensor(x, [1]), n(2, 3), slow=True)
sample("norm", lambda x: aten.norm.Scalar(x, 3) + aten.norm.ScalarOpt_dim(x, 3, [1]), n(2, 3))
sample("dist", lambda x, y: torch.dist(x, y, 3), n(2, 3), n(3))
sample("renorm", lambda x: torch.renorm(x, 2, 0, 0.7), n(2, 3))
sample("trace", torch.trace, n(3, 4))
each("_is_all_true _is_any_true", lambda op: lambda x: op(x), b([1, 0, 1], [1, 1, 1]))

# -- movement -----------------------------------------------------------------------------------------------------------

each("view _unsafe_view reshape view_copy", lambda op: lambda x: op(x.contiguous(), [3, 2]), n(2, 3))
sample("_reshape_alias", lambda x: aten._reshape_alias(x.contiguous(), [3, 2], [2, 1]), n(2, 3))
sample("_reshape_alias_copy", lambda x: aten._reshape_alias_copy(x.contiguous(), [3, 2], [2, 1]), n(2, 3))
sample("view.dtype", lambda x: x.view(torch.int64), n(2, 3), values_only=True)
each("expand expand_copy", lambda op: lambda x: op(x, [2, 2, 3]), n(2, 3))
each("permute permute_copy", lambda op: lambda x: op(x, [2, 0, -2]), n(2, 3, 4))
each("t t_copy", lambda op: lambda x: op(x), n(2, 3))
each("transpose transpose_copy", lambda op: lambda x: op(x, 0, -1), n(2, 3, 4))
each("squeeze squeeze_copy", lambda op: lambda x: op.overloadpacket(x, 1), n(2, 1, 3))
each("unsqueeze unsqueeze_copy", lambda op: lambda x: (op(x, -3), op(x, 2)), n(2, 3))
each("as_strided as_strided_copy", lambda op: lambda x: op(x.contiguous(), [2, 2], [3, 1], 1), n(2, 3))
each("diagonal diagonal_copy", lambda op: lambda x: op(x, 1, 0, -1), n(3, 2, 4))
sample("repeat", lambda x: x.repeat(2, 1, 3), n(2, 3))
sample("roll", lambda x: torch.roll(x, 1, -1) + torch.roll(x, 2), n(2, 3))
sample("flip rot90", lambda x: torch.flip(x, [-1]) + torch.rot90(torch.rot90(x, 1, [0, 1]), 1, [0, 1]), n(2, 3))
each("tril triu", lambda op: lambda x: op(x, 1), n(3, 4))
each("_neg_view _neg_view_copy resolve_neg alias_copy", lambda op: lambda x: op(x), n(2, 3))
sample("detach", lambda x: x.detach() * x, n(2, 3), stopped=True)
sample("detach_copy", torch.detach_copy, n(2, 3), values_only=True)
each("select select_copy", lambda op: lambda x: op(x, -1, 1), n(2, 3))
each("slice slice_copy", lambda op: lambda x: op(x, -1, 0, 3, 2), n(2, 4))
each("unbind unbind_copy", lambda op: lambda x: op(x, -1), n(2, 3))
each("split split_copy unsafe_split", lambda op: lambda x: op.overloadpacket.Tensor(x, 2, -1), n(2, 3))
each("split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", lambda op: lambda x: op(x, [1, 2], -1), n(2, 3))
each("unfold unfold_copy", lambda op: lambda x: op(x, -1, 2, 1), n(2, 4))
sample("narrow_copy", lambda x: aten.narrow_copy(x, 1, 1, 2), n(2, 4))
sample("slice_inverse", lambda x: aten.slice_inverse(x[1:3], x, 0, 1, 3), n(4, 2), values_only=True)
sample("select_backward", lambda g: aten.select_backward(g, [2, 3], -1, 1), n(2))
sample("slice_backward", lambda g: aten.slice_backward(g, [2, 4], -1, 0, 3, 2), n(2, 2))
sample("diagonal_backward", lambda g: aten.diagonal_backward(g, [3, 2, 4], 1, 0, -1), n(2, 3))
sample("unfold_backward", lambda g: aten.unfold_backward(g, [2, 4], -1, 2, 1), n(2, 3, 2))
sample("diag_embed", lambda x: torch.diag_embed(x, 1, 0, -1), n(2, 3))
sample(
    "cat stack",
    lambda x, y: torch.cat([x, y], -1).sum(0) * torch.cat([x, x, y[:, :1]], 1)[0] + torch.stack([x, x], 1).sum(),
    n(2, 3),
    n(2, 4),
)
each("hstack vstack dstack column_stack block_diag", lambda op: lambda x, y: op([x, y]), n(2, 3), n(2, 3))
sample("_chunk_cat", lambda x, y: aten._chunk_cat([x, y], 0, 2), n(2, 3), n(2, 3))
sample("constant_pad_nd", lambda x: aten.constant_pad_nd(x, [1, 2], 0.5), n(2, 3))
without("_reshape_alias_sizes", "named for a variant that torch 2.13 does not have")

# -- indices ------------------------------------------------------------------------------------------------------------

each("index _unsafe_index", lambda op: lambda x, k: op(x, [None, k]), n(2, 3), i(2, 0, 2, 1))
each(
    "index_put _unsafe_index_put _index_put_impl",
    lambda op: lambda x, k, y: op(x, [k], y, True),
    n(4, 3),
    i(2, 0, 2),
    n(3, 3),
)
sample("index_select", lambda x, k: torch.index_select(x, 1, k), n(2, 3), i(2, 0, 2))
sample("index_add", lambda x, k, y: torch.index_add(x, 1, k, y, alpha=2), n(2, 3), i(2, 0, 2), n(2, 3))
sample("index_copy", lambda x, k, y: torch.index_copy(x, 1, k, y), n(2, 3), i(2, 0), n(2, 2))
sample(
    "index_fill", lambda x, k, y: torch.index_fill(x, 1, k, y) + torch.index_fill(x, 1, k, 2.0), n(2, 3), i(2, 0), n()
)
sample(
    "gather take_along_dim",
    lambda x, k: torch.gather(x, 1, k) + torch.take_along_dim(x, k, 1),
    n(2, 3),
    i([2, 0], [1, 1]),
)
sample("take", torch.take, n(2, 3), i(5, 0, 5))
sample("put", lambda x, k, y: torch.put(x, k, y) + torch.put(x, k, y, accumulate=True), n(2, 3), i(5, 0), n(2))
sample("_unsafe_masked_index", lambda x, m, k: aten._unsafe_masked_index(x, m, [k], 0.5), n(4), b(1, 0, 1), i(2, 0, 3))
sample(
    "_unsafe_masked_index_put_accumulate",
    lambda x, m, k, y: aten._unsafe_masked_index_put_accumulate(x, m, [k], y),
    n(4),
    b(1, 0, 1),
    i(2, 0, 2),
    n(3),
)
sample("masked_select", lambda x, m: torch.masked_select(x, m), n(2, 3), b([1, 0, 1], [1, 0, 1]), asks=True)
sample("masked_scatter", torch.masked_scatter, n(2, 3), b([1, 0, 1], [0, 0, 1]), n(4))
sample(
    "masked_scatter_backward", lambda g, m: aten.masked_scatter_backward(g, m, [4]), n(2, 3), b([1, 0, 1], [0, 0, 1])
)
sample("scatter.src", lambda x, k, y: torch.scatter(x, 1, k, y), n(2, 3), i([2, 0], [1, 0]), n(2, 2))
sample("scatter.value", lambda x, k: torch.scatter(x, 1, k, 2.0), n(2, 3), i([2, 0], [1, 0]))
sample(
    "scatter.reduce", lambda x, k, y: torch.scatter(x, 1, k, y, reduce="multiply"), n(2, 3), i([2, 0], [1, 0]), n(2, 2)
)
sample("scatter.value_reduce", lambda x, k: torch.scatter(x, 1, k, 2.0, reduce="multiply"), n(2, 3), i([2, 0], [1, 0]))
sample("scatter_add", lambda x, k, y: torch.scatter_add(x, 1, k, y), n(2, 3), i([2, 2], [1, 0]), n(2, 2))
sample(
    "scatter_reduce",
    lambda x, k, y: torch.stack([torch.scatter_reduce(x, 1, k, y, r) for r in ("sum", "prod", "mean", "amax")]),
    apart(2, 3),
    i([2, 2], [1, 0]),
    n(2, 2),
)
sample(
    "index_reduce",
    lambda x, k, y: torch.stack([torch.index_reduce(x, 1, k, y, r) for r in ("prod", "mean", "amin")]),
    apart(2, 3),
    i(2, 0),
    n(2, 2),
)
sample("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, 2), n(2, 3), n(2))
sample("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), n(2, 4), n(2, 2))
sample("diagonal_scatter", lambda x, y: torch.diagonal_scatter(x, y, 1), n(3, 4), n(3))
sample(
    "as_strided_scatter",
    lambda x, y: torch.as_strided_scatter(x.contiguous(), y, [2, 2], [3, 1], 1),
    n(2, 3),
    n(2, 2),
    forward=True,
)
sample("nonzero", aten.nonzero, given([0.0, 1.0, 2.0], [3.0, 0.0, 1.0]), asks=True)
sample("nonzero_static", lambda x: aten.nonzero_static(x, size=5), given([0.0, 1.0, 2.0], [3.0, 0.0, 1.0]))
sample("repeat_interleave.Tensor", lambda k: torch.repeat_interleave(k, output_size=6), i(2, 1, 3))
sample("searchsorted", lambda s, x: torch.searchsorted(s, x), given(0.1, 0.4, 0.8, fixed=True), p(2, 3))
sample("bucketize", lambda x, s: torch.bucketize(x, s), p(2, 3), given(0.1, 0.4, 0.8, fixed=True))
sample("bincount", lambda k: torch.bincount(k, minlength=4), i(1, 3, 1))
sample("histc", lambda x: torch.histc(x, 3, 0.0, 1.0), p(6), values_only=True)
sample("histogram.bin_ct", lambda x: aten.histogram.bin_ct(x, 3, range=[0.0, 1.0]), p(6), values_only=True)
sample(
    "histogram.bins_tensor",
    lambda x, s: aten.histogram.bins_tensor(x, s),
    p(6, fixed=True),
    given(0.0, 0.5, 1.0, fixed=True),
)
sample("_histogramdd_bin_edges", lambda x: aten._histogramdd_bin_edges(x, [2, 3]), p(4, 2), values_only=True)
sample(
    "_histogramdd_from_bin_cts",
    lambda x: aten._histogramdd_from_bin_cts(x, [2, 3], range=[0.0, 1.0, 0.0, 1.0]),
    p(4, 2),
    values_only=True,
)
sample(
    "_histogramdd_from_bin_tensors",
    lambda x: aten._histogramdd_from_bin_tensors(x, [torch.tensor([0, 0.5, 1], dtype=D)] * 2),
    p(4, 2),
    values_only=True,
)
sample("_unique", lambda k: aten._unique(k, True, True)[0], i(1, 3, 1), asks=True)
sample("_unique2", lambda k: aten._unique2(k, True, True, True), i(1, 3, 1), asks=True)
sample("unique_dim", lambda k: aten.unique_dim(k, 0, True, True, True), i([1, 3], [1, 3], [0, 2]), asks=True)
sample("unique_consecutive", lambda k: aten.unique_consecutive(k, True, True), i(1, 1, 3), asks=True)
sample(
    "unique_dim_consecutive",
    lambda k: aten.unique_dim_consecutive(k, 0, True, True),
    i([1, 3], [1, 3], [0, 2]),
    asks=True,
)
sample(
    "_nested_tensor_from_mask_left_aligned",
    lambda x, m: x.sum() * aten._nested_tensor_from_mask_left_aligned(x, m),
    n(2, 3, 2),
    b([1, 1, 0], [1, 0, 0]),
    asks=True,
)
