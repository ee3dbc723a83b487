"""What torch refuses for one lane, `vmap` refuses for all of them: weights, masks and sources of a wrong shape."""

import itertools

import pytest
import torch

import pushforward as pf

F = torch.nn.functional
D = torch.float64


def real(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=D)


def places(x):
    return (x * 0).long()


IMAGE, KERNEL, UP = real(1, 3, 5, 5), real(4, 3, 2, 2), real(3, 4, 2, 2)
CLASSES, ROWS = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
conv = lambda x, w, b: F.conv2d(x, w, b)
up = lambda x, w, b: F.conv_transpose2d(x, w, b)
statistics = lambda x, m: F.batch_norm(x, m, m.abs())
weighted = lambda x, w: F.batch_norm(x, None, None, w, None, training=True)
layer = lambda x, w: F.layer_norm(x, (4,), w)
shifted = lambda x, b: F.layer_norm(x, (4,), None, b)
strided = lambda x, s: torch.as_strided_scatter(x, s, (2, 2), (2, 1))
kernels = torch._C._nn

REFUSED = {
    "a bias of two dimensions": (conv, IMAGE, KERNEL, real(1, 4)),
    "a bias without dimensions": (conv, IMAGE, KERNEL, real()),
    "a bias of one number": (conv, IMAGE, KERNEL, real(1)),
    "a bias of the other way": (up, IMAGE, UP, real(1)),
    "running statistics": (statistics, real(3, 4, 2), real(1, 4)),
    "weights of batch_norm": (weighted, real(3, 4, 2), real(2)),
    "weights of layer_norm, 1": (layer, real(3, 4), real(1, 4)),
    "weights of layer_norm, 2": (layer, real(3, 4), real(1)),
    "weights of layer_norm, 3": (layer, real(3, 4), real()),
    "shift of layer_norm": (shifted, real(3, 4), real(3, 4)),
    "source of as_strided_scatter, 1": (strided, real(6), real(2)),
    "source of as_strided_scatter, 2": (strided, real(6), real(1, 2, 2)),
    "weights of classes": (lambda x, w: F.nll_loss(x, CLASSES, w), real(3, 4), real(5)),
    "weights of margins": (lambda x, w: F.multi_margin_loss(x, CLASSES, weight=w), real(3, 4), real(5)),
    "target of soft_margin_loss": (lambda x, t: kernels.soft_margin_loss(x, t), real(3, 4), real(3)),
    "target of binary_cross_entropy": (
        lambda x, t: kernels.binary_cross_entropy(x.sigmoid(), t.sigmoid()), real(3, 4), real(3, 1)),
    "weight of binary_cross_entropy": (
        lambda x, w: kernels.binary_cross_entropy(x.sigmoid(), x.sigmoid(), w), real(3, 4), real(5, 3, 4)),
    "what is copied": (lambda x, y: x.clone().copy_(y), real(3), real(2, 3)),
    "what is added in place": (lambda x, y: x.clone().add_(y), real(3), real(2, 3)),
    "what fills": (lambda x, y: x.clone().fill_(y), real(3), real(1)),
    "what fills places": (lambda x, y: x.index_fill(0, ROWS, y), real(3, 4), real(1)),
    "places to fill": (lambda x, i: x.index_fill(0, places(i), 1.0), real(3, 4), real(2, 2)),
    "places to take": (lambda x, i: x.index_select(0, places(i)), real(3, 4), real(2, 2)),
    "places to add to": (lambda x, i, s: x.index_add(0, places(i), s), real(3, 3), real(2, 2), real(2, 3)),
    "a mask": (lambda x, m: x[m > 0], real(3, 3), real(2)),
    "a mask that is written through": (lambda x, m: x.index_put((m > 0,), x[0, 0]), real(3, 3), real(2)),
    "ranks of cat": (lambda x, y: torch.cat([x, y]), real(3, 2), real(2)),
    "rank of max_pool2d": (lambda x: F.max_pool2d(x, 2), real(3, 4)),
    "rank of avg_pool2d": (lambda x: F.avg_pool2d(x, 2), real(3, 4)),
    "rank of adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), real(3, 4)),
    "rank of unfold": (lambda x: F.unfold(x, 2), real(4, 4)),
    "rank of channel_shuffle": (lambda x: F.channel_shuffle(x, 2), real(4, 4)),
    "rank of renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), real(3)),
    "no dimension to select": (lambda x: x.select(0, 0), real()),
    "no dimension to unbind": (lambda x: x.unbind()[0], real()),
    "no dimension to split": (lambda x: x.split(1)[0], real()),
}  # fmt: skip


