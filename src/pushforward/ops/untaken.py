"""How dead elements pass through the nodes of autograd's graph, by the kinds of the operators they belong to.

torch names a node after its operator, `index_put` → `IndexPutBackward0`, so the rows of the table say what each node does:

    element-wise                 E = D, over the dimensions that were broadcast: where all of D is
    movement A                   E = {i : (Aᵀ 1[not D])ᵢ = 0}; A has no factors but places: its node itself is run on 1[not D]
    reduction along dimensions   E = D, for each element of the reduced dimensions
    along a dimension            E = D where all of it is dead
    matrix product C = A B       rows of A whose row of C is dead, columns of B whose column of C is; Ā = C̄ Bᴴ and B̄ = Aᴴ C̄
                                 are taken without them
    everything else              E = all or nothing
"""

from __future__ import annotations

import re
from typing import Any

import torch

from ..core.dead import READINGS, SELECTING, STATE, Mask, Reading, onto
from ..core.torch_private import node_types
from ..core.untaken import elements_again
from . import kinds
from .table import ROWS

Tensor = torch.Tensor

# Linear without factors that could cancel: the transpose of ones is 0 only where nothing arrives.
PLACES = """cat stack index_put _unsafe_index_put index_add index_copy index_fill masked_scatter scatter scatter_add
    select_scatter slice_scatter diagonal_scatter put take constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle cumsum
    embedding"""
DROP = """as_strided diagonal tril triu select slice unbind split split_with_sizes unsafe_split unsafe_split_with_sizes unfold
    narrow_copy index _unsafe_index index_select gather masked_select take constant_pad_nd"""
SELECT = "index_put _unsafe_index_put index_fill masked_scatter scatter"  # these write over elements of their input
ALONG = "_softmax _safe_softmax _log_softmax cumprod logcumsumexp _logcumsumexp softmax log_softmax"


def each(masks: dict[int, Mask]) -> Mask:
    """Dead where every output that is used is dead; the outputs have one shape."""
    found = list(masks.values())
    if any(m is None for m in found):
        return None
    mask = found[0]
    for m in found[1:]:
        mask = mask & m
    return mask


