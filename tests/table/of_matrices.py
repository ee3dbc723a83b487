"""Samples of contractions, convolutions, linear algebra, Fourier transforms, embeddings and recurrent layers."""

from __future__ import annotations

import torch

from tests.table.samples import aten, each, sample, without
from tests.table.values import apart, b, c, i, n, p, positive_definite, well_conditioned

functional, linalg = torch.nn.functional, torch.linalg
ALL = [True, True, True]

# -- products -----------------------------------------------------------------------------------------------------------

each("mm matmul", lambda op: lambda x, y: op(x, y), n(2, 3), n(3, 4))
each("bmm", lambda op: lambda x, y: op(x, y), n(2, 2, 3), n(2, 3, 4))
each("mv", lambda op: lambda x, y: op(x, y), n(2, 3), n(3))
each("dot vdot", lambda op: lambda x, y: op(x, y), n(3), n(3))
each("addmm _addmm_activation", lambda op: lambda a, x, y: op(a, x, y, beta=0.5, alpha=2.0), n(4), n(2, 3), p(3, 4))
sample("addmv", lambda a, x, y: torch.addmv(a, x, y, beta=0.5, alpha=2.0), n(2), n(2, 3), n(3))
sample("addr", lambda a, x, y: torch.addr(a, x, y, beta=0.5, alpha=2.0), n(2, 3), n(2), n(3))
sample("baddbmm", lambda a, x, y: torch.baddbmm(a, x, y, beta=0.5, alpha=2.0), n(2, 2, 4), n(2, 2, 3), n(2, 3, 4))
sample("addbmm", lambda a, x, y: torch.addbmm(a, x, y, beta=0.5, alpha=2.0), n(2, 4), n(2, 2, 3), n(2, 3, 4))
sample("linear", functional.linear, n(2, 3), n(4, 3), n(4))
sample("_trilinear", lambda x, y, z: functional.bilinear(x, y, z), n(2, 3), n(2, 4), n(2, 3, 4))
sample("linalg_cross", linalg.cross, n(2, 3), n(2, 3))
sample("_sparse_mm", lambda x, y: torch.sparse.mm(x.to_sparse(), y), n(2, 3), n(3, 4), values_only=True, slow=True)
sample("_to_sparse _to_dense", lambda x: x.to_sparse().to_dense() * x, n(2, 3))
without(
    "sparse_mask sparse_sampled_addmm", "their arguments are sparse tensors: tests/ops and tests/sparsity have them"
)

# -- convolutions ---------------------------------------------------------------------------------------------------------

sample(
    "convolution _convolution convolution_overrideable",
    lambda x, w, a: functional.conv2d(x, w, a, stride=2, padding=1, dilation=1, groups=2),
    n(2, 4, 4, 5),
    n(4, 2, 3, 2),
    n(4),
)
sample(
    "convolution_backward",
    lambda g, x, w: aten.convolution_backward(g, x, w, [3], [1], [1], [1], False, [0], 1, ALL),
    n(2, 3, 5),
    n(2, 2, 5),
    n(3, 2, 3),
)
sample(
    "mkldnn_convolution",
    lambda x, w, a: torch.mkldnn_convolution(x.float(), w.float(), a.float(), [0, 0], [1, 1], [1, 1], 1),
    n(1, 2, 3, 3),
    n(2, 2, 2, 2),
    n(2),
    values_only=True,
)

# -- distances, embeddings --------------------------------------------------------------------------------------------------

sample("cdist _cdist_forward", lambda x, y: torch.cdist(x, y, 3.0), n(2, 3), n(4, 3))
sample("_euclidean_dist", lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), n(2, 3), n(4, 3))
sample(
    "_cdist_backward",
    lambda g, x, y: aten._cdist_backward(g, x, y, 3.0, torch.cdist(x, y, 3.0).detach()),
    n(2, 4),
    n(2, 3),
    n(4, 3),
    values_only=True,
)
sample("_pdist_forward", lambda x: functional.pdist(x, 3.0), n(4, 3))
sample(
    "_pdist_backward",
    lambda g, x: aten._pdist_backward(g, x, 3.0, functional.pdist(x, 3.0)),
    n(6),
    n(4, 3),
    values_only=True,
)
sample("embedding", lambda k, w: functional.embedding(k, w), i(2, 1, 0, 2), n(4, 3))
sample(
    "embedding_dense_backward embedding_backward",
    lambda g, k: aten.embedding_dense_backward(g, k, 4, 1, False),
    n(4, 3),
    i(2, 1, 0, 2),
)
sample(
    "_embedding_bag _embedding_bag_forward_only",
    lambda w, k, s: functional.embedding_bag(k, w, torch.tensor([0, 2]), mode="sum", per_sample_weights=s),
    n(4, 3),
    i(2, 1, 0, 2),
    n(4),
)


