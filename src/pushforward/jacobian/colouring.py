"""Colourings: columns (or rows) of one colour share no row (no column), so one pass gives all of them at once.

Column colouring is a partial distance-2 colouring of the bipartite graph, greedy: each column gets the smallest
colour that no column beside it in any of its rows has. A row keeps the colours its columns have as the bits of one
integer, so the colours forbidden to a column are the union of a few integers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..sparsity.csr import Array, Pattern
from .ordering import ordered

# Colouring again costs as much as the first time: so many places in all, and so many rounds, at most.
SHARPENING = 600_000
MOST_ROUNDS = 40
# A system of more parts than that is rarely written part after part; so many of the columns must have their partner.
MOST_PARTS, MOSTLY = 8, 0.9


@dataclass(frozen=True)
class Colouring:
    """Colours of the columns and of the rows; −1 where a column or row takes no pass.

    Attributes:
        columns: a colour for each column, for forward passes.
        rows: a colour for each row, for reverse passes.
        order: the order that was used.
    """

    columns: Array
    rows: Array
    order: str = "natural"

    @property
    def forward(self) -> int:
        """How many forward passes."""
        return int(self.columns.max(initial=-1)) + 1

    @property
    def reverse(self) -> int:
        """How many reverse passes."""
        return int(self.rows.max(initial=-1)) + 1

    @property
    def passes(self) -> int:
        """Passes of both modes."""
        return self.forward + self.reverse


def greedy_columns(pattern: Pattern, order: list[int], transposed: Pattern | None = None) -> Array:
    """A colour for each column with an entry, −1 for empty columns."""
    turned = pattern.T if transposed is None else transposed
    starts, rows = turned.indptr.tolist(), turned.indices.tolist()
    used = [0] * pattern.shape[0]  # for each row, the colours of its columns as bits
    colours = [-1] * pattern.shape[1]
    for j in order:
        mine = rows[starts[j] : starts[j + 1]]
        if not mine:
            continue
        forbidden = 0
        for i in mine:
            forbidden |= used[i]
        bit = ~forbidden & (forbidden + 1)  # the lowest bit that is not set
        colours[j] = bit.bit_length() - 1
        for i in mine:
            used[i] |= bit
    return np.array(colours, dtype=np.int64)


def colour_columns(pattern: Pattern, order: str | None = None) -> tuple[Array, str]:
    """Colours of the columns; without an order natural, or the parts of a system by turns, then sharpened.

    Returns:
        The colours and the order used.
    """
    transposed = pattern.T
    if order is not None:
        return greedy_columns(pattern, ordered(pattern, order), transposed), order
    n = pattern.shape[1]
    colours, used = greedy_columns(pattern, list(range(n)), transposed), "natural"
    if colours.max(initial=-1) + 1 > pattern.row_counts.max(initial=0):
        for parts in coupled_parts(pattern):
            other = greedy_columns(pattern, np.arange(n).reshape(parts, -1).T.reshape(-1).tolist(), transposed)
            if other.max() < colours.max():
                colours, used = other, f"{parts} parts by turns"
    return sharpened(pattern, transposed, colours), f"{used}, sharpened"


def coupled_parts(pattern: Pattern) -> list[int]:
    """In how many equal parts the columns may fall whose elements of one number belong together.

    Systems of several quantities have "all u, then all v": a row has the u and the v of one cell. Coloured cell by cell,
    such columns take fewer colours than part after part.

    Example:
        >>> import numpy as np
        >>> coupled_parts(Pattern.from_mask(np.kron(np.ones((2, 2)), np.eye(5))))
        [2]
    """
    n = pattern.shape[1]
    keys = pattern.rows.astype(np.int64) * n + pattern.indices
    found = []
    for parts in range(2, MOST_PARTS + 1):
        size = n // parts
        if size * parts != n or size < 2:
            continue
        left = pattern.indices < n - size
        partner = keys[left] + size
        at = np.minimum(np.searchsorted(keys, partner), max(keys.size - 1, 0))
        beside = np.zeros(n - size, dtype=bool)
        beside[pattern.indices[left][keys[at] == partner]] = True
        if beside.mean() > MOSTLY:
            found.append(parts)
    return found


def sharpened(pattern: Pattern, transposed: Pattern, colours: Array) -> Array:
    """Colour again, class by class: that never takes more colours, and often fewer (Culberson's iterated greedy).

    Classes are taken last first, largest first, and shuffled, in turns; it ends at the lower bound, the longest row.
    """
    bound = int(pattern.row_counts.max(initial=0))
    shuffled = np.random.default_rng(0)
    for turn in range(min(MOST_ROUNDS, SHARPENING // max(pattern.nnz, 1))):
        count = int(colours.max(initial=-1)) + 1
        if count <= bound:
            break
        sizes = np.bincount(colours[colours >= 0], minlength=count)
        classes = (np.arange(count)[::-1], np.argsort(-sizes, kind="stable"), shuffled.permutation(count))[turn % 3]
        rank = np.empty(count + 1, dtype=np.int64)
        rank[classes] = np.arange(count)
        rank[-1] = count  # columns without a colour come last
        colours = greedy_columns(pattern, np.argsort(rank[colours], kind="stable").tolist(), transposed)
    return colours


def column_colouring(pattern: Pattern, order: str | None = None) -> Colouring:
    """For forward mode: structurally orthogonal columns share a colour.

    Example:
        >>> import numpy as np
        >>> column_colouring(Pattern.from_mask(np.tri(4, k=1) - np.tri(4, k=-2))).forward
        3
    """
    colours, used = colour_columns(pattern, order)
    return Colouring(colours, np.full(pattern.shape[0], -1, dtype=np.int64), used)


def row_colouring(pattern: Pattern, order: str | None = None) -> Colouring:
    """For reverse mode: structurally orthogonal rows share a colour."""
    colours, used = colour_columns(pattern.T, order)
    return Colouring(np.full(pattern.shape[1], -1, dtype=np.int64), colours, used)


def bidirectional_colouring(pattern: Pattern, forward_cost: float = 1.0, reverse_cost: float = 1.0) -> Colouring:
    """Some rows by reverse passes, the other places by forward passes (or some columns forward, the rest in reverse).

    A few dense rows make every column colouring expensive; taken out and done by reverse mode, they leave a pattern
    whose columns need few colours. How many of the densest rows (columns) to take out is searched over powers of two.

    Example:
        >>> arrow = np.eye(50); arrow[0] = arrow[:, 0] = 1
        >>> bidirectional_colouring(Pattern.from_mask(arrow)).passes
        3
    """
    best: tuple[float, Colouring] | None = None
    for turned in (False, True):
        p = pattern.T if turned else pattern
        costs = (reverse_cost, forward_cost) if turned else (forward_cost, reverse_cost)
        for taken in removals(p.row_counts):
            rest = p.keeping_rows(~taken)
            apart = p.keeping_rows(taken)
            main, side = greedy(rest), greedy(apart.T)
            total = costs[0] * (main.max(initial=-1) + 1) + costs[1] * (side.max(initial=-1) + 1)
            if best is None or total < best[0]:
                best = total, Colouring(side, main) if turned else Colouring(main, side)
    assert best is not None
    return best[1]


def greedy(pattern: Pattern) -> Array:
    """Column colours in natural order."""
    return greedy_columns(pattern, list(range(pattern.shape[1])))


def removals(counts: Array) -> list[Array]:
    """Masks of the densest rows: none, then 1, 2, 4, … of them while the next ones are denser than average."""
    order = np.argsort(-counts, kind="stable")
    average = counts.mean() if counts.size else 0.0
    masks = [np.zeros(counts.size, dtype=bool)]
    for power in itertools.count():
        size = 1 << power
        if size > min(counts.size, 4096) or counts[order[size - 1]] <= average:
            break
        mask = np.zeros(counts.size, dtype=bool)
        mask[order[:size]] = True
        masks.append(mask)
        # All rows as dense as the last one taken belong with it.
        same = counts >= counts[order[size - 1]]
        if same.sum() != size and same.sum() <= 4096:
            masks.append(same)
    return masks
