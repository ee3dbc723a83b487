"""Numbers in texts: a format reads the number, as a plain call and `.item()` do; plain text is for people, and asks nothing."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

import pushforward as pf

D = torch.float64
X = torch.tensor([[0.125, 2.0], [1.5, 2.0], [0.125, 3.0], [-1.0, 2.0]], dtype=D)
READINGS = {
    "f-string": lambda x: float(f"{x:.2f}"),
    "format": lambda x: float(format(x, ".3e")),
    "str.format": lambda x: float("{:.1f}".format(x)),  # noqa: UP032
    "width": lambda x: float(f"{x:>12}"),
    "nested spec": lambda x: float(f"{x:.{1 + 1}f}"),
    "percent": lambda x: float("%.2f" % x),  # noqa: UP031
}


def scaled(read):
    return lambda x: (x * read(x[0])).sin()


def looped(f, x=X):
    return torch.stack([f(row) for row in x])


@pytest.mark.parametrize("name", READINGS)
def test_a_format_reads_the_number_of_its_lane(name):
    f = scaled(READINGS[name])
    for k, around in enumerate([contextlib.nullcontext] * 5 + [pf.no_replay]):
        x = X + k / 8
        read = [f"{row[0]:.3f}" for row in x]
        with around(), warnings.catch_warnings():
            warnings.simplefilter("ignore", pf.DerivativeLost)
            warnings.filterwarnings("ignore", "Converting a tensor")  # torch says so of `"%f" % x`
            torch.testing.assert_close(pf.vmap(f)(x), looped(f, x))
            assert pf.vmap(lambda r: [r * 2, f"{r[0]:.3f}"])(x)[1] == read
            slope = looped(pf.jacrev(f), x)
            torch.testing.assert_close(pf.vmap(pf.jacrev(f))(x), slope)
            torch.testing.assert_close(pf.vmap(pf.jacfwd(f))(x), slope)
            torch.testing.assert_close(pf.jvp(pf.vmap(f), (x,), (x,))[1], torch.einsum("bij,bj->bi", slope, x))
            torch.testing.assert_close(pf.vmap(lambda r: pf.jvp(f, (r,), (r,))[1])(x), torch.einsum("bij,bj->bi", slope, x))
            torch.testing.assert_close(pf.grad(lambda x: pf.vmap(f)(x).sum())(x), slope.sum(1))
            torch.testing.assert_close(pf.vmap(pf.vmap(f))(torch.stack([x, x + 1])), torch.stack([looped(f, x), looped(f, x + 1)]))
            torch.testing.assert_close(pf.linearize(f, x[0])[1](x[1]), slope[0] @ x[1])


def test_lanes_that_differ_part_and_those_that_agree_do_not():
    with pf.report() as report:
        pf.vmap(scaled(READINGS["f-string"]))(X)
    assert sorted(report.calls[-1].groups) == [1, 1, 2]
    with pytest.raises(pf.DivergenceError, match=r"test_texts\.py:\d+"):
        pf.vmap(scaled(READINGS["f-string"]), divergence="error")(X)


@pytest.mark.parametrize("name", READINGS)
def test_a_format_of_a_differentiated_value_says_that_the_derivative_is_lost(name):
    f = scaled(READINGS[name])
    for transform in (
        lambda f, **how: pf.jvp(f, (X[0],), (X[1],), **how),
        lambda f, **how: pf.vmap(lambda x: pf.jvp(f, (x,), (x,), **how)[1])(X),
        lambda f, **how: pf.jvp(lambda x: pf.jvp(f, (x,), (x,), **how)[1], (X[0],), (X[1],)),
    ):
        with pytest.raises(pf.DerivativeLostError, match=r"test_texts\.py:\d+"):
            transform(f, strict=True)


def test_it_is_said_once_a_line():
    def f(x):
        return x * float(f"{x[0]:.1f}")

    with pytest.warns(pf.DerivativeLost, match=r"test_texts\.py") as said:
        pf.jvp(f, (X[0],), (X[1],))
    assert len(said) == 1
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            pf.jvp(f, (X[0],), (X[1],))


def test_text_for_people_asks_nothing(capsys):
    texts = []

    def f(x):
        print(x, x[0])
        texts.append((f"{x}", f"{x[0]}", repr(x), str(x[0]), "%s" % x, "{}".format(x), f"{x!r:>200}"))  # noqa: UP031, UP032
        return x * 2

    with warnings.catch_warnings(), pf.report() as report:
        warnings.simplefilter("error")
        torch.testing.assert_close(pf.vmap(f)(X), X * 2)
        pf.jvp(f, (X[0],), (X[1],), strict=True)
        pf.vmap(lambda x: pf.jvp(f, (x,), (x,), strict=True)[1])(X)
        pf.vmap(pf.grad(lambda x: f(x).sum()))(X)
    assert all(call.groups == [4] for call in report.calls)
    assert len(texts) == 4
    assert all("4 lanes" in text for text in texts[0])
    assert all("dual" in text for text in texts[1])
    assert "4 lanes" in capsys.readouterr().out


def test_the_text_of_what_no_lane_and_no_tangent_is_in_is_that_of_a_plain_call():
    def f(x):
        n = torch.tensor(3) + 1
        return x * {"4": 2.0}[f"{n}"] * {"004": 1.0}[f"{n:03d}"], f"{torch.ones(()) / 4}"

    for _ in range(5):
        out, text = pf.vmap(f)(X)
        torch.testing.assert_close(out, X * 2)
        assert text == "0.25"
        torch.testing.assert_close(pf.jvp(lambda x: f(x)[0], (X[0],), (X[1],), strict=True)[1], X[1] * 2)
        torch.testing.assert_close(pf.vmap(lambda x: pf.jvp(lambda y: f(y)[0], (x,), (x,), strict=True)[1])(X), X * 2)
        torch.testing.assert_close(pf.vmap(pf.grad(lambda x: f(x)[0].sum()))(X), torch.full_like(X, 2.0))


def test_tensors_with_dimensions_have_no_format_as_in_a_plain_call():
    for x in (X[0], X[0, :1]):
        with pytest.raises(TypeError, match="unsupported format string"):
            f"{x:.2f}"
        with pytest.raises(TypeError, match="unsupported format string passed to Tensor"):
            pf.vmap(lambda x: f"{x:.2f}")(torch.stack([x, x]))
        with pytest.raises(TypeError, match="unsupported format string passed to Tensor"):
            pf.jvp(lambda x: f"{x:.2f}", (x,), (x,))


def test_integers_truth_values_and_complex_numbers():
    kinds = lambda x: (f"{(x[0] * 8).long():05d}", f"{x[0] > 1:d}", f"{torch.complex(x[0], x[1]):.1f}")
    want = [kinds(row) for row in X]
    for _ in range(4):
        got = pf.vmap(kinds)(X)
        assert [tuple(g[k] if isinstance(g, list) else g for g in got) for k in range(4)] == want