def bag(w, k, s):
    """A bag's results, as its reverse formulas want them."""
    return aten._embedding_bag(w, k, torch.tensor([0, 2]), False, 0, False, s)


sample(
    "_embedding_bag_backward _embedding_bag_dense_backward",
    lambda g, k, s: aten._embedding_bag_dense_backward(
        g, k, *bag(torch.zeros(4, 3, dtype=g.dtype), k, s.detach())[1:], 4, False, 0, s
    ),
    n(2, 3),
    i(2, 1, 0, 2),
    n(4),
    values_only=True,
)
sample(
    "_embedding_bag_per_sample_weights_backward",
    lambda g, w, k: aten._embedding_bag_per_sample_weights_backward(
        g, w, k, torch.tensor([0, 2]), bag(w.detach(), k, None)[1], 0
    ),
    n(2, 3),
    n(4, 3),
    i(2, 1, 0, 2),
    values_only=True,
)

# -- linear algebra ---------------------------------------------------------------------------------------------------------

SQUARE, TALL = well_conditioned(3, 3), well_conditioned(4, 3)
sample("linalg_lu_factor_ex", lambda a: linalg.lu_factor_ex(a)[0], SQUARE)
sample("linalg_lu", lambda a: linalg.lu(a)[1:], SQUARE)
sample("lu_unpack", lambda a: torch.lu_unpack(a, torch.tensor([2, 3, 3], dtype=torch.int32)), SQUARE)
sample("linalg_lu_solve", lambda a, y: linalg.lu_solve(*linalg.lu_factor(a), y), SQUARE, n(3, 2))
sample("_linalg_solve_ex linalg_solve_ex", lambda a, y: linalg.solve_ex(a, y)[0], SQUARE, n(3, 2))
sample("linalg_inv_ex", lambda a: linalg.inv_ex(a)[0], SQUARE)
sample("_linalg_det linalg_det", linalg.det, SQUARE)
sample("_linalg_slogdet linalg_slogdet", lambda a: linalg.slogdet(a)[1], SQUARE)
sample("linalg_pinv", linalg.pinv, TALL)
sample("linalg_lstsq", lambda a, y: linalg.lstsq(a, y)[0], TALL, n(4, 2))
sample("linalg_matrix_exp", lambda a: linalg.matrix_exp(a / 4), SQUARE)
sample("linalg_matrix_power", lambda a: linalg.matrix_power(a, 3), SQUARE)
sample("linalg_qr", lambda a: linalg.qr(a), TALL)
sample("geqrf", lambda a: torch.geqrf(a), TALL, refused=True)
sample("linalg_ldl_factor_ex", lambda a: linalg.ldl_factor_ex(a)[0], positive_definite(3), refused=True)
sample("linalg_ldl_solve", lambda y: linalg.ldl_solve(*linalg.ldl_factor(torch.eye(3, dtype=y.dtype) * 2), y), n(3, 2))
sample("linalg_householder_product", linalg.householder_product, n(4, 3), p(3))
sample("ormqr", lambda a, t, y: torch.ormqr(a, t, y), n(4, 3), p(3), n(4, 2))
sample("_linalg_eigh linalg_eigh", lambda a: linalg.eigh(a + a.mT)[0], SQUARE)
sample("linalg_eig", lambda a: linalg.eig(a)[0], SQUARE)
sample("_linalg_eigvals linalg_eigvals", linalg.eigvals, SQUARE)
sample("_linalg_svd linalg_svd", lambda a: linalg.svd(a, full_matrices=False)[1], TALL)
sample("linalg_solve_triangular", lambda a, y: linalg.solve_triangular(a, y, upper=True), SQUARE, n(3, 2))
sample("triangular_solve", lambda y, a: torch.triangular_solve(y, a)[0], n(3, 2), SQUARE)
sample(
    "cholesky linalg_cholesky_ex", lambda a: (torch.cholesky(a + a.mT), linalg.cholesky(a + a.mT)), positive_definite(3)
)
# Torch's reverse formulas of these two give numbers for the triangle that is not read; a triangular factor hides them.
sample("cholesky_inverse", lambda a: torch.cholesky_inverse(a.tril()), SQUARE)
sample("cholesky_solve _cholesky_solve_helper", lambda y, a: torch.cholesky_solve(y, a.tril()), n(3, 2), SQUARE)

