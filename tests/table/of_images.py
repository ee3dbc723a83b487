"""Samples of normalisation, losses, pooling, padding, resampling and their reverse formulas."""

from __future__ import annotations

import torch

from tests.table.samples import aten, each, sample
from tests.table.values import apart, i, n, p

functional = torch.nn.functional
ALL = [True, True, True]

# -- normalisation: what a reverse formula saves is worked out inside, so that its derivative is the whole one ------------------

sample("native_layer_norm", lambda x, w, a: aten.native_layer_norm(x, [3], w, a, 1e-5)[0], n(2, 3), n(3), n(3))
sample(
    "native_layer_norm_backward",
    lambda g, x, w: torch.ops.aten.native_layer_norm_backward(
        g, x, [3], *aten.native_layer_norm(x, [3], w, None, 1e-5)[1:], w, None, [True, True, False]
    )[:2],
    n(2, 3),
    n(2, 3),
    n(3),
    values_only=True,
)
sample("_fused_rms_norm", lambda x, w: functional.rms_norm(x, [3], w), n(2, 3), n(3))
sample("native_group_norm", lambda x, w, a: functional.group_norm(x, 2, w, a), n(2, 4, 3), n(4), n(4))
sample(
    "native_group_norm_backward",
    lambda g, x, w: aten.native_group_norm_backward(
        g, x, *aten.native_group_norm(x, w, None, 2, 4, 3, 2, 1e-5)[1:], w, 2, 4, 3, 2, ALL
    ),
    n(2, 4, 3),
    n(2, 4, 3),
    n(4),
    values_only=True,
)
sample(
    "native_batch_norm",
    lambda x, w, a: aten.native_batch_norm(x, w, a, None, None, True, 0.1, 1e-5)[0],
    n(3, 2, 2),
    n(2),
    n(2),
)
sample(
    "native_batch_norm_backward",
    lambda g, x, w: aten.native_batch_norm_backward(
        g, x, w, None, None, *aten.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)[1:], True, 1e-5, ALL
    ),
    n(3, 2, 2),
    n(3, 2, 2),
    n(2),
    values_only=True,
)
sample(
    "_native_batch_norm_legit_functional _batch_norm_with_update_functional",
    lambda x, w, a, m, v: aten._native_batch_norm_legit_functional(x, w, a, m, v, True, 0.1, 1e-5)[:1],
    n(3, 2, 2),
    n(2),
    n(2),
    n(2),
    p(2),
)
sample(
    "_native_batch_norm_legit.no_stats",
    lambda x, w, a: aten._native_batch_norm_legit.no_stats(x, w, a, True, 0.1, 1e-5)[0],
    n(3, 2, 2),
    n(2),
    n(2),
)
sample(
    "_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm_backward",
    lambda x, w, a, m, v: aten._native_batch_norm_legit_no_training(x, w, a, m, v, 0.1, 1e-5)[0],
    n(3, 2, 2),
    n(2),
    n(2),
    n(2, fixed=True),
    p(2, fixed=True),
)

# -- losses -----------------------------------------------------------------------------------------------------------------------

for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
    loss = getattr(functional, name)
    sample(name, lambda x, y, loss=loss: (loss(x, y, reduction="mean"), loss(x, y, reduction="none")), n(2, 3), n(2, 3))
    sample(
        name + "_backward",
        lambda g, x, y, op=getattr(aten, name + "_backward"), more=((0.7,) if name[0] in "h" or name[:2] == "sm" else ()): (
            op(g, x, y, 1, *more)
        ),
        n(),
        n(2, 3),
        n(2, 3),
    )
