"""In which order a greedy colouring takes the vertices (Gebremedhin, Manne, Pothen 2005).

Vertices are columns of a pattern; two are neighbours when a row holds both (distance 2 in the bipartite graph). With
the degrees of that graph: natural (as given), largest first (highest degree first), smallest last (take off the
smallest degree again and again; colour in reverse), incidence degree (next the one with most neighbours already
taken).
"""

from __future__ import annotations

import numpy as np

from ..core.errors import ArgumentError
from ..sparsity.csr import Array, Pattern

ORDERS = ("natural", "largest first", "smallest last", "incidence degree")

# The neighbour lists of dynamic orders grow with the square of the rows; past this many pairs an order is refused.
LARGEST_NEIGHBOURHOOD = 30_000_000


def ordered(pattern: Pattern, order: str) -> list[int]:
    """The columns of a pattern in the order in which to colour them.

    Raises:
        ArgumentError: an order that does not exist.
    """
    n = pattern.shape[1]
    if order == "natural":
        return list(range(n))
    if order not in ORDERS:
        msg = f"order={order!r}: there are {', '.join(repr(o) for o in ORDERS)}"
        raise ArgumentError(msg)
    pointers, neighbours = column_graph(pattern)
    if order == "largest first":
        return np.argsort(-np.diff(pointers), kind="stable").tolist()
    taken = dynamic(pointers, neighbours, smallest=order == "smallest last")
    return taken[::-1] if order == "smallest last" else taken


def pairs_of(pattern: Pattern) -> int:
    """How many pairs of columns share a row, counted for every row."""
    counts = pattern.row_counts.astype(np.int64)
    return int((counts * counts).sum())


def column_graph(pattern: Pattern) -> tuple[Array, Array]:
    """Compressed neighbour lists: which columns share a row."""
    if pairs_of(pattern) > LARGEST_NEIGHBOURHOOD:
        msg = f"the column graph of {pattern} has too many pairs for this order; use order='natural'"
        raise ArgumentError(msg)
    counts = pattern.row_counts
    total = counts[pattern.rows]  # each place meets every place of its row
    first = np.repeat(np.arange(pattern.nnz), total)
    offset = np.arange(first.size) - np.repeat(np.cumsum(total) - total, total)
    second = pattern.indptr[pattern.rows[first]] + offset
    left, right = pattern.indices[first], pattern.indices[second]
    apart = left != right
    graph = Pattern.from_coo(left[apart], right[apart], (pattern.shape[1], pattern.shape[1]))
    return graph.indptr, graph.indices


def dynamic(pointers: Array, neighbours: Array, *, smallest: bool) -> list[int]:
    """Take vertices one by one: of smallest degree among those left, or with most neighbours among those taken."""
    n = pointers.size - 1
    starts, lists = pointers.tolist(), neighbours.tolist()
    degree = np.diff(pointers).tolist() if smallest else [0] * n
    buckets: list[dict[int, None]] = [{} for _ in range(int(np.diff(pointers).max(initial=0)) + 2)]
    for v in range(n):
        buckets[degree[v]][v] = None
    taken = [False] * n
    out: list[int] = []
    at = 0 if smallest else len(buckets) - 1
    for _ in range(n):
        if smallest:
            at = max(at - 1, 0)
            while not buckets[at]:
                at += 1
        else:
            at = min(at + 1, len(buckets) - 1)
            while not buckets[at]:
                at -= 1
        v = next(iter(buckets[at]))
        del buckets[at][v]
        taken[v] = True
        out.append(v)
        step = -1 if smallest else 1
        for w in lists[starts[v] : starts[v + 1]]:
            if not taken[w]:
                del buckets[degree[w]][w]
                degree[w] += step
                buckets[degree[w]][w] = None
    return out
