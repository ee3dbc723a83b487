"""From compressed products back to the entries of a sparse matrix, by one gather.

With B = J S (S: 0/1 seeds by column colour) the entry (i, j) stands alone in B[colour(j), i] if no other place of row i
has the colour of j; with C = R J likewise by rows. Every entry is read from one of the two, by an index made once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from ..core.errors import ArgumentError
from ..core.words import kind
from ..sparsity.csr import Array, Pattern
from .colouring import Colouring

Tensor = torch.Tensor


def gather_index(pattern: Pattern, colouring: Colouring) -> Array:
    """For each place of the pattern, where it stands in the forward products followed by the reverse products.

    Raises:
        ArgumentError: some place stands alone in neither.
    """
    m, n = pattern.shape
    rows, cols = pattern.rows, pattern.indices
    forward, reverse = colouring.forward, colouring.reverse
    column, row = colouring.columns[cols], colouring.rows[rows]
    alone = np.zeros(pattern.nnz, dtype=bool)
    if forward:
        key = rows * forward + column
        met = np.bincount(key[column >= 0], minlength=m * forward)
        alone = (column >= 0) & (met[np.where(column >= 0, key, 0)] == 1)
    index = column * m + rows
    if reverse:
        key = cols * reverse + row
        met = np.bincount(key[row >= 0], minlength=n * reverse)
        other = (row >= 0) & (met[np.where(row >= 0, key, 0)] == 1)
        index = np.where(alone, index, forward * m + row * n + cols)
        alone |= other
    if not alone.all():
        msg = f"the colouring does not separate {int((~alone).sum())} of the {pattern.nnz} places"
        raise ArgumentError(msg)
    return index


@dataclass
class Block:
    """One block of the Jacobian in compressed rows: where its values stand among all values."""

    crow: Tensor
    col: Tensor
    select: Tensor | None
    shape: tuple[int, int]

    def filled(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """The block as a sparse tensor."""
        own = values if self.select is None else values[self.select]
        return sparse_csr(self.crow, self.col, own.to(dtype), self.shape)


def sparse_csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A compressed-row tensor, without torch's word that they are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(crow, col, values, size=shape, check_invariants=False)


def cut_blocks(pattern: Pattern, heights: list[int], widths: list[int], device: torch.device) -> list[list[Block]]:
    """The pattern cut by output and input leaves."""
    if len(heights) == len(widths) == 1:
        return [[block_of(pattern, None, device)]]
    number = Pattern(pattern.shape, pattern.indptr, pattern.indices)
    places = np.arange(pattern.nnz)
    out, top = [], 0
    for height in heights:
        line, left = [], 0
        low, high = int(number.indptr[top]), int(number.indptr[top + height])
        for width in widths:
            inside = (number.indices[low:high] >= left) & (number.indices[low:high] < left + width)
            part = number.block(slice(top, top + height), slice(left, left + width))
            line.append(block_of(part, places[low:high][inside], device))
            left += width
        out.append(line)
        top += height
    return out


def block_of(pattern: Pattern, select: Array | None, device: torch.device) -> Block:
    """A block's index tensors."""
    chosen = None if select is None else torch.from_numpy(select).to(device)
    return Block(
        torch.from_numpy(pattern.indptr).to(device), torch.from_numpy(pattern.indices).to(device), chosen, pattern.shape
    )


def to_scipy(jacobian: Tensor) -> object:
    """A sparse or dense block as a `scipy.sparse.csr_array` (scipy is an extra).

    Args:
        jacobian: a block as `jacobian` returns it, without graph; a dense one must have two dimensions.

    Example:
        >>> import torch, pushforward as pf
        >>> j = pf.jacobian(lambda x: x[1:] - x[:-1], sparsity="global")(torch.zeros(3))
        >>> pf.to_scipy(j).toarray()
        array([[-1.,  1.,  0.],
               [ 0., -1.,  1.]], dtype=float32)
    """
    if not isinstance(jacobian, Tensor):
        msg = f"to_scipy: jacobian must be a tensor, but is {kind(jacobian)}"
        raise ArgumentError(msg)
    if jacobian.layout is torch.strided and jacobian.dim() > 2:
        msg = f"to_scipy: jacobian is {kind(jacobian)}; it must have two dimensions: write jacobian.flatten(...)"
        raise ArgumentError(msg)
    from scipy.sparse import csr_array

    jacobian = jacobian.detach().cpu()
    if jacobian.layout is torch.strided:
        return csr_array(jacobian.numpy())
    values, col, crow = jacobian.values().numpy(), jacobian.col_indices().numpy(), jacobian.crow_indices().numpy()
    return csr_array((values, col, crow), shape=tuple(jacobian.shape))
