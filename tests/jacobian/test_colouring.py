"""Colourings are valid, and take as few colours as is known for patterns with a closed form."""

import numpy as np
import pytest

import pushforward as pf
from pushforward.jacobian.colouring import bidirectional_colouring, column_colouring, coupled_parts, row_colouring
from pushforward.jacobian.compress import gather_index
from pushforward.jacobian.ordering import ORDERS
from pushforward.jacobian.symmetric import acyclic_colouring, star_colouring, star_places, substitution_rounds
from pushforward.sparsity.csr import Pattern


def banded(n, below, above):
    return Pattern.from_mask(np.tri(n, k=above) - np.tri(n, k=-below - 1))


def stencil(rows, columns, periodic=False):
    """The 5-point stencil on a grid."""
    number = np.arange(rows * columns).reshape(rows, columns)
    pairs = [(number, number)]
    for axis in (0, 1):
        other = np.roll(number, -1, axis)
        take = slice(None) if periodic else slice(None, -1)
        cut = (take, slice(None)) if axis == 0 else (slice(None), take)
        pairs += [(number[cut], other[cut]), (other[cut], number[cut])]
    r, c = (np.concatenate([p[k].reshape(-1) for p in pairs]) for k in (0, 1))
    return Pattern.from_coo(r, c, (rows * columns, rows * columns))


def arrow(n):
    k = np.arange(n)
    z = np.zeros(n, dtype=int)
    return Pattern.from_coo(np.r_[k, z, k], np.r_[k, k, z], (n, n))


def random_pattern(seed, m=30, n=40, density=0.08):
    return Pattern.from_mask(np.random.default_rng(seed).random((m, n)) < density)


@pytest.mark.parametrize("order", [None, *ORDERS])
@pytest.mark.parametrize(("below", "above"), [(0, 0), (1, 0), (1, 1), (3, 2)])
def test_banded_takes_as_many_colours_as_its_width(below, above, order):
    if order not in ("largest first", "incidence degree"):
        assert column_colouring(banded(50, below, above), order).passes == below + above + 1
    assert row_colouring(banded(50, below, above), None).passes == below + above + 1


def test_five_point_stencil():
    assert 5 <= column_colouring(stencil(20, 20)).passes <= 7
    # The best on a torus of 20 × 20 is 5, a perfect code; a greedy order comes close.
    assert 5 <= column_colouring(stencil(20, 20, periodic=True)).passes <= 8
    assert 5 <= column_colouring(stencil(21, 19, periodic=True)).passes <= 8


def system(rows, columns, species):
    """Each of the species spreads by the 5-point stencil and reacts with the others in its cell; one after the other."""
    cells = rows * columns
    one, diagonal = stencil(rows, columns, periodic=True), np.arange(cells)
    r, c = [], []
    for i in range(species):
        for j in range(species):
            r.append((one.rows if i == j else diagonal) + i * cells)
            c.append((one.indices if i == j else diagonal) + j * cells)
    return Pattern.from_coo(np.concatenate(r), np.concatenate(c), (species * cells, species * cells))


@pytest.mark.parametrize(("rows", "columns", "most"), [(20, 20, 8), (12, 16, 9)])
def test_parts_of_a_system_are_coloured_by_turns(rows, columns, most):
    p = system(rows, columns, 2)
    assert coupled_parts(p) == [2]
    for colouring in (column_colouring(p), row_colouring(p)):
        assert 6 <= colouring.passes <= most
        assert "2 parts" in colouring.order
        gather_index(p, colouring)  # raises where a place does not stand alone
    assert column_colouring(p).passes < column_colouring(p, "natural").passes


def test_by_turns_is_taken_only_where_it_is_better():
    p = system(20, 20, 3)
    assert coupled_parts(p) == [3]
    assert column_colouring(p).passes <= column_colouring(p, "natural").passes