def subsets(args):
    """Every choice of arguments that are mapped."""
    for count in range(1, len(args) + 1):
        yield from itertools.combinations(range(len(args)), count)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_for_one_lane_and_for_all(case):
    function, *args = REFUSED[case]
    with pytest.raises((RuntimeError, IndexError)):
        function(*args)
    for chosen in subsets(args):
        # As many lanes as a first dimension has, so that one could be taken for the other.
        for size in (2, 3, 4):
            given = [torch.stack([a] * size) if k in chosen else a for k, a in enumerate(args)]
            in_dims = tuple(0 if k in chosen else None for k in range(len(args)))
            with pytest.raises((RuntimeError, IndexError)):
                pf.vmap(function, in_dims=in_dims)(*given)


GIVEN = {
    "weights of batch_norm are counted only": (weighted, real(3, 4, 2), real(1, 4)),
    "a target that stretches": (lambda x, t: kernels.binary_cross_entropy(x.sigmoid(), t.sigmoid()), real(3, 4), real(4)),
    "an empty vector in cat": (lambda x, y: torch.cat([x, y]), real(3, 2), real(0)),
    "a mask of two dimensions": (lambda x: x.index_put((x[:, :, 0] > 0,), x.sum()), real(3, 3, 2)),
    "an index without dimensions": (lambda x, i: x.index_select(0, places(i)), real(3, 4), real()),
    "the only place": (lambda x: x.index_select(0, torch.tensor([0])), real()),
}


@pytest.mark.parametrize("case", GIVEN)
def test_given_for_one_lane_and_for_all(case):
    function, *args = GIVEN[case]
    for chosen in subsets(args):
        given = [torch.stack([a, a * 0.5]) if k in chosen else a for k, a in enumerate(args)]
        in_dims = tuple(0 if k in chosen else None for k in range(len(args)))
        expected = [function(*[a[lane] if k in chosen else a for k, a in enumerate(given)]) for lane in range(2)]
        torch.testing.assert_close(pf.vmap(function, in_dims=in_dims)(*given), torch.stack(expected))


def test_channels_of_any_rank_are_shuffled():
    for shape in ((2, 4, 3), (2, 4, 3, 2), (2, 4, 2, 1, 3)):
        for f in (lambda x: F.channel_shuffle(x, 2), lambda x: torch.native_channel_shuffle(x, 2)):
            x = real(3, *shape)
            assert torch.equal(pf.vmap(f)(x), torch.stack([f(a) for a in x]))


@pytest.mark.parametrize("sizes", [(2, 3, 5), (3, 5), (1, 5), (2, 5), (7,), ()])
@pytest.mark.parametrize("mapped", [False, True])
def test_the_bias_of_linear_is_the_bias_of_one_lane(sizes, mapped):
    x, w, b = real(2, 3, 4), real(5, 4), real(*sizes)

    def outcome(run):
        try:
            return run()
        except (RuntimeError, IndexError):
            return "refused"

    given = torch.stack([b, 2 * b]) if mapped else b
    expected = outcome(lambda: torch.stack([F.linear(x[k], w, given[k] if mapped else b) for k in range(2)]))
    for _ in range(3):
        found = outcome(lambda: pf.vmap(lambda a, c: F.linear(a, w, c), in_dims=(0, 0 if mapped else None))(x, given))
        gradient = outcome(
            lambda: pf.vmap(pf.grad(lambda v, a, c: F.linear(a, v, c).sum()), in_dims=(None, 0, 0 if mapped else None))(
                w, x, given
            )
        )
        assert isinstance(found, str) == isinstance(gradient, str) == isinstance(expected, str)
        if not isinstance(expected, str):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("f", [lambda x: x[1:2], lambda x: x.unbind(0), lambda x: x[0], lambda x: x.narrow(0, 0, 1)])
def test_a_number_has_no_dimension(f):
    x = torch.arange(4.0)
    with pytest.raises((IndexError, RuntimeError)) as plain:
        f(x[0])
    for call in (lambda: pf.vmap(f)(x), lambda: pf.vmap(pf.vmap(f))(x[None])):
        with pytest.raises(type(plain.value)):
            call()


def test_resizing_says_what_to_do_instead():
    with pytest.raises(pf.TransformError, match=r"test_shapes.py.*reshape.*new_zeros"):
        pf.vmap(lambda x: (x * 2).resize_(2))(torch.ones(4, 3))