# -- Fourier transforms -------------------------------------------------------------------------------------------------------

sample("_fft_r2c", torch.fft.rfft, n(2, 5))
sample("_fft_c2r", lambda z: torch.fft.irfft(z, 5), c(2, 3))
sample("_fft_c2c", lambda z: torch.fft.ifft(z, dim=0), c(3, 2))

# -- recurrent layers, CTC, segments ------------------------------------------------------------------------------------------

without(
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward",
    "float32 on the CPU only, reached by torch.nn.LSTM alone: tests/ops/test_recurrent.py has it",
)
sample(
    "_ctc_loss _ctc_loss_backward",
    lambda x, k: functional.ctc_loss(x.log_softmax(-1), k, (4, 3), (2, 1), reduction="none"),
    n(4, 2, 3),
    i([1, 2], [2, 1]),
)
sample(
    "segment_reduce _segment_reduce_backward",
    lambda x: torch.segment_reduce(x, "mean", lengths=torch.tensor([2, 1]), unsafe=True),
    n(3, 2),
)

# -- attention ------------------------------------------------------------------------------------------------------------------

sample(
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_attention_math",
    lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    n(1, 2, 3, 4),
    n(1, 2, 3, 4),
    n(1, 2, 3, 4),
)
for name in ("efficient", "flash", "cudnn"):
    without(
        f"_scaled_dot_product_{name}_attention _scaled_dot_product_{name}_attention_backward",
        "no kernel on the CPU; tests/ops/test_attention_kernels.py gives it one",
    )
sample(
    "_safe_softmax",
    lambda x, m: torch.nn.functional.scaled_dot_product_attention(x, x, x, m),
    n(1, 2, 3),
    b([1, 0], [1, 1]),
)

# -- weight norm, time-batch-channels, bytes and groups ---------------------------------------------------------------------

sample(
    "_weight_norm_interface",
    lambda v, g: (torch._weight_norm(v, g, 0), torch._weight_norm(v.mT, g.mT, 1)),
    n(3, 4),
    n(3, 1),
)
sample(
    "_weight_norm_interface_backward",
    lambda w, v, g: aten._weight_norm_interface_backward(w, v, g, v.norm(dim=1, keepdim=True), 0),
    n(3, 4),
    n(3, 4),
    n(3, 1),
)
sample("conv_tbc", lambda x, w, a: aten.conv_tbc(x, w, a, 1), n(4, 2, 3), n(2, 3, 2), n(2))
sample(
    "_int_mm",
    lambda x, y: aten._int_mm(x.to(torch.int8), y.to(torch.int8)).double(),
    n(17, 8),
    n(8, 8),
    values_only=True,
)
sample(
    "_grouped_mm", lambda a, b: aten._grouped_mm(a.float(), b.float()).double(), n(2, 4, 8), n(2, 8, 4), values_only=True
)
sample(
    "linalg__powsum",
    lambda x: aten.linalg__powsum(x, 3.5, [1]) + aten.linalg__powsum(x, 2) + aten.linalg__powsum(x, 0),
    n(2, 3),
)
sample("_foreach_powsum", lambda x, y: aten._foreach_powsum([x, y], 3), n(2, 3), n(2))
sample("_add_relu", lambda x, y: aten._add_relu(x, y, alpha=0.5), apart(2, 3), n(2, 3, fixed=True))
sample("_aminmax", lambda x: (*aten._aminmax(x), *aten._aminmax.dim(x, 1)), apart(2, 3))
sample("embedding_renorm", lambda w, k: aten.embedding_renorm(w, k, 1.0, 2.0), n(4, 3), i(2, 0, 2), values_only=True)