sample("binary_cross_entropy", lambda x, y, w: functional.binary_cross_entropy(x, y, w), p(2, 3), p(2, 3), p(3))
sample(
    "binary_cross_entropy_backward",
    lambda g, x, y, w: aten.binary_cross_entropy_backward(g, x, y, w, 1),
    n(),
    p(2, 3),
    p(2, 3),
    p(2, 3),
)
sample(
    "binary_cross_entropy_with_logits",
    lambda x, y, w, q: functional.binary_cross_entropy_with_logits(x, y, w, pos_weight=q),
    n(2, 3),
    p(2, 3),
    p(3),
    p(3),
)
sample(
    "nll_loss_forward",
    lambda x, k, w: functional.nll_loss(x, k, w, ignore_index=0),
    n(3, 4),
    i(1, 0, 3),
    p(4, fixed=True),
)
sample(
    "nll_loss_backward",
    lambda g, x, k, w: aten.nll_loss_backward(g, x, k, w, 1, 0, w[k].sum()),
    n(),
    n(3, 4),
    i(1, 2, 3),
    p(4, fixed=True),
)
sample(
    "nll_loss2d_forward",
    lambda x, k, w: functional.nll_loss(x, k, w),
    n(2, 3, 2, 1),
    i([[1], [0]], [[2], [2]]),
    p(3, fixed=True),
)
sample(
    "nll_loss2d_backward",
    lambda g, x, k, w: aten.nll_loss2d_backward(g, x, k, w, 1, -100, w[k].sum()),
    n(),
    n(2, 3, 2, 1),
    i([[1], [0]], [[2], [2]]),
    p(3, fixed=True),
)
sample(
    "multi_margin_loss multi_margin_loss_backward",
    lambda x, k: functional.multi_margin_loss(x, k),
    apart(3, 4),
    i(1, 0, 3),
)
sample(
    "multilabel_margin_loss_forward multilabel_margin_loss_backward",
    lambda x, k: functional.multilabel_margin_loss(x, k),
    apart(2, 4),
    i([3, 0, -1, 1], [1, -1, 0, 2]),
)

# -- pooling ------------------------------------------------------------------------------------------------------------------------

sample("avg_pool1d", lambda x: functional.avg_pool1d(x, 2, 1), n(2, 2, 5))
sample("adaptive_avg_pool1d", lambda x: functional.adaptive_avg_pool1d(x, 2), n(2, 2, 5))
sample("avg_pool2d", lambda x: functional.avg_pool2d(x, 2, 1, 1), n(1, 2, 3, 4))
sample("avg_pool3d", lambda x: functional.avg_pool3d(x, 2, 1, 1), n(1, 1, 3, 2, 3))
sample("_adaptive_avg_pool2d", lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), n(1, 2, 3, 4))
sample("_adaptive_avg_pool3d", lambda x: functional.adaptive_avg_pool3d(x, (2, 3, 2)), n(1, 1, 3, 4, 3))
sample(
    "avg_pool2d_backward",
    lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [1, 1], [0, 0], False, True, None),
    n(1, 2, 2, 3),
    n(1, 2, 3, 4),
)
sample(
    "avg_pool3d_backward",
    lambda g, x: aten.avg_pool3d_backward(g, x, [2] * 3, [1] * 3, [0] * 3, False, True, None),
    n(1, 1, 2, 1, 2),
    n(1, 1, 3, 2, 3),
)
sample(
    "_adaptive_avg_pool2d_backward", lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), n(1, 2, 2, 3), n(1, 2, 3, 4)
)
sample(
    "_adaptive_avg_pool3d_backward",
    lambda g, x: aten._adaptive_avg_pool3d_backward(g, x),
    n(1, 1, 2, 1, 2),
    n(1, 1, 3, 2, 3),
)
sample("max_pool2d_with_indices", lambda x: functional.max_pool2d(x, 2, 1, return_indices=True), apart(1, 2, 3, 4))
sample("max_pool3d_with_indices", lambda x: functional.max_pool3d(x, 2, 1, return_indices=True), apart(1, 1, 3, 2, 3))
sample("adaptive_max_pool2d", lambda x: functional.adaptive_max_pool2d(x, (2, 2)), apart(1, 2, 3, 4))
sample("adaptive_max_pool3d", lambda x: functional.adaptive_max_pool3d(x, (2, 1, 2)), apart(1, 1, 3, 2, 3))
sample(
    "fractional_max_pool2d",
    lambda x, s: aten.fractional_max_pool2d(x, [2, 2], [2, 2], s),
    apart(1, 2, 4, 4),
    p(1, 2, 2, fixed=True),
)
sample(
    "fractional_max_pool3d",
    lambda x, s: aten.fractional_max_pool3d(x, [2] * 3, [2] * 3, s),
    apart(1, 1, 4, 4, 4),
    p(1, 1, 3, fixed=True),
)
sample(
    "max_pool2d_with_indices_backward",
    lambda g, x: aten.max_pool2d_with_indices_backward(
        g, x, [2, 2], [1, 1], [0, 0], [1, 1], False, functional.max_pool2d(x, 2, 1, return_indices=True)[1]
    ),
    n(1, 2, 2, 3),
    apart(1, 2, 3, 4),
)
sample(
    "max_pool3d_with_indices_backward",
    lambda g, x: aten.max_pool3d_with_indices_backward(
        g, x, [2] * 3, [1] * 3, [0] * 3, [1] * 3, False, functional.max_pool3d(x, 2, 1, return_indices=True)[1]
    ),
    n(1, 1, 2, 1, 2),
    apart(1, 1, 3, 2, 3),
)
sample(
    "adaptive_max_pool2d_backward",
    lambda g, x: aten.adaptive_max_pool2d_backward(
        g, x, functional.adaptive_max_pool2d(x, (2, 2), return_indices=True)[1]
    ),
    n(1, 2, 2, 2),
    apart(1, 2, 3, 4),
)
sample(
    "adaptive_max_pool3d_backward",
    lambda g, x: aten.adaptive_max_pool3d_backward(
        g, x, functional.adaptive_max_pool3d(x, (2, 1, 2), return_indices=True)[1]
    ),
    n(1, 1, 2, 1, 2),
    apart(1, 1, 3, 2, 3),
)
sample(
    "fractional_max_pool2d_backward",
    lambda g, x, s: aten.fractional_max_pool2d_backward(
        g, x, [2, 2], [2, 2], aten.fractional_max_pool2d(x, [2, 2], [2, 2], s)[1]
    ),
    n(1, 2, 2, 2),
    apart(1, 2, 4, 4),
    p(1, 2, 2, fixed=True),
)
sample(
    "fractional_max_pool3d_backward",
    lambda g, x, s: aten.fractional_max_pool3d_backward(
        g, x, [2] * 3, [2] * 3, aten.fractional_max_pool3d(x, [2] * 3, [2] * 3, s)[1]
    ),
    n(1, 1, 2, 2, 2),
    apart(1, 1, 4, 4, 4),
    p(1, 1, 3, fixed=True),
)
sample("max_unpool2d", lambda x, k: aten.max_unpool2d(x, k, [4, 4]), n(1, 1, 2, 2), i([[[0, 3], [9, 14]]]))
sample(
    "max_unpool3d",
    lambda x, k: aten.max_unpool3d(x, k, [2, 4, 4], [1, 2, 2], [0, 0, 0]),
    n(1, 1, 1, 2, 2),
    i([[[[0, 3], [9, 30]]]]),
)

