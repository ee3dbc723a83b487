"""Products, convolutions and losses by their short ways are those of the loop over lanes; so are the gradients a lane."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import pushforward as pf

B, N, M, K = 3, 4, 5, 2


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def loop(f, in_dims, *args):
    return torch.stack([f(*[a[k] if d == 0 else a for a, d in zip(args, in_dims, strict=True)]) for k in range(B)])


PRODUCTS = [
    (torch.matmul, (M,), (M,)),
    (torch.matmul, (M,), (M, K)),
    (torch.matmul, (N, M), (M,)),
    (torch.matmul, (N, M), (M, K)),
    (torch.matmul, (2, N, M), (M, K)),
    (torch.matmul, (N, M), (2, M, K)),
    (torch.matmul, (2, N, M), (M,)),
    (torch.mv, (N, M), (M,)),
    (torch.mm, (N, M), (M, K)),
    (torch.dot, (M,), (M,)),
    (lambda a, b: a @ b, (M,), (M, K)),
    (lambda a, b: a.T @ b, (M, N), (M, K)),
    (lambda a, b: a @ b.mT, (N, M), (K, M)),
    (lambda a, b: a.t().mv(b), (M, N), (M,)),
]


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda c: f"{getattr(c[0], '__name__', '')} {c[1]} {c[2]}")
def test_products(case, dims):
    f, first, second = case
    a = normal(*(B,) * (dims[0] == 0), *first)
    b = normal(*(B,) * (dims[1] == 0), *second)
    torch.testing.assert_close(pf.vmap(f, dims)(a, b), loop(f, dims, a, b))
    for argnum in (0, 1):  # with (0, None) by the second: a gradient a lane of what all lanes share

        def score(a, b):
            return f(a, b).sin().sum()

        got = pf.vmap(pf.grad(score, argnum), dims)(a, b)
        torch.testing.assert_close(got, loop(pf.grad(score, argnum), dims, a, b))
    got = pf.vmap(lambda a, b: pf.jvp(f, (a, b), (b.new_ones(a.shape), b))[1], dims)(a, b)
    torch.testing.assert_close(got, loop(lambda a, b: f(torch.ones_like(a), b) + f(a, b), dims, a, b))


@pytest.mark.parametrize(
    "case",
    [
        (torch.mv, (M,), (M,)),
        (torch.mm, (N, M), (M,)),
        (torch.dot, (N, M), (M,)),
        (torch.matmul, (N, M), (N, M)),
        (torch.matmul, (M,), (N,)),
    ],
    ids=lambda c: f"{c[0].__name__} {c[1]} {c[2]}",
)
def test_products_that_are_errors_for_a_lane(case):
    f, first, second = case
    a, b = normal(B, *first), normal(B, *second)
    with pytest.raises(RuntimeError):
        f(a[0], b[0])
    with pytest.raises(RuntimeError):
        pf.vmap(f)(a, b)


def test_products_of_other_dtypes():
    a, b = normal(B, N, M), normal(B, M)
    with pytest.raises(RuntimeError):
        pf.vmap(torch.mv)(a, b.float())
    whole = torch.arange(B * N * M).reshape(B, N, M)
    assert torch.equal(pf.vmap(torch.matmul)(whole, whole.mT), torch.matmul(whole, whole.mT))
    z = torch.complex(a, a.flip(0))
    torch.testing.assert_close(pf.vmap(lambda z: z.mH @ z)(z), torch.stack([v.mH @ v for v in z]))


CONVOLUTIONS = list(
    itertools.product((1, 2), (None, 2), ({}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}))
)


@pytest.mark.parametrize("dims", [(0, None, None), (0, 0, 0)], ids=["one weight", "a weight each"])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_and_a_gradient_a_lane(case, dims):
    spatial, samples, options = case
    conv = F.conv1d if spatial == 1 else F.conv2d
    groups = options.get("groups", 1)
    x = normal(B, *([samples] if samples else []), 4, *[8] * spatial)
    lanes = (B,) if dims[1] == 0 else ()
    w, b = normal(*lanes, 6, 4 // groups, *[3] * spatial), normal(*lanes, 6)

    def score(x, w, b):
        return conv(x, w, b, **options).sin().sum()

    for argnums in ((0,), (1, 2), (0, 1, 2)):
        got = pf.vmap(pf.grad(score, argnums), dims)(x, w, b)
        for g, k in zip(got, argnums, strict=True):
            torch.testing.assert_close(g, loop(pf.grad(score, k), dims, x, w, b))
    got = pf.vmap(pf.grad(lambda w: score(x[0], w, None)))(normal(B, *w.shape[-2 - spatial :]))
    want = [pf.grad(lambda w: score(x[0], w, None))(v) for v in normal(B, *w.shape[-2 - spatial :])]
    torch.testing.assert_close(got, torch.stack(want))


def test_convolutions_that_are_errors_for_a_lane():
    x, w = normal(B, 4, 8, 8), normal(B, 6, 3, 3, 3)
    for weight, bias in ((w, None), (normal(B, 6, 4, 3, 3).float(), None), (normal(B, 6, 4, 3, 3), normal(B, 5))):
        with pytest.raises(RuntimeError):
            pf.vmap(F.conv2d, (0, 0, None if bias is None else 0))(x, weight, bias)


LOSSES = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 1},
    {"ignore_index": 1, "reduction": "sum"},
    {"label_smoothing": 0.1},
    {"weight": torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)},
]


@pytest.mark.parametrize("samples", [(), (4,)])
@pytest.mark.parametrize("options", LOSSES, ids=lambda o: " ".join(map(str, o)))
def test_cross_entropy(options, samples):
    x = normal(B, *samples, 3)
    t = torch.randint(3, (B, *samples), generator=torch.Generator().manual_seed(1))
    t.view(B, -1)[0] = 1  # ignored as a whole: the mean of nothing

    def loss(x, t):
        return F.cross_entropy(x, t, **options)

    torch.testing.assert_close(pf.vmap(loss)(x, t), loop(loss, (0, 0), x, t), equal_nan=True)

    def score(x, t):
        return loss(x * x, t).sum()

    got = pf.vmap(pf.grad(score))(x, t)
    torch.testing.assert_close(got, loop(pf.grad(score), (0, 0), x, t), equal_nan=True)