def through_places(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """A node without factors: what it passes on of ones at live elements is 0 where nothing arrives."""
    ones = []
    for k, meta in enumerate(node._input_metadata):
        if k not in dead:
            ones.append(None)
            continue
        one = 1 + 1j if meta.dtype.is_complex else 1
        live = torch.full(tuple(meta.shape), one, dtype=meta.dtype, device=meta.device)
        ones.append(live if dead[k] is None else live.masked_fill(dead[k], 0))
    made = node(*ones)
    made = made if isinstance(made, tuple) else (made,)
    known = [s is not None and g is not None and g.layout is torch.strided for g, s in zip(made, shapes, strict=True)]
    return [g == 0 if k else None for g, k in zip(made, known, strict=True)]


def through_where(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """where(c, a, b): a is dead where c is false, b where it is true."""
    mask, taken = dead[0], node._saved_condition
    out = []
    for s, untaken in zip(shapes, (~taken, taken), strict=True):
        out.append(None if s is None else onto(untaken if mask is None else untaken | mask, s))
    return out


def through_masked_fill(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """x.masked_fill(m, v): x is dead where m is true, v where all of m is false."""
    mask, filled = dead[0], node._saved_mask
    out = []
    for s, untaken in zip(shapes, (filled, ~filled), strict=False):
        out.append(None if s is None else onto(untaken if mask is None else untaken | mask, s))
    return out


def through_elements(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """Element-wise, with broadcasting."""
    del node
    mask = each(dead)
    return [None if mask is None or s is None else onto(mask, s) for s in shapes]


def through_all(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """Anything: no cotangent at all, and none passed on."""
    del node
    mask: Mask = None
    for m in dead.values():
        if m is None or (m.dim() and not STATE.looking):  # or else masks would go through the whole graph unseen
            return [None] * len(shapes)
        whole = m.all() if m.dim() else m
        mask = whole if mask is None else mask & whole
    return [None if s is None else mask for s in shapes]


def dims_of(node: Any, rank: int) -> list[int]:
    """The dimensions that a node saved; torch shows negative ones as unsigned."""
    saved = getattr(node, "_saved_dim", None)
    dims = () if saved is None else saved if isinstance(saved, (tuple, list)) else (saved,)
    return sorted((d - 2**64 if d >= 2**63 else d) % max(rank, 1) for d in dims)


def through_reduced(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """A reduction: all elements that went into a dead result."""
    mask = each(dead)
    if mask is None or not mask.dim() or shapes[0] is None:
        return through_all(node, dead, shapes)
    rank = len(shapes[0])
    mask = mask.expand(tuple(node._input_metadata[0].shape))
    if mask.dim() < rank:
        for d in dims_of(node, rank):
            mask = mask.unsqueeze(d)
    return [mask, *[None] * (len(shapes) - 1)] if mask.dim() == rank else through_all(node, dead, shapes)


def through_rows(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
    """Along one dimension: rows that are dead from end to end."""
    mask = dead.get(0)
    if mask is None or not mask.dim() or shapes[0] is None:
        return through_all(node, dead, shapes)
    mask = mask.expand(tuple(node._input_metadata[0].shape))
    dims = dims_of(node, mask.dim())
    return [mask.all(dims[0], keepdim=True) if len(dims) == 1 else mask.all()] + [None] * (len(shapes) - 1)


# Names of the factors of matrix products, as their nodes save them.
PRODUCTS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
}


def product(left: str, right: str, *, vector: bool) -> Reading:
    """The reading of a matrix product; the factors are its last two inputs."""

    def passes(node: Any, dead: dict[int, Mask], shapes: list[Any]) -> list[Mask]:
        mask = dead[0]
        if mask is None or not mask.dim() or not STATE.looking:
            return through_all(node, dead, shapes)
        mask = mask.expand(tuple(node._input_metadata[0].shape))
        rows = mask.unsqueeze(-1) if vector else mask.all(-1, keepdim=True)
        columns = mask.all() if vector else mask.all(-2, keepdim=True)
        added = [None if s is None else onto(mask, s) for s in shapes[:-2]]
        return [*added, rows, columns]

    def again(node: Any, dead: dict[int, Mask], masks: list[Mask], coming: Any, leaving: list[Any]) -> list[Any]:
        del dead
        rows, columns = masks[-2:]
        g = coming[0] if not hasattr(node, "_saved_alpha") or node._saved_alpha == 1 else coming[0] * node._saved_alpha
        if leaving[-1] is not None and rows is not None and rows.dim():
            a = getattr(node, f"_saved_{left}").masked_fill(rows, 0).mH
            leaving[-1] = a.mv(g) if vector else transposed_alike(a, g, leaving[-1])
        if leaving[-2] is not None and columns is not None and columns.dim():
            b = getattr(node, f"_saved_{right}").masked_fill(columns, 0).mH
            leaving[-2] = transposed_alike(g, b, leaving[-2])
        return leaving

    return Reading(passes, again=again, factors=True)


def transposed_alike(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """a b, computed as (bᵀ aᵀ)ᵀ where torch did so."""
    if like.dim() == 2 and like.stride(0) == 1 and like.stride(1) == like.shape[0] and min(like.shape) > 1:
        return b.mT.mm(a.mT).mT
    return a @ b


def class_names(operators: str) -> set[str]:
    """What torch calls the nodes of some operators, without the number of the formula."""
    camel = ["".join(part.title() for part in name.split(".")[0].split("_")) for name in operators.split()]
    return {f"{name}Backward".replace("ForwardBackward", "Backward") for name in camel}


def readings() -> dict[str, Reading]:
    """The reading of each node that has one of its own, by its name without the number of the formula."""
    elements = Reading(through_elements, again=elements_again)
    places = Reading(through_places, exact=True)
    by_kind = {
        kinds.Elementwise: elements,
        kinds.ElementwiseBilinear: elements,
        kinds.ElementwiseLinear: Reading(through_elements, exact=True),
        kinds.Movement: places,
        kinds.Reduction: Reading(through_reduced),
    }
    found = {}
    for row in ROWS.values():
        reading = by_kind.get(type(row.kind))
        if reading is not None:
            found.update(dict.fromkeys(class_names(row.name), reading))
    found.update(dict.fromkeys(class_names("norm"), Reading(through_reduced)))
    found.update(dict.fromkeys(class_names(ALONG), Reading(through_rows)))
    found.update(dict.fromkeys(class_names(PLACES), places))
    found.update(dict.fromkeys(class_names(DROP), Reading(through_places, exact=True, drops=True)))
    found.update(dict.fromkeys(class_names(SELECT), Reading(through_places, exact=True, selects=True)))
    found.update(dict.fromkeys(class_names("add sub rsub"), Reading(through_elements, exact=True)))
    found.update(dict.fromkeys(class_names("sum mean"), Reading(through_reduced, exact=True)))
    for name in class_names("_to_sparse _to_dense"):
        del found[name]
    for name, factors in PRODUCTS.items():
        found.update(dict.fromkeys(class_names(name), product(*factors, vector=factors[1] == "vec")))
    found["CopyBackwards"] = Reading(through_elements, exact=True)
    found["WhereBackward"] = Reading(through_where, exact=True, selects=True)
    found["MaskedFillBackward"] = Reading(through_masked_fill, exact=True, selects=True)
    return found


def install() -> None:
    """Know the nodes of torch's own formulas; a `torch.autograd.Function` of a user's may do anything to a zero."""
    known, anything = readings(), Reading(through_all)
    for name, made in node_types.items():
        formula = re.fullmatch(r"(\w+Backward)\d+", name)
        name = formula[1] if formula is not None else name
        if formula is None and name not in known:
            continue
        READINGS[made] = known.get(name, anything)
        if READINGS[made].selects:
            SELECTING.add(made)


install()
