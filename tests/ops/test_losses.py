"""Losses, distances, activations and softmax: every mapped argument and every composition to second order."""

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted
from tests.ops.subsets import check_no_lanes, check_subsets

F = torch.nn.functional
D = torch.float64
REDUCTIONS = ("none", "mean", "sum")


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


T = real(3, 4, seed=1)
P = torch.rand(3, 4, generator=torch.Generator().manual_seed(2), dtype=D) * 0.8 + 0.1
SIGNS = real(3, 4, seed=4).sign()
CLASSES = torch.tensor([1, 3, 0])
LABELS = torch.tensor([[1, 3, -1, 0], [0, -1, 2, 1], [-1, 0, 1, 2]])
W = torch.rand(4, generator=torch.Generator().manual_seed(3), dtype=D) + 0.5

LOSSES = {
    "mse": (lambda x, t, r: F.mse_loss(x, t, reduction=r), T),
    "l1": (lambda x, t, r: F.l1_loss(x, t, reduction=r), T),
    "smooth_l1": (lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.7), T),
    "huber": (lambda x, t, r: F.huber_loss(x, t, reduction=r, delta=0.7), T),
    "soft_margin": (lambda x, t, r: F.soft_margin_loss(x, t, reduction=r), SIGNS),
    "bce": (lambda x, t, r: F.binary_cross_entropy(x.sigmoid(), t, W, reduction=r), P),
    "bce with logits": (lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, W, reduction=r, pos_weight=W), P),
    "kl_div": (lambda x, t, r: F.kl_div(x.log_softmax(1), t, reduction=r), P),
    "poisson": (lambda x, t, r: F.poisson_nll_loss(x, t, reduction=r), P),
    "gaussian": (lambda x, t, r: F.gaussian_nll_loss(x, t, P, reduction=r), T),
    "nll": (lambda x, t, r: F.nll_loss(x, t, W, ignore_index=3, reduction=r), CLASSES),
    "cross entropy": (lambda x, t, r: F.cross_entropy(x, t, W, reduction=r, label_smoothing=0.1), CLASSES),
    "cross entropy of probabilities": (lambda x, t, r: F.cross_entropy(x, t, W, reduction=r), P),
    "multi_margin": (lambda x, t, r: F.multi_margin_loss(x, t, p=2, weight=W, reduction=r), CLASSES),
    "multilabel_margin": (lambda x, t, r: F.multilabel_margin_loss(x, t, reduction=r), LABELS),
    "multilabel_soft_margin": (lambda x, t, r: F.multilabel_soft_margin_loss(x, t, W, reduction=r), SIGNS > 0),
    "triplet": (lambda x, t, r: F.triplet_margin_loss(x, t, P, reduction=r), T),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses(name, reduction):
    loss, t = LOSSES[name]
    t = t.to(D) if t.dtype is torch.bool else t
    check_subsets(lambda x, t: loss(x, t, reduction), real(3, 4), t, sizes=(2,))
    check_subsets(pf.grad(lambda x, t: weighted(loss(x, t, reduction))), real(3, 4), t, sizes=(2,), tolerance=1e-10)
    check_no_lanes(lambda x: loss(x, t, reduction), real(3, 4))
    if reduction != "sum":
        check_orders(lambda x: weighted(loss(x, t, reduction)), real(3, 4))


def test_losses_of_positions_and_of_one_sample():
    target = torch.tensor([[0, 1], [2, -100], [1, 1]])
    for reduction in REDUCTIONS:
        f = lambda x, t, r=reduction: F.nll_loss(x, t, reduction=r)
        check_subsets(f, real(3, 4, 2), target, sizes=(2,))
        check_subsets(f, real(4), torch.tensor(2), sizes=(2,))
        check_subsets(pf.grad(lambda x, t, f=f: weighted(f(x, t))), real(3, 4, 2), target, sizes=(2,))
        margin = lambda x, t, r=reduction: F.multi_margin_loss(x, t, reduction=r)
        for target_of_one in (torch.tensor(2), torch.tensor([2])):
            check_subsets(margin, real(4), target_of_one, sizes=(2,))
            check_subsets(margin, real(), target_of_one * 0, sizes=(2,))
        labels = torch.tensor([2, 0, -1, 1])
        check_subsets(lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r), real(4), labels, sizes=(2,))


def test_a_weight_that_moves():
    """The weights of classes have tangents too."""
    scores, v, h = real(3, 4).log_softmax(1), real(4, seed=9), 1e-6
    for reduction in REDUCTIONS:
        f = lambda w, r=reduction: F.nll_loss(scores, CLASSES, w, reduction=r)
        torch.testing.assert_close(
            pf.jvp(f, (W,), (v,))[1], (f(W + h * v) - f(W - h * v)) / (2 * h), rtol=1e-6, atol=1e-8
        )


def test_chunked_cross_entropy():
    """The chunked form keeps its gradients as constants; under a transform the plain one stands for it."""
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    options = LinearCrossEntropyOptions(batch_chunk_size=2)
    w = real(4, 5, seed=3)
    check_orders(lambda x: F.linear_cross_entropy(x, w, CLASSES, options=options), real(3, 5))


def test_ctc():
    targets, spans, counts = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([5, 4]), torch.tensor([3, 2])

    def f(x, r="sum"):
        return F.ctc_loss(x.log_softmax(2), targets, spans, counts, reduction=r)

    x = real(5, 2, 4)
    check_subsets(lambda x: f(x, "none"), x)
    check_subsets(pf.grad(f), x, tolerance=1e-10)
    check_orders(f, x)
    check_orders(lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([1, 2, 3]), (5, 4), (2, 1)), x)


