"""Colourings of symmetric patterns, so that Hessian-vector products give each entry or its mirror image.

Star colouring (direct): neighbours differ, and no path of four vertices has two colours; then h[i, j] is read from
the product of one of the two colours. Acyclic colouring (by substitution): neighbours differ, and no cycle has two
colours; each two colours induce a forest, solved leaf by leaf. (Gebremedhin, Tarafdar, Manne, Pothen 2007, "New
acyclic and star coloring algorithms".)
"""

from __future__ import annotations

import numpy as np

from ..core.errors import ArgumentError
from ..sparsity.csr import Array, Pattern
from .ordering import dynamic

Adjacency = tuple[list[int], list[int]]


def adjacency(pattern: Pattern) -> Pattern:
    """The graph of a symmetric pattern: off-diagonal places."""
    if pattern.shape[0] != pattern.shape[1]:
        msg = f"a symmetric colouring needs a square pattern, not {pattern}"
        raise ArgumentError(msg)
    rows, cols = pattern.rows, pattern.indices
    off = rows != cols
    return Pattern.from_coo(rows[off], cols[off], pattern.shape)


def vertex_order(graph: Pattern, order: str) -> list[int]:
    """The vertices of a graph in the order in which to colour them."""
    if order == "natural":
        return list(range(graph.shape[0]))
    if order == "largest first":
        return np.argsort(-graph.row_counts, kind="stable").tolist()
    if order in ("smallest last", "incidence degree"):
        taken = dynamic(graph.indptr, graph.indices, smallest=order == "smallest last")
        return taken[::-1] if order == "smallest last" else taken
    msg = f"order={order!r}: there are 'natural', 'largest first', 'smallest last', 'incidence degree'"
    raise ArgumentError(msg)


def star_colouring(pattern: Pattern, order: str = "natural") -> Array:
    """A colour for each vertex, greedy: the smallest that makes no two-coloured path of four vertices.

    Example:
        >>> tridiagonal = Pattern.from_mask(np.tri(7, k=1) - np.tri(7, k=-2))
        >>> int(star_colouring(tridiagonal).max()) + 1
        3
    """
    graph = adjacency(pattern)
    starts, lists = graph.indptr.tolist(), graph.indices.tolist()
    n = graph.shape[0]
    colours = [-1] * n
    # For each vertex, the colours seen once and those seen twice or more among its coloured neighbours, as bits.
    once, twice = [0] * n, [0] * n
    for v in vertex_order(graph, order):
        forbidden = 0
        repeated = seen = 0
        near = [(w, colours[w]) for w in lists[starts[v] : starts[v + 1]] if colours[w] >= 0]
        for _, c in near:
            repeated |= seen & (1 << c)
            seen |= 1 << c
        forbidden |= seen
        for w, c in near:
            if repeated >> c & 1:
                # v - w with another neighbour of v in w's colour: v may not have the colour of any neighbour of w.
                forbidden |= once[w]
            else:
                # v - w - x - y: v may not have the colour of an x that has another neighbour y in w's colour.
                for x in lists[starts[w] : starts[w + 1]]:
                    if x != v and colours[x] >= 0 and twice[x] >> c & 1:
                        forbidden |= 1 << colours[x]
        bit = ~forbidden & (forbidden + 1)
        colours[v] = bit.bit_length() - 1
        for w in lists[starts[v] : starts[v + 1]]:
            twice[w] |= once[w] & bit
            once[w] |= bit
    return np.array(colours, dtype=np.int64)


def star_places(pattern: Pattern, colours: Array) -> tuple[Array, Array]:
    """For each place (i, j): the colour and the row of the compressed product to read it from.

    h[i, j] is in row i of the product with colour(j) if no other neighbour of i has that colour, else in row j of
    colour(i).
    """
    rows, cols = pattern.rows, pattern.indices
    n, count = pattern.shape[0], int(colours.max(initial=-1)) + 1
    neighbours = np.bincount(rows * count + colours[cols], minlength=n * count)
    alone = neighbours[rows * count + colours[cols]] == 1
    colour = np.where(alone, colours[cols], colours[rows])
    place = np.where(alone, rows, cols)
    mirrored = neighbours[cols * count + colours[rows]] == 1
    if not (alone | mirrored).all():
        msg = "the colouring is no star colouring of the pattern"
        raise ArgumentError(msg)
    return colour, place


def acyclic_colouring(pattern: Pattern, order: str = "natural") -> Array:
    """A colour for each vertex, greedy: the smallest that closes no two-coloured cycle.

    Example:
        >>> tridiagonal = Pattern.from_mask(np.tri(7, k=1) - np.tri(7, k=-2))
        >>> int(acyclic_colouring(tridiagonal).max()) + 1
        2
    """
    graph = adjacency(pattern)
    starts, lists = graph.indptr.tolist(), graph.indices.tolist()
    colours = [-1] * graph.shape[0]
    forests: dict[tuple[int, int], dict[int, int]] = {}  # for each two colours, a union-find over its vertices

    def root(parents: dict[int, int], x: int) -> int:
        while parents.setdefault(x, x) != x:
            parents[x] = parents[parents[x]]
            x = parents[x]
        return x

    for v in vertex_order(graph, order):
        near = [w for w in lists[starts[v] : starts[v + 1]] if colours[w] >= 0]
        by_colour: dict[int, list[int]] = {}
        for w in near:
            by_colour.setdefault(colours[w], []).append(w)
        colour = 0
        while colour in by_colour or any(
            len({root(forests.setdefault((min(c, colour), max(c, colour)), {}), w) for w in ws}) < len(ws)
            for c, ws in by_colour.items()
            if len(ws) > 1
        ):
            colour += 1
        colours[v] = colour
        for w in near:
            parents = forests.setdefault((min(colours[w], colour), max(colours[w], colour)), {})
            parents[root(parents, w)] = root(parents, v)
    return np.array(colours, dtype=np.int64)


def substitution_rounds(pattern: Pattern, colours: Array) -> list[tuple[Array, Array, Array, Array]]:
    """In which order an acyclic colouring's forests are solved, round by round, each round one vectorised step.

    Each entry of a round is `(leaf, parent, colour, edge)`: h[leaf, parent] is what remains in row `leaf` of the
    product of the parent's colour; it is then taken off row `parent` of the product of the leaf's colour.
    """
    rows, cols = pattern.rows, pattern.indices
    upper = np.flatnonzero(rows < cols)
    a, b = rows[upper], cols[upper]
    count = int(colours.max(initial=-1)) + 1
    n = pattern.shape[0]
    # A vertex may be in many forests: one node for each (vertex, colour of the other side).
    left, right = a * count + colours[b], b * count + colours[a]
    degree = np.bincount(np.concatenate([left, right]), minlength=n * count)
    alive = np.ones(upper.size, dtype=bool)
    rounds = []
    while alive.any():
        here = np.flatnonzero(alive)
        leaf_left, leaf_right = degree[left[here]] == 1, degree[right[here]] == 1
        ready = leaf_left | leaf_right
        chosen = here[ready]
        if not chosen.size:
            msg = "the colouring is not acyclic for the pattern"
            raise ArgumentError(msg)
        by_left = leaf_left[ready]
        leaf, parent = np.where(by_left, a[chosen], b[chosen]), np.where(by_left, b[chosen], a[chosen])
        rounds.append((leaf, parent, colours[parent], upper[chosen]))
        np.subtract.at(degree, left[chosen], 1)
        np.subtract.at(degree, right[chosen], 1)
        alive[chosen] = False
    return rounds
