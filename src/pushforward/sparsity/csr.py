"""Boolean matrices in compressed rows: the pattern of a Jacobian or Hessian.

Row i holds the sorted columns `indices[indptr[i] : indptr[i + 1]]`. Everything is vectorised numpy; scipy and torch
matrices and masks come in through `Pattern.of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..core.errors import ArgumentError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Pattern:
    """The places of an m × n matrix that may be nonzero.

    Args:
        shape: `(m, n)`.
        indptr: int64 of length m + 1; where each row begins.
        indices: int64; the columns, sorted within a row and without repetition.

    Example:
        >>> import numpy as np
        >>> p = Pattern.from_mask(np.array([[1, 0, 1], [0, 1, 0]]))
        >>> p.nnz, p.T.shape
        (3, (3, 2))
    """

    shape: tuple[int, int]
    indptr: Array
    indices: Array

    @staticmethod
    def from_coo(rows: Any, cols: Any, shape: tuple[int, int]) -> Pattern:
        """From row and column numbers in any order, repetitions allowed."""
        m, n = shape
        key = np.asarray(rows, dtype=np.int64) * max(n, 1) + np.asarray(cols, dtype=np.int64)
        key = unique_sorted(key)
        rows, cols = np.divmod(key, max(n, 1))
        return Pattern((m, n), pointers(rows, m), cols)

    @staticmethod
    def from_mask(mask: Any) -> Pattern:
        """From a dense matrix; what is not zero counts."""
        dense = np.asarray(mask.detach().cpu() if isinstance(mask, torch.Tensor) else mask)
        if dense.ndim != 2:
            msg = f"a sparsity mask has two dimensions (outputs × inputs), but this one has shape {list(dense.shape)}"
            raise ArgumentError(msg)
        rows, cols = np.nonzero(dense)
        return Pattern(
            (int(dense.shape[0]), int(dense.shape[1])), pointers(rows, dense.shape[0]), cols.astype(np.int64)
        )

    @staticmethod
    def full(m: int, n: int) -> Pattern:
        """Every place."""
        return Pattern((m, n), np.arange(m + 1, dtype=np.int64) * n, np.tile(np.arange(n, dtype=np.int64), m))

    @staticmethod
    def of(value: Any) -> Pattern:
        """From a Pattern, a mask, a scipy sparse matrix or a torch sparse tensor (stored zeros count as places)."""
        if isinstance(value, Pattern):
            return value
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            coo = value.detach().to_sparse_coo().coalesce().cpu()
            places = coo.indices().numpy()
            return Pattern.from_coo(places[0], places[1], (int(value.shape[0]), int(value.shape[1])))
        if hasattr(value, "tocoo"):
            coo = getattr(value, "tocoo")()  # noqa: B009  (a scipy matrix)
            return Pattern.from_coo(coo.row, coo.col, (int(coo.shape[0]), int(coo.shape[1])))
        if isinstance(value, (torch.Tensor, np.ndarray, list, tuple)):
            return Pattern.from_mask(value)
        msg = (
            "a sparsity pattern is a Pattern, a mask, a scipy sparse matrix or a torch sparse tensor, "
            f"not a {type(value).__name__}"
        )
        raise ArgumentError(msg)

    @property
    def nnz(self) -> int:
        """How many places there are."""
        return int(self.indices.size)

    @property
    def density(self) -> float:
        """nnz / (m n)."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def rows(self) -> Array:
        """The row of each place, in the order of `indices`."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int64), self.row_counts)

    @property
    def row_counts(self) -> Array:
        """Places in each row."""
        return np.diff(self.indptr)

    @property
    def column_counts(self) -> Array:
        """Places in each column."""
        return np.bincount(self.indices, minlength=self.shape[1])

    @property
    def T(self) -> Pattern:
        """The transposed pattern."""
        m, n = self.shape
        order = np.argsort(self.indices, kind="stable")
        return Pattern((n, m), pointers(self.indices[order], n), self.rows[order])

    @property
    def is_symmetric(self) -> bool:
        """Whether the pattern equals its transpose."""
        other = self.T
        return self.shape[0] == self.shape[1] and bool(
            np.array_equal(self.indptr, other.indptr) and np.array_equal(self.indices, other.indices)
        )

    def symmetrised(self) -> Pattern:
        """The union with the transpose."""
        other = self.T
        return Pattern.from_coo(
            np.concatenate([self.rows, other.rows]), np.concatenate([self.indices, other.indices]), self.shape
        )

    def keys(self) -> Array:
        """One sorted number for each place: row · n + column."""
        return self.rows * max(self.shape[1], 1) + self.indices

    def covers(self, other: Pattern) -> bool:
        """Whether every place of `other` is a place of this one."""
        return self.shape == other.shape and not bool(np.setdiff1d(other.keys(), self.keys(), assume_unique=True).size)

    def keeping_rows(self, keep: Array) -> Pattern:
        """The places in the rows marked in `keep`; the others become empty."""
        mask = np.repeat(keep, self.row_counts)
        counts = np.where(keep, self.row_counts, 0)
        return Pattern(self.shape, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), self.indices[mask])

    def block(self, rows: slice, cols: slice) -> Pattern:
        """The places in a range of rows and columns."""
        lo, hi = self.indptr[rows.start], self.indptr[rows.stop]
        r, c = self.rows[lo:hi] - rows.start, self.indices[lo:hi]
        inside = (c >= cols.start) & (c < cols.stop)
        shape = (rows.stop - rows.start, cols.stop - cols.start)
        return Pattern(shape, pointers(r[inside], shape[0]), c[inside] - cols.start)

    def to_mask(self) -> Array:
        """A dense boolean matrix."""
        mask = np.zeros(self.shape, dtype=bool)
        mask[self.rows, self.indices] = True
        return mask

    def to_scipy(self) -> Any:
        """A `scipy.sparse.csr_array` of ones (scipy is an extra)."""
        from scipy.sparse import csr_array

        return csr_array((np.ones(self.nnz, dtype=np.int8), self.indices, self.indptr), shape=self.shape)

    def __repr__(self) -> str:
        return f"Pattern({self.shape[0]} × {self.shape[1]}, {self.nnz} places, {100 * self.density:.3g} %)"


def unique_sorted(key: Array) -> Array:
    """The different values of an int64 array, sorted."""
    if key.size < 2:
        return key
    key = np.sort(key)
    keep = np.empty(key.size, dtype=bool)
    keep[0] = True
    np.not_equal(key[1:], key[:-1], out=keep[1:])
    return key[keep]


def pointers(sorted_rows: Array, count: int) -> Array:
    """Row pointers of sorted row numbers."""
    out = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(sorted_rows, minlength=count), out=out[1:])
    return out