def test_patterns_that_are_no_systems_have_no_parts():
    assert coupled_parts(stencil(20, 20)) == []
    assert coupled_parts(banded(48, 1, 1)) == []
    assert coupled_parts(Pattern.from_mask(np.zeros((0, 8)))) == []
    assert coupled_parts(Pattern.from_mask(np.zeros((4, 8)))) == []


@pytest.mark.parametrize("order", [None, *ORDERS])
def test_arrow(order):
    assert column_colouring(arrow(60), order).passes == 60
    assert row_colouring(arrow(60), order).passes == 60
    both = bidirectional_colouring(arrow(60))
    assert both.passes == 3
    assert star_colouring(arrow(60)).max() + 1 == 2
    assert acyclic_colouring(arrow(60)).max() + 1 == 2


@pytest.mark.parametrize("seed", range(8))
def test_colourings_of_random_patterns_separate_every_place(seed):
    p = random_pattern(seed)
    matrix = np.random.default_rng(seed).normal(size=p.shape) * p.to_mask()
    for colouring in [
        *[column_colouring(p, order) for order in (None, *ORDERS)],
        row_colouring(p),
        bidirectional_colouring(p),
        bidirectional_colouring(p, 1.0, 5.0),
    ]:
        forward = (
            np.stack([matrix[:, colouring.columns == c].sum(1) for c in range(colouring.forward)])
            if colouring.forward
            else np.zeros(0)
        )
        reverse = (
            np.stack([matrix[colouring.rows == c].sum(0) for c in range(colouring.reverse)])
            if colouring.reverse
            else np.zeros(0)
        )
        products = np.concatenate([forward.reshape(-1), reverse.reshape(-1)])
        values = products[gather_index(p, colouring)]
        np.testing.assert_allclose(values, matrix[p.rows, p.indices])
    assert bidirectional_colouring(p).passes <= min(
        column_colouring(p, "natural").passes, row_colouring(p, "natural").passes
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(5))
def test_symmetric_colourings_of_random_patterns(seed, order):
    p = random_pattern(seed, 25, 25).symmetrised()
    h = np.random.default_rng(seed).normal(size=p.shape)
    h = (h + h.T) * p.to_mask()
    star = star_colouring(p, order)
    products = np.stack([h[:, star == c].sum(1) for c in range(star.max() + 1)])
    colour, place = star_places(p, star)
    np.testing.assert_allclose(products[colour, place], h[p.rows, p.indices])

    acyclic = acyclic_colouring(p, order)
    assert acyclic.max() <= star.max() + 2
    products = np.stack([h[:, acyclic == c].sum(1) for c in range(acyclic.max() + 1)])
    diagonal = np.array([products[acyclic[i], i] for i in range(25)])
    np.testing.assert_allclose(diagonal, np.diag(h))
    found = np.diag(diagonal)
    for leaf, parent, colour, _ in substitution_rounds(p, acyclic):
        value = products[colour, leaf]
        found[leaf, parent] = found[parent, leaf] = value
        np.subtract.at(products, (acyclic[leaf], parent), value)
    np.testing.assert_allclose(found, h, atol=1e-12)


def test_a_colouring_that_does_not_separate_is_refused():
    p = banded(6, 1, 1)
    bad = column_colouring(banded(6, 0, 0))
    with pytest.raises(pf.ArgumentError, match="does not separate"):
        gather_index(p, bad)
    with pytest.raises(pf.ArgumentError, match="no star colouring"):
        star_places(p, np.array([0, 1, 0, 1, 0, 1]))
    ring = stencil(1, 4, periodic=True)
    with pytest.raises(pf.ArgumentError, match="not acyclic"):
        substitution_rounds(ring, np.array([0, 1, 0, 1]))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_empty_and_single(shape):
    p = Pattern.from_mask(np.ones(shape))
    assert column_colouring(p).passes == (1 if min(shape) else 0)
    assert row_colouring(p).passes == (1 if min(shape) else 0)
