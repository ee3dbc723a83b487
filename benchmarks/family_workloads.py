"""What is batched for each family of operators: functions of one example, at a batch of 64.

Sizes are those of one example in practice: vectors of some dozens, images of 16 × 16, sequences of 16. At such sizes the
loop's time is its calls, which is what a batching rule saves; decompositions of matrices, whose kernels loop themselves,
show how little is left to save.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .problem import Inputs, Size

F = torch.nn.functional
Tensor = torch.Tensor
BATCH = {"tiny": 3, "time": 64, "memory": 64}

Example = Callable[[Inputs, int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Workload:
    """A function of one example. ``batch(inputs, size)`` makes the stacked arguments, ``in_dims`` says which are.

    ``transforms``: "vmap" beside the loop of calls, "vmap(grad)" beside the loop of ``torch.autograd.grad`` of the sum
    of squares of the result in the first argument. ``build`` makes the function, where it has weights of its own.
    """

    family: str
    name: str
    build: Callable[[Inputs], Callable[..., Any]]
    batch: Example
    in_dims: int | tuple[int | None, ...] = 0
    transforms: tuple[str, ...] = ("vmap", "vmap(grad)")

    def arguments(self, size: Size) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
        """The function and its stacked arguments."""
        inputs = Inputs(size)
        return self.build(inputs), self.batch(inputs, BATCH[size])


def normals(*shapes: tuple[int, ...]) -> Example:
    """Normal draws, stacked."""
    return lambda inputs, count: tuple(inputs.normal(count, *shape) for shape in shapes)


def plain(function: Callable[..., Any]) -> Callable[[Inputs], Callable[..., Any]]:
    """A function without weights."""
    return lambda _: function


def of(family: str, **functions: tuple[Callable[..., Any], Example]) -> list[Workload]:
    """Workloads of functions without weights."""
    return [Workload(family, name.replace("_", " "), plain(f), batch) for name, (f, batch) in functions.items()]


def without_derivative(workloads: list[Workload]) -> list[Workload]:
    """The same, only called."""
    return [Workload(w.family, w.name, w.build, w.batch, w.in_dims, ("vmap",)) for w in workloads]


# -- one value at a time, reductions, places ---------------------------------------------------------------------------

VECTOR, TABLE = (64,), (16, 24)

ELEMENTWISE = of(
    "elementwise",
    arithmetic=(lambda x, y: x * y + x / (1 + y * y), normals(VECTOR, VECTOR)),
    gelu=(lambda x: F.gelu(x), normals(VECTOR)),
    clamp_and_where=(lambda x, y: torch.where(x > y, x.clamp(-1, 1), y), normals(VECTOR, VECTOR)),
    pow=(lambda x, y: (x.abs() + 1) ** y, normals(VECTOR, VECTOR)),
)

REDUCTIONS = of(
    "reductions",
    sum=(lambda x: x.sum(-1), normals(TABLE)),
    var=(lambda x: x.var(0), normals(TABLE)),
    logsumexp=(lambda x: x.logsumexp(1), normals(TABLE)),
    amax=(lambda x: x.amax((0, 1)), normals(TABLE)),
    vector_norm=(lambda x: torch.linalg.vector_norm(x, dim=1), normals(TABLE)),
    prod=(lambda x: x.prod(1), normals((4, 6))),
)

MOVEMENT = of(
    "movement",
    permute_and_reshape=(lambda x: x.transpose(0, 1).reshape(-1), normals(TABLE)),
    roll_and_flip=(lambda x: x.roll(3, 0).flip(1), normals(TABLE)),
    unfold=(lambda x: x.unfold(1, 6, 3), normals(TABLE)),
    as_strided=(lambda x: x.clone().as_strided((5, 4), (24, 2), 3), normals(TABLE)),
    diagonal=(lambda x: x.diagonal(), normals(TABLE)),
    pad=(lambda x: F.pad(x[None], (2, 1, 1, 2), mode="reflect"), normals(TABLE)),
    cat_and_stack=(lambda x, y: torch.cat([x, y, x]).tril(), normals(TABLE, TABLE)),
)


def with_places(high: int, *shape: int) -> Example:
    """A table, and whole numbers below ``high``."""
    return lambda inputs, count: (inputs.normal(count, *TABLE), inputs.classes(high, count, *shape))


INDEXING = of(
    "indexing and scatter",
    gather=(lambda x, i: x.gather(1, i), with_places(24, 16, 8)),
    index_select=(lambda x, i: x.index_select(0, i), with_places(16, 8)),
    index=(lambda x, i: x[i, 3:9], with_places(16, 8)),
    index_put=(lambda x, i: x.index_put((i,), x[:8] * 2, accumulate=True), with_places(16, 8)),
    scatter_add=(lambda x, i: x.scatter_add(1, i, x[:, :8] * 2), with_places(24, 16, 8)),
    index_add=(lambda x, i: x.index_add(0, i, x[:8] * 2), with_places(16, 8)),
    masked_fill=(lambda x, i: x.masked_fill(i > 4, 0.5), with_places(9, 16, 24)),
    embedding=(lambda x, i: F.embedding(i, x), with_places(16, 8)),
)

SORTING = of(
    "sorting",
    sort=(lambda x: x.sort(1)[0], normals(TABLE)),
    topk=(lambda x: x.topk(5, 1)[0], normals(TABLE)),
    median=(lambda x: x.median(1)[0], normals(TABLE)),
    kthvalue=(lambda x: x.kthvalue(7, 1)[0], normals(TABLE)),
    quantile=(lambda x: x.quantile(0.3, 1), normals(TABLE)),
) + without_derivative(of("sorting", searchsorted=(lambda x, y: torch.searchsorted(x.sort()[0], y), normals(VECTOR, (8,)))))

SCANS = of(
    "scans",
    cumsum=(lambda x: x.cumsum(1), normals(TABLE)),
    cumprod=(lambda x: x.cumprod(1), normals((6, 10))),
    logcumsumexp=(lambda x: x.logcumsumexp(1), normals(TABLE)),
    cummax=(lambda x: x.cummax(1)[0], normals(TABLE)),
)

# -- products and layers -----------------------------------------------------------------------------------------------

CONTRACTIONS = of(
    "contractions",
    dot=(torch.dot, normals(VECTOR, VECTOR)),
    mv=(torch.mv, normals((16, 24), (24,))),
    mm=(torch.mm, normals((16, 24), (24, 8))),
    addmm=(torch.addmm, normals((16, 8), (16, 24), (24, 8))),
    baddbmm=(torch.baddbmm, normals((3, 8, 8), (3, 8, 6), (3, 6, 8))),
    einsum=(lambda x, y: torch.einsum("ij,kj,k->i", x, y, y[:, 0]), normals((16, 24), (8, 24))),
)
SHARED = [
    Workload("contractions", "linear, shared weights", plain(F.linear), lambda i, n: (i.normal(n, 24), i.normal(8, 24)),
             (0, None))
]  # fmt: skip
CONTRACTIONS += SHARED

IMAGE = (3, 16, 16)


def conv_batch(*weight: int, each: bool) -> Example:
    """Images, and kernels: one for all or one each."""
    lead = lambda count: (count,) if each else ()
    return lambda inputs, count: (inputs.normal(count, 2, *IMAGE), inputs.normal(*lead(count), *weight, scale=0.3))


CONVOLUTIONS = [
    Workload("convolutions", "conv2d, shared weights", plain(lambda x, w: F.conv2d(x, w, padding=1)),
             conv_batch(4, 3, 3, 3, each=False), (0, None)),
    Workload("convolutions", "conv2d, a kernel each", plain(lambda x, w: F.conv2d(x, w, padding=1)),
             conv_batch(4, 3, 3, 3, each=True)),
    Workload("convolutions", "conv_transpose2d, shared weights", plain(lambda x, w: F.conv_transpose2d(x, w, stride=2)),
             conv_batch(3, 4, 3, 3, each=False), (0, None)),
    Workload("convolutions", "conv1d, a kernel each", plain(lambda x, w: F.conv1d(x[0], w)),
             conv_batch(4, 16, 5, each=True)),
]  # fmt: skip


def normed(function: Callable[..., Any], *shape: int) -> Callable[[Inputs], Callable[..., Any]]:
    """A norm with a weight and a bias."""

    def build(inputs: Inputs) -> Callable[..., Any]:
        weight, bias = inputs.normal(*shape), inputs.normal(*shape)
        return lambda x: function(x, weight, bias)

    return build


NORMS = [
    Workload("norms", "layer_norm", normed(lambda x, w, b: F.layer_norm(x, (24,), w, b), 24), normals(TABLE)),
    Workload("norms", "group_norm", normed(lambda x, w, b: F.group_norm(x, 2, w, b), 4), normals((2, 4, 8, 8))),
    Workload("norms", "instance_norm", normed(lambda x, w, b: F.instance_norm(x, None, None, w, b), 4),
             normals((2, 4, 8, 8))),
    Workload("norms", "batch_norm", normed(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), 4),
             normals((8, 4, 6, 6))),
    Workload("norms", "rms_norm", plain(lambda x: F.rms_norm(x, (24,))), normals(TABLE)),
    Workload("norms", "softmax", plain(lambda x: F.softmax(x, 1)), normals(TABLE)),
]  # fmt: skip

POOLING = of(
    "pooling",
    max_pool2d=(lambda x: F.max_pool2d(x, 2), normals((2, *IMAGE))),
    avg_pool2d=(lambda x: F.avg_pool2d(x, 3, 2, 1), normals((2, *IMAGE))),
    adaptive_avg_pool2d=(lambda x: F.adaptive_avg_pool2d(x, 5), normals((2, *IMAGE))),
    adaptive_max_pool2d=(lambda x: F.adaptive_max_pool2d(x, 5), normals((2, *IMAGE))),
    max_pool1d=(lambda x: F.max_pool1d(x, 3), normals(TABLE)),
)

INTERPOLATION = of(
    "interpolation",
    bilinear=(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normals((1, 3, 8, 8))),
    nearest=(lambda x: F.interpolate(x, size=(11, 13), mode="nearest"), normals((1, 3, 8, 8))),
    bicubic=(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), normals((1, 3, 8, 8))),
    grid_sample=(
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        normals((1, 3, 8, 8), (1, 6, 6, 2)),
    ),
)


def classified(inputs: Inputs, count: int) -> tuple[Tensor, Tensor]:
    """Scores of 8 rows for 10 classes, and the right ones."""
    return inputs.normal(count, 8, 10), inputs.classes(10, count, 8)


def spoken(inputs: Inputs, count: int) -> tuple[Tensor, Tensor]:
    """Scores of 12 steps of 2 sequences for 6 letters, and 4 letters each."""
    return inputs.normal(count, 12, 2, 6), 1 + inputs.classes(5, count, 2, 4)


STEPS, LETTERS = torch.tensor([12, 10]), torch.tensor([4, 3])

LOSSES = of(
    "losses",
    cross_entropy=(F.cross_entropy, classified),
    smooth_l1=(F.smooth_l1_loss, normals(TABLE, TABLE)),
    binary_cross_entropy=(lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), normals(TABLE, TABLE)),
    multi_margin=(F.multi_margin_loss, classified),
    cosine_embedding=(lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(16, dtype=x.dtype)), normals(TABLE, TABLE)),
    ctc=(lambda x, t: F.ctc_loss(x.log_softmax(-1), t, STEPS, LETTERS), spoken),
)

# -- sequences ---------------------------------------------------------------------------------------------------------

HEADS = (2, 16, 8)


def multihead(inputs: Inputs) -> Callable[[Tensor], Tensor]:
    """Self-attention of 16 tokens of 16 features."""
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).to(inputs.dtype).eval()
    return lambda x: layer(x, x, x, need_weights=False)[0]


ATTENTION = [
    *of(
        "attention",
        full=(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), normals(HEADS, HEADS, HEADS)),
        causal=(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), normals(HEADS, HEADS, HEADS)),
    ),
    Workload("attention", "MultiheadAttention", multihead, normals((2, 16, 16))),
]


def recurrent(kind: type[torch.nn.RNNBase]) -> Callable[[Inputs], Callable[[Tensor], Tensor]]:
    """A layer of 16 units over 16 steps."""

    def build(inputs: Inputs) -> Callable[[Tensor], Tensor]:
        torch.manual_seed(0)
        layer = kind(8, 16, batch_first=True).to(inputs.dtype)
        return lambda x: layer(x)[0]

    return build


def cell(inputs: Inputs) -> Callable[..., Tensor]:
    """One step of an LSTM."""
    torch.manual_seed(0)
    layer = torch.nn.LSTMCell(8, 16).to(inputs.dtype)
    return lambda x, h, c: layer(x, (h, c))[0]


RECURRENT = [
    Workload("recurrent", "LSTM", recurrent(torch.nn.LSTM), normals((1, 16, 8))),
    Workload("recurrent", "GRU", recurrent(torch.nn.GRU), normals((1, 16, 8))),
    Workload("recurrent", "RNN", recurrent(torch.nn.RNN), normals((1, 16, 8))),
    Workload("recurrent", "LSTMCell", cell, normals((4, 8), (4, 16), (4, 16))),
]

# -- matrices, spectra -------------------------------------------------------------------------------------------------


def spread_out(inputs: Inputs, count: int) -> tuple[Tensor, Tensor]:
    """Positive definite matrices of eigenvalues well apart, and vectors."""
    q = torch.linalg.qr(inputs.normal(count, 8, 8))[0]
    values = torch.arange(1.0, 9.0, dtype=inputs.dtype)
    return (q * values) @ q.mT, inputs.normal(count, 8)


LINALG = of(
    "linear algebra",
    solve=(torch.linalg.solve, spread_out),
    inv=(lambda a, _: torch.linalg.inv(a), spread_out),
    det=(lambda a, _: torch.linalg.det(a), spread_out),
    slogdet=(lambda a, _: torch.linalg.slogdet(a)[1], spread_out),
    cholesky=(lambda a, _: torch.linalg.cholesky(a), spread_out),
    qr=(lambda a, _: torch.linalg.qr(a)[1], spread_out),
    eigvalsh=(lambda a, _: torch.linalg.eigvalsh(a), spread_out),
    svdvals=(lambda a, _: torch.linalg.svdvals(a), spread_out),
    matrix_exp=(lambda a, _: torch.linalg.matrix_exp(a / 8), spread_out),
)

FOURIER = of(
    "fft",
    rfft=(lambda x: torch.fft.rfft(x).abs(), normals(VECTOR)),
    fft2=(lambda x: torch.fft.fft2(x).real, normals(TABLE)),
    irfft=(lambda x: torch.fft.irfft(x), normals((33,))),
    stft=(lambda x: torch.stft(x, 16, window=torch.ones(16, dtype=x.dtype), return_complex=True).abs(), normals(VECTOR)),
)

COMPLEX = of(
    "complex",
    product=(lambda x, y: (torch.complex(x, y) * torch.complex(y, x)).real, normals(VECTOR, VECTOR)),
    polar=(lambda x, y: torch.angle(torch.polar(x.abs() + 1, y).conj()), normals(VECTOR, VECTOR)),
    exp=(lambda x, y: torch.view_as_real(torch.complex(x, y).exp()), normals(VECTOR, VECTOR)),
)

WORKLOADS = (
    *ELEMENTWISE, *REDUCTIONS, *MOVEMENT, *INDEXING, *SORTING, *SCANS, *CONTRACTIONS, *CONVOLUTIONS, *NORMS, *POOLING,
    *INTERPOLATION, *LOSSES, *ATTENTION, *RECURRENT, *LINALG, *FOURIER, *COMPLEX,
)  # fmt: skip
