"""The cost of programs, counted by hand."""

from __future__ import annotations

import torch

import pushforward as pf


def test_a_product():
    a, b = torch.ones(4, 5), torch.ones(5, 6)
    cost = pf.trace(torch.mm)(a, b).cost()
    assert cost.operators == 1
    assert cost.flops == 2 * 4 * 5 * 6
    assert cost.bytes_read == 4 * (4 * 5 + 5 * 6)
    assert cost.bytes_written == 4 * 4 * 6
    assert cost.input_bytes == cost.bytes_read
    assert cost.peak_bytes == 4 * 4 * 6


def test_a_chain_holds_two_tensors_at_a_time():
    x = torch.ones(1000)

    def chain(x):
        for _ in range(10):
            x = x.sin()
        return x

    cost = pf.trace(chain)(x).cost()
    assert cost.by_operator == {"sin": 10}
    assert cost.peak_bytes == 2 * 4000


def test_a_backward_pass_holds_what_it_needs():
    x = torch.ones(1000)

    def chain(x):
        for _ in range(10):
            x = x.sin()
        return x.sum()

    held = pf.trace(pf.grad(chain))(x).cost().peak_bytes / 4000
    assert 9 <= held <= 12


def test_views_are_free():
    x = torch.ones(100, 100)
    cost = pf.trace(lambda x: x.t().view(-1, 50) if False else x.t()[3:].unsqueeze(0))(x).cost()
    assert cost.bytes_written == 0
    assert cost.peak_bytes == 0
    assert cost.flops == 0


def test_a_batch_costs_its_size():
    one = pf.trace(torch.dot)(torch.ones(64), torch.ones(64)).cost()
    many = pf.trace(pf.vmap(torch.dot))(torch.ones(32, 64), torch.ones(32, 64)).cost()
    assert many.flops >= 32 * one.flops / 2
    assert many.input_bytes == 32 * one.input_bytes


def test_convolutions_are_counted():
    image, kernel = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)
    assert pf.trace(torch.conv2d)(image, kernel).cost().flops == 2 * 4 * 6 * 6 * 3 * 9
