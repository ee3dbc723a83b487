"""Convolution, pooling, padding, interpolation, patches and sampling: every mapped argument and every composition."""

import pytest
import torch

import pushforward as pf
from tests.ops.orders import check_orders, weighted
from tests.ops.subsets import check_no_lanes, check_subsets

F = torch.nn.functional
D = torch.float64


def real(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


CONVOLUTIONS = {
    "1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), (2, 3, 5), (4, 3, 3), (4,)),
    "one sample": (lambda x, w, b: F.conv1d(x, w, b), (3, 5), (4, 3, 3), (4,)),
    "2d with stride and dilation": (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 2), (1, 2, 6, 5), (3, 2, 2, 3), (3,)),
    "groups": (lambda x, w, b: F.conv2d(x, w, b, groups=2), (2, 4, 4, 3), (6, 2, 2, 2), (6,)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), (2, 3, 3, 2), (3, 2, 3, 3), (2,)),
    "transposed groups": (lambda x, w, b: F.conv_transpose1d(x, w, b, groups=2), (2, 4, 3), (4, 1, 2), (2,)),
    "3d without bias": (lambda x, w, b: F.conv3d(x, w) * b.sum(), (1, 2, 3, 3, 2), (2, 2, 2, 2, 1), (1,)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_subsets(name):
    f, *shapes = CONVOLUTIONS[name]
    args = [real(*s, seed=k) for k, s in enumerate(shapes)]
    check_subsets(f, *args, sizes=(3,))
    check_subsets(pf.grad(lambda *a: weighted(f(*a)), argnums=(0, 1, 2)), *args, sizes=(2,), tolerance=1e-10)
    check_no_lanes(f, *args)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_orders(name):
    f, *shapes = CONVOLUTIONS[name]
    sizes = [torch.Size(s).numel() for s in shapes]

    def scalar(z):
        return weighted(f(*(p.reshape(s) for p, s in zip(z.split(sizes), shapes, strict=True))))

    check_orders(scalar, real(sum(sizes)))


def test_per_sample_gradients_of_a_network():
    """Convolution, group norm and pooling together, per sample."""
    layers = (
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
    )
    net = torch.nn.Sequential(*layers).double()
    parameters, xs = dict(net.named_parameters()), real(3, 2, 6, 6)

    def loss(p, x):
        return weighted(pf.functional_call(net, p, (x[None],)))

    got = pf.vmap(pf.grad(loss), in_dims=(None, 0))(parameters, xs)
    for lane, x in enumerate(xs):
        for key, value in pf.grad(loss)(parameters, x).items():
            torch.testing.assert_close(got[key][lane], value)


SAMPLES = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0), dtype=D)
IMAGES = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 2, 1, 1), (2, 3, 5)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), (2, 3, 5, 4)),
    "max_pool2d of one sample": (lambda x: F.max_pool2d(x, 2, dilation=2), (3, 5, 4)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 4, 2, 3)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 2), (2, 3, 5)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 5, 4)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (2, 2, 4, 2, 3)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2.0, 2), (2, 3, 4, 4)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (2, 3, 5, 4)),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), (2, 3, 5, 4)),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), (2, 3, 5)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (2, 3, 5, 4)),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)), (2, 3, 5, 4)),
    "fractional_max_pool2d": (
        lambda x: F.fractional_max_pool2d(x, 2, output_size=(3, 2), _random_samples=SAMPLES.to(x)),
        (2, 3, 5, 4),
    ),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 4, 4)),
    "reflection_pad1d": (lambda x: F.pad(x, (1, 2), "reflect"), (2, 3, 4)),
    "reflection_pad3d": (lambda x: F.pad(x, (1, 1, 0, 1, 1, 0), "reflect"), (1, 2, 3, 2, 3)),
    "replication_pad2d": (lambda x: F.pad(x, (1, 2, 0, 1), "replicate"), (2, 3, 3, 4)),
    "replication_pad2d of one sample": (lambda x: F.pad(x, (1, 2, 0, 1), "replicate"), (3, 3, 4)),
    "circular": (lambda x: F.pad(x, (1, 2), "circular"), (2, 3, 4)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=1.7), (2, 3, 4)),
    "nearest-exact": (lambda x: F.interpolate(x, (5, 3), mode="nearest-exact"), (2, 3, 4, 4)),
    "linear": (lambda x: F.interpolate(x, 7, mode="linear"), (2, 3, 4)),
    "bilinear": (lambda x: F.interpolate(x, (5, 3), mode="bilinear", align_corners=True), (2, 3, 4, 4)),
    "bilinear without aliasing": (lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True), (2, 3, 4, 4)),
    "bicubic": (lambda x: F.interpolate(x, (5, 3), mode="bicubic"), (2, 3, 4, 4)),
    "trilinear": (lambda x: F.interpolate(x, (3, 5, 2), mode="trilinear"), (1, 2, 2, 3, 4)),
    "unfold": (lambda x: F.unfold(x, 2, padding=1), (2, 3, 3, 4)),
    "fold": (lambda x: F.fold(x, (3, 4), 2), (2, 12, 6)),
    "fold of one sample": (lambda x: F.fold(x, (3, 4), 2), (12, 6)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (2, 8, 2, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 2, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (2, 4, 2, 3)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    f, shape = IMAGES[name]
    x = real(*shape)
    check_subsets(f, x)
    check_subsets(pf.grad(lambda z: weighted(f(z))), x, sizes=(2,))
    check_no_lanes(f, x)
    check_orders(lambda z: weighted(f(z)), x)


def test_ties_of_a_maximum():
    """Forward and reverse mode agree on the element that takes the derivative."""
    x, v = torch.ones(1, 1, 4, dtype=D), real(1, 1, 4)
    for pool in (lambda z: F.max_pool1d(z, 2), lambda z: F.adaptive_max_pool1d(z, 2)):
        tangent = pf.jvp(pool, (x,), (v,))[1]
        rows = [pf.grad(lambda z, k=k, pool=pool: pool(z)[0, 0, k])(x) for k in range(2)]
        torch.testing.assert_close(tangent.flatten(), torch.stack([(r * v).sum() for r in rows]))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("corners", [False, True])
def test_sampling_on_a_grid(mode, padding, corners):
    """Values of the written-out interpolation are the kernel's, and so are the derivatives by image and grid."""
    image, grid = real(2, 3, 4, 5), real(2, 3, 2, 2, seed=1) * 0.8

    def f(x, g):
        return F.grid_sample(x, g, mode, padding, corners)

    torch.testing.assert_close(pf.jvp(f, (image, grid), (image, grid))[0], f(image, grid))
    check_subsets(f, image, grid, sizes=(2,))
    check_subsets(pf.grad(lambda *a: weighted(f(*a)), argnums=(0, 1)), image, grid, sizes=(2,), tolerance=1e-10)
    check_orders(lambda x: weighted(f(x[:, :3], x[:, 3, :3, 2:4].reshape(2, 3, 1, 2) * 0.8)), real(2, 4, 4, 5, seed=2))


def test_sampling_a_volume():
    image, grid = real(1, 2, 3, 4, 3), real(1, 2, 2, 3, 3, seed=1) * 0.6

    def f(x, g):
        return F.grid_sample(x, g, align_corners=False)

    check_subsets(f, image, grid, sizes=(2,))
    check_orders(lambda g: weighted(f(image, g)), grid)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_one_weight_for_all_lanes(name):
    """Per-sample gradients by shared parameters, and the derivative of what is made of them."""
    f, *shapes = CONVOLUTIONS[name]
    x, w, b = (real(*s, seed=k) for k, s in enumerate(shapes))
    xs = torch.stack([x, 0.5 * x, x.cos()])
    per_sample = pf.grad(lambda p, x: weighted(f(x, *p)))

    def total(p, gradients):
        return sum((g**2).sum() for g in gradients(p))

    mapped = lambda p: pf.vmap(per_sample, in_dims=(None, 0))(p, xs)
    looped = lambda p: [torch.stack(c) for c in zip(*[per_sample(p, one) for one in xs], strict=True)]
    for got, expected in zip(mapped((w, b)), looped((w, b)), strict=True):
        torch.testing.assert_close(got, expected)
    again = pf.grad(lambda p: total(p, mapped))((w, b))
    for got, expected in zip(again, pf.grad(lambda p: total(p, looped))((w, b)), strict=True):
        torch.testing.assert_close(got, expected)
    leaves = [w.clone().requires_grad_(), b.clone().requires_grad_()]
    outer = torch.autograd.grad(total(tuple(leaves), mapped), leaves)
    for got, expected in zip(again, outer, strict=True):
        torch.testing.assert_close(got, expected)
