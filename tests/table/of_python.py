"""Samples of answers for Python, factories, draws and lists."""

from __future__ import annotations

import torch

from tests.table.samples import aten, each, overload, sample, without
from tests.table.values import D, apart, b, given, i, n, p

# -- answers for Python, factories, draws -----------------------------------------------------------------------------------

sample("is_same_size", lambda x, y: x * aten.is_same_size(x, y), n(2, 3), n(2, 3))
sample("equal", lambda x, y: x * torch.equal(x, y), n(2, 3), n(2, 3), asks=True)
sample("allclose", lambda x, y: x * torch.allclose(x, y), n(2, 3), n(2, 3), asks=True)
sample("is_nonzero", lambda x: x * aten.is_nonzero(x), n(), values_only=True, asks=True)
sample("_local_scalar_dense", lambda x: x * aten._local_scalar_dense(x), n(), values_only=True, asks=True)
sample("_functional_assert_async", lambda x: aten._functional_assert_async.msg(x.sum() != 99, "", x), n(2, fixed=True))
sample("_linalg_check_errors", lambda x: aten._linalg_check_errors(x.int(), "name", is_matrix=True) or x, i(0))
sample("_assert_async", lambda x: aten._assert_async(x) or x, b(1))
each(
    "zeros_like ones_like full_like",
    lambda op: lambda x: (op(x, *([2.0] if "full" in op._schema.name else []))) + x,
    n(2, 3),
)
each(
    "new_zeros new_ones new_full",
    lambda op: lambda x: op(x, [2], *([2.0] if "full" in op._schema.name else [])) + x[0, 0],
    n(2, 3),
)
sample(
    "empty_like new_empty new_empty_strided",
    lambda x: (
        aten.empty_like(x) * 0
        + aten.new_empty(x, [2, 3]).zero_()
        + aten.new_empty_strided(x, [2, 3], [3, 1]).zero_()
        + x
    ),
    given([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]),
    values_only=True,
)
sample(
    "zeros ones full eye arange linspace logspace scalar_tensor",
    lambda x: (
        x * torch.zeros(3)
        + torch.ones(3)
        + torch.full((3,), 2.0) * torch.eye(3)
        + torch.arange(3)
        + torch.linspace(0, 1, 3)
        + torch.logspace(0, 1, 3)
        + torch.scalar_tensor(2.0)
    ),
    n(3, 3),
)
sample("empty empty_strided", lambda x: x + torch.empty(3).fill_(1) + torch.empty_strided((3,), (1,)).fill_(2), n(3, 3))
sample(
    "tril_indices triu_indices",
    lambda x: x[tuple(torch.tril_indices(2, 3))] * x[tuple(torch.triu_indices(2, 3))][0],
    n(2, 3),
)
each("linspace.Tensor_Tensor logspace.Tensor_Tensor", lambda op: lambda x, y: op(x, y, 4, dtype=D), n(), n())
each("linspace.Tensor_Scalar logspace.Tensor_Scalar", lambda op: lambda x: op(x, 1.5, 4, dtype=D), n())
each("linspace.Scalar_Tensor logspace.Scalar_Tensor", lambda op: lambda y: op(0.5, y, 4, dtype=D), n())


def drawn(op, *rest):
    """A draw that is the same each time."""

    def draw(*x):
        torch.manual_seed(0)
        return op(*x, *rest)

    return draw


each("rand_like randn_like", drawn, n(2, 3))
sample("randint_like", drawn(aten.randint_like, 5), n(2, 3))
sample("rand randn", lambda x: (torch.manual_seed(0), x * torch.rand(3) * torch.randn(3))[1], n(2, 3))
sample("randint randperm", lambda x: (torch.manual_seed(0), x * torch.randint(5, (3,)) * torch.randperm(3))[1], n(2, 3))
each("uniform exponential cauchy log_normal normal_functional random", drawn, n(2, 3))
sample("geometric", drawn(aten.geometric, 0.4), n(2, 3))
sample("normal", drawn(aten.normal.Tensor_Tensor), n(2, 3), p(2, 3), values_only=True)
each("bernoulli poisson", drawn, p(2, 3), values_only=True)
sample("binomial", drawn(aten.binomial), given(4.0, 5.0, 6.0, fixed=True), p(3), values_only=True)
sample("multinomial", drawn(aten.multinomial, 2), p(2, 3), values_only=True)
sample("_standard_gamma _sample_dirichlet", drawn(aten._standard_gamma), p(2, 3), values_only=True)
sample("native_dropout", lambda x: (torch.manual_seed(0), aten.native_dropout(x, 0.4, True))[1][0], n(2, 3))
without("_fused_dropout", "it has no kernel on the CPU")
each("dropout feature_dropout alpha_dropout", lambda op: drawn(op, 0.4, True), n(2, 3))
sample(
    "rrelu_with_noise_functional",
    lambda x: aten.rrelu_with_noise_functional(x, torch.ones_like(x), 0.1, 0.3, False)[0],
    apart(2, 3),
)
sample("rrelu_with_noise", lambda x: torch.nn.functional.rrelu(x, 0.1, 0.3, training=False), apart(2, 3))
without("_embedding_bag_dense masked_scale", "the pattern of variants that torch 2.13 does not have")

# -- lists --------------------------------------------------------------------------------------------------------------------

each(
    " ".join(
        "_foreach_" + f
        for f in [
            "abs",
            "asin",
            "acos",
            "atan",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "erfc",
            "exp",
            "expm1",
            "floor",
            "frac",
            "lgamma",
            "log",
            "log10",
            "log1p",
            "log2",
            "neg",
            "reciprocal",
            "round",
            "rsqrt",
            "sigmoid",
            "sign",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
            "clone",
        ]
    ),
    lambda op: lambda x, y: op([x, y]),
    p(2, 3),
    p(3),
)
each(
    "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_pow _foreach_maximum _foreach_minimum _foreach_clamp_max "
    "_foreach_clamp_min",
    lambda op: lambda x, y: [*op.overloadpacket.List([x, y], [y, x]), *op.overloadpacket.Scalar([x, y], 0.55)],
    p(3),
    p(3),
)
sample("_foreach_lerp", lambda x, y: aten._foreach_lerp([x, y], [y, x], 0.3), n(3), n(3))
each(
    "_foreach_addcmul _foreach_addcdiv",
    lambda op: lambda x, y: op.overloadpacket([x, y], [y, x], [x, y], 2.0),
    p(3),
    p(3),
)
sample("_foreach_mm", lambda x, y: aten._foreach_mm([x, x], [y, y]), n(2, 3), n(3, 4))
sample("_foreach_norm", lambda x, y: aten._foreach_norm([x, y], 2), n(2, 3), n(3))
sample("_foreach_max", lambda x, y: aten._foreach_max([x, y]), apart(2, 3), apart(3))
sample("_foreach_zero", lambda x, y: [a + x for a in aten._foreach_zero([x, x])], n(3), n(3))
sample("_foreach_copy", lambda x, y: aten._foreach_copy([x, y], [y, x]), n(3), n(3))
assert overload("sin")._schema.name == "aten::sin"