def test_ctc_of_targets_that_do_not_fit():
    """An infinite loss has no gradient where it is set to zero, in every mode."""
    x = real(2, 1, 4)
    f = lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([[1, 1, 1]]), (2,), (3,), zero_infinity=True)
    assert f(x) == 0
    assert pf.jvp(f, (x,), (x,))[1] == 0
    assert pf.jvp(pf.grad(f), (x,), (x,))[1].abs().max() == 0


DISTANCES = (0.0, 0.5, 1.0, 1.7, 2.0, 3.0, float("inf"))


@pytest.mark.parametrize("p", DISTANCES)
def test_distances(p):
    x, y = real(2, 3, 4), real(5, 4, seed=1)
    check_subsets(lambda a, b: torch.cdist(a, b, p), x, y, sizes=(2,))
    check_subsets(lambda a: F.pdist(a, p), y, sizes=(2,))
    if p:
        check_subsets(
            pf.grad(lambda a, b: weighted(torch.cdist(a, b, p)), argnums=(0, 1)), x, y, sizes=(2,), tolerance=1e-10
        )
        check_orders(lambda z: weighted(torch.cdist(z, y, p)) + weighted(F.pdist(z, p)), real(3, 4))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_points_that_meet(p):
    """At distance 0 nothing is infinite, and forward and reverse agree."""
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], dtype=D)
    v = real(3, 2)
    for f in (lambda z: torch.cdist(z, z, p), lambda z: F.pdist(z, p)):
        g = lambda z, f=f: weighted(f(z))
        tangent = pf.jvp(g, (x,), (v,))[1]
        assert tangent.isfinite()
        torch.testing.assert_close(tangent, (pf.grad(g)(x) * v).sum())
        assert pf.jvp(pf.grad(g), (x,), (v,))[1].isfinite().all()


ACTIVATIONS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "softmin": lambda x: F.softmin(x, 1),
    "glu": lambda x: F.glu(x, 1),
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 2, 1),
    "hardtanh": F.hardtanh,
    "hardsigmoid": lambda x: F.hardsigmoid(3 * x),
    "hardswish": lambda x: F.hardswish(3 * x),
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "rrelu in evaluation": lambda x: F.rrelu(x, training=False),
    "prelu": lambda x: F.prelu(x, x[0].cos()),
    "logit": lambda x: torch.logit(x.sigmoid(), 0.01),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    f = ACTIVATIONS[name]
    check_subsets(f, real(3, 4))
    check_subsets(pf.grad(lambda x: weighted(f(x))), real(3, 4))
    check_no_lanes(f, real(3, 4))
    check_orders(lambda x: weighted(f(x)), real(3, 4))


def test_complex_activations():
    z = torch.complex(real(3, 4), real(3, 4, seed=1))
    for f in (torch.sigmoid, torch.tanh):
        check_orders(lambda x, f=f: weighted(f(x)), z)


def test_straight_through_choice():
    """A hard Gumbel choice has the tangent of the soft one: its own `.detach()` is honoured."""

    def f(x, hard):
        torch.manual_seed(0)
        return F.gumbel_softmax(x, hard=hard)

    x, v = real(3, 4), real(3, 4, seed=1)
    hard, tangent = pf.jvp(lambda z: f(z, True), (x,), (v,))
    torch.testing.assert_close(hard, f(x, True))
    torch.testing.assert_close(tangent, pf.jvp(lambda z: f(z, False), (x,), (v,))[1])
    expected = torch.autograd.grad(weighted(f(x.requires_grad_(), True)), x)[0]
    torch.testing.assert_close(pf.grad(lambda z: weighted(f(z, True)))(x.detach()), expected)


@pytest.mark.parametrize("name", ["dropout", "native", "rrelu", "alpha"])
def test_draws_are_shared_by_value_and_tangent(name):
    """f is linear between its draws, so a difference is exact."""
    draw = {
        "dropout": lambda x: F.dropout(x, 0.5),
        "native": lambda x: torch.native_dropout(x, 0.5, True)[0],
        "rrelu": lambda x: F.rrelu(x, training=True),
        "alpha": lambda x: F.alpha_dropout(x, 0.5, training=True),
    }[name]

    def f(x):
        torch.manual_seed(0)
        return draw(x)

    x = real(3, 4)
    value, tangent = pf.jvp(f, (x,), (x,))
    torch.testing.assert_close(value, f(x))
    torch.testing.assert_close(tangent, (f(x * 1.5) - f(x * 0.5)))
    square = pf.grad(lambda z: (pf.jvp(f, (z,), (x,))[1] * z).sum())(x)
    torch.testing.assert_close(square, tangent)


def test_draws_under_vmap():
    """Nothing is drawn in evaluation; "different" draws for each lane."""
    x = torch.ones(3, 50, dtype=D)
    for f in (
        lambda z, train: torch.native_dropout(z, 0.5, train)[0],
        lambda z, train: F.rrelu(-z, training=train),
    ):
        assert pf.vmap(lambda z, f=f: f(z, False))(x).shape == x.shape
        with pytest.raises(pf.RandomnessError):
            pf.vmap(lambda z, f=f: f(z, True))(x)
        rows = pf.vmap(lambda z, f=f: f(z, True), randomness="different")(x)
        assert not torch.equal(rows[0], rows[1])
        same = pf.vmap(lambda z, f=f: f(z, True), randomness="same")(x)
        assert torch.equal(same[0], same[1])
