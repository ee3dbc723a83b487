"""Shapes that torch asks of one lane, where the rule for all lanes would make do with others by broadcasting.

A kernel for one lane checks what it is given; the rule for all of them often computes with elementary operators, which
stretch a weight of one number, or take the first dimension of a captured tensor for that of the lanes. These are the
kernel's checks, on shapes without the mapped dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Shape = tuple[int, ...]


class Lane:
    """The arguments of one lane, by position or by name."""

    def __init__(self, op: Any, args: Sequence[Any], mapped: Any, kwargs: dict[str, Any]) -> None:
        self.op, self.args, self.mapped, self.kwargs = op, args, mapped, kwargs

    def place(self, name: str) -> int | None:
        """Where the argument of this name is given."""
        return next((k for k, a in enumerate(self.op._schema.arguments[: len(self.args)]) if a.name == name), None)

    def shape(self, which: int | str) -> Shape | None:
        """The shape of a tensor argument; None where there is none."""
        if isinstance(which, str):
            k = self.place(which)
            if k is None:
                return shape_of(self.kwargs.get(which), which in getattr(self.mapped, "keywords", ()))
            which = k
        return shape_of(self.args[which], self.mapped[which]) if which < len(self.args) else None

    def must_be(self, name: str, expected: Shape) -> None:
        """Raise unless the argument called `name` is None or of this shape."""
        found = self.shape(name)
        if found is not None and found != expected:
            self.refuse(f"expected {name} to have the shape {list(expected)}, but got {list(found)}")

    def must_expand(self, found: Shape | None, to: Shape, name: str) -> None:
        """Raise unless something of the shape `found` expands to `to`."""
        if found is not None and not expands(found, to):
            self.refuse(f"{name} of shape {list(found)} does not expand to {list(to)}")

    def refuse(self, why: str) -> None:
        """Raise torch's class of error."""
        msg = f"{self.op._schema.name.removeprefix('aten::')}: {why}"
        raise RuntimeError(msg)


def shape_of(x: Any, mapped: Any) -> Shape | None:
    """The shape of one lane."""
    return tuple(x.shape[bool(mapped) :]) if isinstance(x, Tensor) else None


def expands(a: Shape, b: Shape) -> bool:
    """Whether `a` expands to `b`."""
    return len(a) <= len(b) and all(m in (1, n) for m, n in zip(reversed(a), reversed(b), strict=False))


def known(shape: Shape | None) -> Shape:
    """A shape that is there."""
    return shape if shape is not None else ()


# -- layers ------------------------------------------------------------------------------------------------------------


def convolution(lane: Lane) -> None:
    """A bias for each channel of the result."""
    weight, transposed, groups = known(lane.shape(1)), lane.args[6], lane.args[8]
    if len(weight) > 1:
        lane.must_be("bias", (weight[1] * groups if transposed else weight[0],))


def batch_norm(lane: Lane) -> None:
    """A weight, a bias and statistics for each channel; torch counts the numbers of the first two only."""
    x = known(lane.shape(0))
    if len(x) < 2:
        return
    for name in ("running_mean", "running_var"):
        lane.must_be(name, (x[1],))
    for name in ("weight", "bias"):
        found = lane.shape(name)
        if found is not None and math.prod(found) != x[1]:
            lane.refuse(f"expected {name} to hold {x[1]} numbers, but got the shape {list(found)}")


def layer_norm(lane: Lane) -> None:
    """A weight and a bias for each normalised number."""
    for name in ("weight", "bias"):
        lane.must_be(name, tuple(lane.args[1]))


def attention(lane: Lane) -> None:
    """A mask that stretches to the scores."""
    q, k = known(lane.shape(0)), known(lane.shape(1))
    mask = lane.shape("attn_mask")
    if mask is not None and q and k:
        lane.must_expand(mask, (*q[:-1], k[-2]), "the mask")


# -- losses ------------------------------------------------------------------------------------------------------------


def class_weights(lane: Lane) -> None:
    """A weight for each class."""
    x = known(lane.shape(0))
    if x:
        lane.must_be("weight", x[1:2] or x)


def binary_cross_entropy(lane: Lane) -> None:
    """A target and a weight that stretch to the input; the kernel drops dimensions of one before it compares."""
    x, target = known(lane.shape(0)), known(lane.shape(1))
    squeezed = [tuple(n for n in shape if n != 1) for shape in (target, x)]
    lane.must_expand(squeezed[0], squeezed[1], "the target, without dimensions of one,")
    lane.must_expand(lane.shape("weight"), x, "the weight")


# -- places ------------------------------------------------------------------------------------------------------------


def as_strided_scatter(lane: Lane) -> None:
    """A source as large as the view."""
    lane.must_be("src", tuple(lane.args[2]))


def copy(lane: Lane) -> None:
    """A source that stretches to what it is written into."""
    lane.must_expand(lane.shape(1), known(lane.shape(0)), "the source")


def one_number(lane: Lane) -> None:
    """A value without dimensions, and places that are a vector."""
    vector_of_places(lane)
    if lane.shape("value") not in (None, ()):
        lane.refuse(f"expected a value without dimensions, but got one of shape {list(known(lane.shape('value')))}")


def vector_of_places(lane: Lane) -> None:
    """An index of one dimension at most."""
    index = lane.shape("index")
    if index is not None and len(index) > 1:
        lane.refuse(f"expected an index of one dimension, but got the shape {list(index)}")


def index(lane: Lane) -> None:
    """A mask of the shape of the dimensions that it stands for."""
    x, d = known(lane.shape(0)), 0
    for one, mapped in zip(lane.args[1], lane.mapped[1] or [False] * len(lane.args[1]), strict=True):
        shape = shape_of(one, mapped)
        if shape is None or one.dtype not in (torch.bool, torch.uint8):
            d += 1
            continue
        if shape != x[d : d + len(shape)]:
            msg = f"the shape of the mask {list(shape)} at index {d} does not match that of the tensor {list(x)}"
            raise IndexError(msg)
        d += len(shape)


def renorm(lane: Lane) -> None:
    """Rows to normalise."""
    if len(known(lane.shape(0))) < 2:
        lane.refuse("expected at least 2 dimensions")


def cat(lane: Lane) -> None:
    """Equal ranks; torch leaves out empty vectors."""
    shapes = [known(shape_of(x, m)) for x, m in zip(lane.args[0], lane.mapped[0], strict=True)]
    ranks = {len(s) for s in shapes if s != (0,)}
    if len(ranks) > 1:
        lane.refuse(f"tensors must have the same number of dimensions, but got {[len(s) for s in shapes]}")


CHECKS: dict[str, Callable[[Lane], None]] = {
    "convolution": convolution,
    "native_batch_norm": batch_norm,
    "_native_batch_norm_legit": batch_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "_native_batch_norm_legit_functional": batch_norm,
    "_batch_norm_with_update": batch_norm,
    "_batch_norm_with_update_functional": batch_norm,
    "native_layer_norm": layer_norm,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "nll_loss_forward": class_weights,
    "nll_loss2d_forward": class_weights,
    "multi_margin_loss": class_weights,
    "binary_cross_entropy": binary_cross_entropy,
    "as_strided_scatter": as_strided_scatter,
    "copy": copy,
    "index_fill": one_number,
    "fill": one_number,
    "index_select": vector_of_places,
    "index_add": vector_of_places,
    "index_copy": vector_of_places,
    "index_reduce": vector_of_places,
    "index": index,
    "index_put": index,
    "renorm": renorm,
    "cat": cat,
}
