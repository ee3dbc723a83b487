"""Padding, interpolation, patches and shuffles: linear in the image, the same for every sample and channel.

Sampling on a grid is linear in the image and, between its kinks, smooth in the grid: its tangent is taken from the
interpolation weights written out.
"""

from __future__ import annotations

from typing import Any

import torch

from .derived import pulled_back
from .kinds import Linear, Special
from .lanes import as_it_is, merged, over_samples, parted, some_lanes
from .pool import first_only
from .table import row

Tensor = torch.Tensor

for _d in (1, 2, 3):
    row(f"reflection_pad{_d}d replication_pad{_d}d", Linear(), batch=over_samples(_d + 2))
    row(
        f"reflection_pad{_d}d_backward replication_pad{_d}d_backward",
        Special(),
        batch=over_samples(_d + 2),
        tangent=first_only,
    )
    row(f"upsample_nearest{_d}d _upsample_nearest_exact{_d}d", Linear(), batch=over_samples(_d + 2))
    row(f"upsample_nearest{_d}d_backward _upsample_nearest_exact{_d}d_backward", Linear(), batch=over_samples(_d + 2))

_SMOOTH = (
    ("upsample_linear1d", 3),
    ("upsample_bilinear2d", 4),
    ("upsample_bicubic2d", 4),
    ("upsample_trilinear3d", 5),
    ("_upsample_bilinear2d_aa", 4),
    ("_upsample_bicubic2d_aa", 4),
    ("_upsample_lanczos2d_aa", 4),
)
for _name, _rank in _SMOOTH:
    row(f"{_name} {_name}_backward", Linear(), batch=over_samples(_rank))

row("im2col", Linear(), batch=over_samples(4))
row("col2im", Linear(), batch=over_samples(3))
row("pixel_shuffle pixel_unshuffle", Linear(), batch=as_it_is)


