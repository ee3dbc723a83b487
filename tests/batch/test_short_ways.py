"""Short ways of layers under `vmap` take lanes of any layout in memory."""

import torch
import torch.nn.functional as F

import pushforward as pf


def spread(*shape):
    """A batch whose lanes are not in front in memory."""
    return torch.randn(*shape[1:], shape[0], dtype=torch.float64).movedim(-1, 0)


def test_pooling_of_lanes_that_are_not_in_front():
    x = spread(3, 2, 4, 6, 6)
    got = pf.vmap(lambda y: F.max_pool2d(y.sin(), 2))(x)
    assert torch.equal(got, torch.stack([F.max_pool2d(y.sin(), 2) for y in x]))


def test_convolution_of_a_mapped_weight_then_pooling():
    x, w = torch.randn(2, 3, 6, 6, dtype=torch.float64), spread(4, 5, 3, 3, 3)
    got = pf.vmap(lambda w: F.avg_pool2d(F.conv2d(x, w, padding=1), 2))(w)
    torch.testing.assert_close(got, torch.stack([F.avg_pool2d(F.conv2d(x, v, padding=1), 2) for v in w]))


def test_attention_of_lanes_that_are_not_in_front():
    q, k, v = (spread(3, 2, 2, 5, 4) for _ in range(3))
    got = pf.vmap(lambda q, k, v: F.scaled_dot_product_attention(q.sin(), k, v))(q, k, v)
    expected = torch.stack([F.scaled_dot_product_attention(a.sin(), b, c) for a, b, c in zip(q, k, v, strict=True)])
    torch.testing.assert_close(got, expected)