# -- padding, resampling ------------------------------------------------------------------------------------------------------------

SIZES = {1: [4], 2: [3, 4], 3: [2, 3, 4]}
for kind in ("reflection", "replication"):
    for d in (1, 2, 3):
        name, pads = f"{kind}_pad{d}d", [1, 1] * d
        op, back = getattr(aten, name), getattr(aten, name + "_backward")
        grown = [s + 2 for s in SIZES[d]]
        sample(name, lambda x, op=op, pads=pads: op(x, pads), n(1, 2, *SIZES[d]))
        sample(name + "_backward", lambda g, x, op=back, pads=pads: op(g, x, pads), n(1, 2, *grown), n(1, 2, *SIZES[d]))
RESIZED = {1: [3], 2: [5, 3], 3: [3, 2, 5]}
for name, d, more in (
    *((f"{k}{d}d", d, ()) for k in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)),
    ("upsample_linear1d", 1, (True,)), ("upsample_bilinear2d", 2, (False,)), ("upsample_trilinear3d", 3, (False,)),
    ("upsample_bicubic2d", 2, (True,)), ("_upsample_bilinear2d_aa", 2, (False,)), ("_upsample_bicubic2d_aa", 2, (False,)),
    ("_upsample_lanczos2d_aa", 2, (False,)),
):  # fmt: skip
    op, back, size, full = getattr(aten, name), getattr(aten, name + "_backward"), RESIZED[d], [1, 2, *SIZES[d]]
    sample(name, lambda x, op=op, size=size, more=more: op(x, size, *more), n(*full))
    sample(
        name + "_backward", lambda g, op=back, size=size, full=full, more=more: op(g, size, full, *more), n(1, 2, *size)
    )