def batch_channel_shuffle(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """`[N, C, …]` of any rank: the lanes join the samples."""
    x = args[0]
    if x.dim() < 4:
        msg = f"{op.name()}: expected more than 2 dimensions, but got {x.dim() - 1}"
        raise RuntimeError(msg)
    return op(merged(x), *args[1:], **kwargs).reshape(x.shape)


row("channel_shuffle native_channel_shuffle", Linear(), batch=batch_channel_shuffle, tangent=first_only)

@some_lanes
def batch_affine_grid(op: Any, level: Any, args: list[Any], mapped: Any, kwargs: dict[str, Any]) -> Tensor:
    """The grid of `[N, …]` transformations: the lanes join N."""
    theta, size, align_corners = args
    del mapped
    out = op(merged(theta), [level.size * size[0], *size[1:]], align_corners, **kwargs)
    return parted(out, level.size, size[0])


row("affine_grid_generator", Linear(), batch=batch_affine_grid)


# -- sampling on a grid ----------------------------------------------------------------------------------------------

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def unnormalised(coordinate: Tensor, size: int, align_corners: bool) -> Tensor:
    """From [−1, 1] to pixels."""
    return (coordinate + 1) * ((size - 1) / 2) if align_corners else ((coordinate + 1) * size - 1) / 2


def reflected(x: Tensor, low: int, high: int) -> Tensor:
    """Folded back and forth into [low/2, high/2]."""
    if low == high:
        return torch.zeros_like(x)
    start, span = low / 2, (high - low) / 2
    x = (x - start).abs()
    extra, flips = torch.fmod(x, span), torch.floor(x / span)
    return torch.where(flips % 2 == 0, extra + start, span - extra + start)


def clipped(x: Tensor, size: int) -> Tensor:
    """Into [0, size − 1]; at and beyond the bounds nothing moves, as in torch's reverse mode."""
    return torch.where((x > 0) & (x < size - 1), x, (x > 0).to(x.dtype) * (size - 1))


def padded(x: Tensor, size: int, padding: int, align_corners: bool) -> Tensor:
    """A pixel coordinate after the treatment of what lies outside."""
    if padding == BORDER:
        return clipped(x, size)
    if padding == REFLECTION:
        x = reflected(x, 0, 2 * (size - 1)) if align_corners else reflected(x, -1, 2 * size - 1)
        return clipped(x, size)
    return x


def pixels(image: Tensor, places: list[Tensor]) -> Tensor:
    """image[n, :, places…] for integer places `[N, …]`, 0 outside."""
    sizes = image.shape[2:]
    inside: Any = None
    flat: Any = None
    for p, size in zip(places, sizes, strict=True):
        good = (p >= 0) & (p < size)
        inside = good if inside is None else inside & good
        p = p.clamp(0, max(size - 1, 0))
        flat = p if flat is None else flat * size + p
    n, c = image.shape[:2]
    index = flat.reshape(n, 1, -1).expand(n, c, -1)
    values = image.flatten(2).gather(2, index).reshape(n, c, *flat.shape[1:])
    return torch.where(inside.unsqueeze(1), values, 0).to(image.dtype)


def cubic_weights(t: Tensor) -> list[Tensor]:
    """Keys' kernel, A = −3/4, at distances 1 + t, t, 1 − t, 2 − t."""
    a = -0.75

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def grid_sampler(image: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Values of `[N, C, (D,) H, W]` at `[N, …, coordinates]`, the last coordinate axis first in the grid."""
    sizes = image.shape[2:]
    axes = [unnormalised(c, n, align_corners) for c, n in zip(grid.unbind(-1)[::-1], sizes, strict=True)]
    if mode == BICUBIC:
        return bicubic(image, axes, padding, align_corners)
    axes = [padded(c, n, padding, align_corners) for c, n in zip(axes, sizes, strict=True)]
    if mode == NEAREST:
        return pixels(image, [c.detach().round().long() for c in axes])
    floors = [c.detach().floor() for c in axes]
    total: Any = None
    for corner in range(1 << len(axes)):
        weight: Any = None
        places = []
        for k, (c, f) in enumerate(zip(axes, floors, strict=True)):
            up = corner >> k & 1
            part = c - f if up else f + 1 - c
            weight = part if weight is None else weight * part
            places.append((f + up).long())
        value = pixels(image, places) * weight.unsqueeze(1)
        total = value if total is None else total + value
    return total


def bicubic(image: Tensor, axes: list[Tensor], padding: int, align_corners: bool) -> Tensor:
    """Sixteen pixels, each padded by itself."""
    floors = [c.detach().floor() for c in axes]
    weights = [cubic_weights(c - f) for c, f in zip(axes, floors, strict=True)]
    sizes = image.shape[2:]
    total: Any = None
    for i in range(4):
        line: Any = None
        row_place = padded(floors[0] + (i - 1), sizes[0], padding, align_corners)
        for j in range(4):
            column = padded(floors[1] + (j - 1), sizes[1], padding, align_corners)
            value = pixels(image, [row_place.long(), column.long()]) * weights[1][j].unsqueeze(1)
            line = value if line is None else line + value
        line = line * weights[0][i].unsqueeze(1)
        total = line if total is None else total + line
    return total


def grid_sampler_backward(
    g: Tensor, image: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, mask: Any
) -> Any:
    """The reverse mode of the written-out interpolation."""
    by_image, by_grid = pulled_back(lambda x, c: grid_sampler(x, c, mode, padding, align_corners), [image, grid], [g])
    return by_image if mask[0] else None, by_grid if mask[1] else None


for _d in (2, 3):
    row(f"grid_sampler_{_d}d", Special(), batch=over_samples(_d + 2), formula=grid_sampler)
    row(f"grid_sampler_{_d}d_backward", Special(), batch=over_samples(_d + 2), formula=grid_sampler_backward)
row("_grid_sampler_2d_cpu_fallback", Special(), batch=over_samples(4), formula=grid_sampler)
