"""A pool of sets of input elements, each known by a number.

Label 0 is the empty set, label j + 1 the set {j}, label n + 1 the set of all n. An array of labels says for each
element of a tensor which inputs it can depend on; many elements share a set, so moving elements moves small integers,
and a union is formed once for each different combination.
"""

from __future__ import annotations

import numpy as np

from .csr import Array, Pattern, pointers, unique_sorted

# Beyond so many stored numbers new unions become the full set: a superset, so no nonzero is missed.
CAPACITY = 60_000_000
# Unions are formed in parts of so many numbers, to bound the memory of the sort.
PART = 4_000_000


def mixed(labels: Array) -> Array:
    """A pseudo-random 64-bit number for each label, to compare sets of labels by their sum."""
    x = labels.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Sets:
    """Sets of the numbers 0 … n − 1 by label."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.full = n + 1
        self.saturated = False
        self.starts = np.zeros(max(2 * n, 16) + 3, dtype=np.int64)
        self.starts[1 : n + 2] = np.arange(n + 1)  # label 0 is empty, labels 1 … n hold one number each
        self.starts[n + 2] = 2 * n
        self.count = n + 2
        self.contents = np.empty(max(4 * n, 64), dtype=np.int32)
        self.contents[:n] = np.arange(n)
        self.contents[n : 2 * n] = np.arange(n)
        self.used = 2 * n
        if n == 1:
            self.full = 1

    def sizes(self, labels: Array) -> Array:
        """How many numbers each set has."""
        return self.starts[labels + 1] - self.starts[labels]

    def expanded(self, labels: Array) -> tuple[Array, Array]:
        """The numbers of all sets, one set after the other, and for each the position of its set in `labels`."""
        sizes = self.sizes(labels)
        owner = np.repeat(np.arange(labels.size, dtype=np.int64), sizes)
        first = np.cumsum(sizes) - sizes
        places = np.arange(owner.size, dtype=np.int64) + np.repeat(self.starts[labels] - first, sizes)
        return self.contents[places].astype(np.int64), owner

    def either(self, a: Array, b: Array) -> Array:
        """Element-wise unions of two arrays of labels of one shape."""
        out = np.where(a == 0, b, a)
        apart = (a != b) & (a != 0) & (b != 0)
        if not apart.any():
            return out
        low, high = np.minimum(a[apart], b[apart]), np.maximum(a[apart], b[apart])
        pairs, inverse = np.unique(low * self.count + high, return_inverse=True)
        low, high = np.divmod(pairs, self.count)
        rows = np.repeat(np.arange(pairs.size, dtype=np.int64), 2)
        made = self.stored(rows, np.stack([low, high], 1).reshape(-1), pairs.size)
        out[apart] = made[inverse]
        return out

    def joined(self, rows: Array, labels: Array, count: int) -> Array:
        """For each of `count` rows the union of the labels that stand beside its number."""
        out = np.zeros(count, dtype=np.int64)
        some = labels != 0
        if not some.all():
            rows, labels = rows[some], labels[some]
        if not labels.size:
            return out
        rows, labels = np.divmod(unique_sorted(rows * self.count + labels), self.count)
        start = pointers(rows, count)
        counts = np.diff(start)
        single = counts == 1
        out[single] = labels[start[:-1][single]]
        multiple = np.flatnonzero(counts > 1)
        if not multiple.size:
            return out
        totals = np.concatenate([[np.uint64(0)], np.add.accumulate(mixed(labels))])
        signature = totals[start[1:][multiple]] - totals[start[:-1][multiple]]
        _, first, inverse = np.unique(signature, return_index=True, return_inverse=True)
        chosen = multiple[first]
        sizes = counts[chosen]
        offset = np.cumsum(sizes) - sizes
        owner = np.repeat(np.arange(chosen.size, dtype=np.int64), sizes)
        places = np.arange(owner.size, dtype=np.int64) + np.repeat(start[:-1][chosen] - offset, sizes)
        out[multiple] = self.stored(owner, labels[places], chosen.size)[inverse]
        return out

    def all_of(self, *arrays: Array | None) -> int:
        """One label for the union of everything in some arrays of labels."""
        given = [np.unique(a) for a in arrays if a is not None]
        if not given:
            return 0
        labels = np.concatenate(given)
        return int(self.joined(np.zeros(labels.size, dtype=np.int64), labels, 1)[0])

    def stored(self, rows: Array, labels: Array, count: int) -> Array:
        """New labels for the unions of the labels beside each row number (rows sorted, each with two or more)."""
        out = np.full(count, self.full, dtype=np.int64)
        open_rows = np.ones(count, dtype=bool)
        open_rows[rows[labels == self.full]] = False
        keep = open_rows[rows]
        rows, labels = rows[keep], labels[keep]
        sizes = np.bincount(rows, weights=self.sizes(labels), minlength=count).astype(np.int64)
        todo = np.flatnonzero(open_rows)
        if not todo.size:
            return out
        parts = np.cumsum(sizes[todo]) // PART
        bounds = np.flatnonzero(np.diff(parts)) + 1
        for part in np.split(todo, bounds):
            if self.used > CAPACITY or int(sizes[part].sum()) > CAPACITY:
                self.saturated = True
                return out
            low, high = np.searchsorted(rows, [part[0], part[-1] + 1])
            numbers, owner = self.expanded(labels[low:high])
            key = unique_sorted(rows[low:high][owner] * self.n + numbers)
            owners, numbers = np.divmod(key, self.n)
            out[part] = self.append(owners, numbers, part)
        return out

    def append(self, owners: Array, numbers: Array, wanted: Array) -> Array:
        """Store sets (numbers sorted by owner) and give their labels; equal ones share a label."""
        sizes = np.bincount(np.searchsorted(wanted, owners), minlength=wanted.size)
        start = np.concatenate([[0], np.cumsum(sizes)])
        totals = np.concatenate([[np.uint64(0)], np.add.accumulate(mixed(numbers))])
        content = totals[start[1:]] - totals[start[:-1]]
        _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
        labels = np.empty(first.size, dtype=np.int64)
        whole = sizes[first] == self.n
        labels[whole] = self.full
        kept = first[~whole]
        mask = np.zeros(wanted.size, dtype=bool)
        mask[kept] = True
        order = np.sort(kept)
        rank = np.empty(wanted.size, dtype=np.int64)
        rank[order] = np.arange(order.size)
        labels[~whole] = self.count + rank[kept]
        chosen = numbers[np.repeat(mask, sizes)]
        self.reserve(chosen.size, kept.size)
        self.contents[self.used : self.used + chosen.size] = chosen
        ends = self.used + np.cumsum(sizes[order])
        self.starts[self.count + 1 : self.count + 1 + kept.size] = ends
        self.used += chosen.size
        self.count += kept.size
        return labels[inverse]

    def reserve(self, numbers: int, sets: int) -> None:
        """Room for more."""
        if self.used + numbers > self.contents.size:
            grown = np.empty(max(2 * self.contents.size, self.used + numbers), dtype=np.int32)
            grown[: self.used] = self.contents[: self.used]
            self.contents = grown
        if self.count + sets + 1 > self.starts.size:
            starts = np.zeros(max(2 * self.starts.size, self.count + sets + 2), dtype=np.int64)
            starts[: self.count + 1] = self.starts[: self.count + 1]
            self.starts = starts

    def pattern(self, labels: Array) -> Pattern:
        """The matrix whose i-th row is the i-th set."""
        numbers, _ = self.expanded(labels)
        return Pattern(
            (labels.size, self.n), np.concatenate([[0], np.cumsum(self.sizes(labels))]).astype(np.int64), numbers
        )