sample("im2col", lambda x: functional.unfold(x, 2, padding=1), n(1, 2, 3, 4))
sample("col2im", lambda x: functional.fold(x, (3, 4), 2), n(1, 4, 6))
sample("pixel_shuffle", lambda x: functional.pixel_shuffle(x, 2), n(1, 4, 2, 3))
sample("pixel_unshuffle", lambda x: functional.pixel_unshuffle(x, 2), n(1, 1, 4, 2))
each("channel_shuffle native_channel_shuffle", lambda op: lambda x: op(x, 2), n(1, 4, 2, 2))
GRID = p(1, 2, 3, 2, low=-0.9, high=0.9)
GRID3 = p(1, 2, 1, 2, 3, low=-0.9, high=0.9)
sample("grid_sampler_2d", lambda x, z: aten.grid_sampler_2d(x, z, 0, 0, False), n(1, 2, 3, 4), GRID)
sample(
    "_grid_sampler_2d_cpu_fallback",
    lambda x, z: aten._grid_sampler_2d_cpu_fallback(x.float(), z.float(), 0, 0, False),
    n(1, 2, 3, 4),
    GRID,
    values_only=True,
)
sample("grid_sampler_3d", lambda x, z: aten.grid_sampler_3d(x, z, 0, 1, True), n(1, 1, 2, 3, 4), GRID3)
sample(
    "grid_sampler_2d_backward",
    lambda g, x, z: aten.grid_sampler_2d_backward(g, x, z, 0, 0, False, [True, True]),
    n(1, 2, 2, 3),
    n(1, 2, 3, 4),
    GRID,
)
sample(
    "grid_sampler_3d_backward",
    lambda g, x, z: aten.grid_sampler_3d_backward(g, x, z, 0, 1, True, [True, True]),
    n(1, 1, 2, 1, 2),
    n(1, 1, 2, 3, 4),
    GRID3,
)

sample("affine_grid_generator", lambda t: aten.affine_grid_generator(t, [2, 1, 3, 2], False), n(2, 2, 3))

# -- fake quantisation: constant between steps, so that differences see nothing; the straight-through derivatives are in tests/ops --

BYTES = (0, 63)
sample(
    "fake_quantize_per_tensor_affine_cachemask",
    lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.07, 3, *BYTES),
    n(2, 3),
    values_only=True,
)
sample(
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    lambda x, s, z, on: aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, s.float(), z, on, *BYTES),
    n(2, 3),
    p(1, low=0.05, high=0.1, fixed=True),
    i(7),
    i(1),
    values_only=True,
)
sample(
    "fake_quantize_per_channel_affine_cachemask",
    lambda x, s, z: aten.fake_quantize_per_channel_affine_cachemask(x, s.float(), z.int(), 1, *BYTES),
    n(2, 3),
    p(3, low=0.05, high=0.1, fixed=True),
    i(7, 3, 9),
    values_only=True,
)
LEARNABLE = (n(2, 3), p(1, low=0.05, high=0.1), p(1, low=2, high=8))
LEARNABLE_CHANNELS = (n(2, 3), p(3, low=0.05, high=0.1), p(3, low=2, high=8))
sample(
    "_fake_quantize_learnable_per_tensor_affine",
    lambda x, s, z: aten._fake_quantize_learnable_per_tensor_affine(x, s.float(), z.float(), *BYTES, 0.5),
    *LEARNABLE,
    values_only=True,
)
sample(
    "_fake_quantize_learnable_per_channel_affine",
    lambda x, s, z: aten._fake_quantize_learnable_per_channel_affine(x, s.float(), z.float(), 1, *BYTES, 0.5),
    *LEARNABLE_CHANNELS,
    values_only=True,
)
sample(
    "_fake_quantize_learnable_per_tensor_affine_backward",
    lambda g, *a: aten._fake_quantize_learnable_per_tensor_affine_backward(g.float(), *(t.float() for t in a), *BYTES, 0.5),
    n(2, 3),
    *LEARNABLE,
    values_only=True,
)
sample(
    "_fake_quantize_learnable_per_channel_affine_backward",
    lambda g, *a: aten._fake_quantize_learnable_per_channel_affine_backward(
        g.float(), *(t.float() for t in a), 1, *BYTES, 0.5
    ),
    n(2, 3),
    *LEARNABLE_CHANNELS,
    values_only=True,
)
