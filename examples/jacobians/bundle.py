"""Bundle adjustment: the block pattern of reprojection errors by cameras and points.

Camera c has a rotation vector, a translation, a focal length and two distortions (9 numbers), each point 3. One
observation gives two residuals, which depend on one camera and one point: 12 places in a row, whatever the size of the
problem (Agarwal, Snavely, Seitz, Szeliski: Bundle adjustment in the large, 2010).
Run: python -m examples.jacobians.bundle
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import pushforward as pf

Tensor = torch.Tensor


@dataclass(frozen=True)
class Scene:
    """Who sees what: `camera[k]` sees `point[k]` at `seen[k]` (pixels)."""

    camera: Tensor
    point: Tensor
    seen: Tensor


def project(cameras: Tensor, points: Tensor) -> Tensor:
    """Pixels [K, 2] of points [K, 3] seen by cameras [K, 9]."""
    rotation, translation, intrinsics = cameras.split([3, 3, 3], 1)
    angle = torch.sqrt((rotation**2).sum(1, keepdim=True) + 1e-24)
    axis = rotation / angle
    along = (axis * points).sum(1, keepdim=True)
    turned = (
        points * torch.cos(angle)
        + torch.linalg.cross(axis, points) * torch.sin(angle)
        + axis * along * (1 - torch.cos(angle))
    )
    x, y, z = (turned + translation).unbind(1)
    u, v = -x / z, -y / z
    focal, k1, k2 = intrinsics.unbind(1)
    r2 = u * u + v * v
    factor = focal * (1 + r2 * (k1 + k2 * r2))
    return torch.stack([factor * u, factor * v], 1)


def residuals(scene: Scene, cameras: Tensor, points: Tensor) -> Tensor:
    """Reprojection errors [2 K] of cameras [C, 9] and points [P, 3]."""
    return (project(cameras[scene.camera], points[scene.point]) - scene.seen).reshape(-1)


def example(cameras: int = 8, points: int = 60, seen_by: int = 3, seed: int = 0) -> tuple[Scene, Tensor, Tensor]:
    """A scene with noise: each point is seen by a few cameras."""
    generator = torch.Generator().manual_seed(seed)
    noise = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    where = noise(points, 3) - torch.tensor([0.0, 0.0, 8.0], dtype=torch.float64)
    setup = torch.cat(
        [0.1 * noise(cameras, 3), 0.3 * noise(cameras, 3), torch.full((cameras, 1), 500.0), 1e-3 * noise(cameras, 2)], 1
    )
    point = torch.arange(points).repeat_interleave(seen_by)
    camera = torch.cat([torch.randperm(cameras, generator=generator)[:seen_by] for _ in range(points)])
    seen = project(setup[camera], where[point]) + 0.5 * noise(points * seen_by, 2)
    return Scene(camera, point, seen), setup, where


if __name__ == "__main__":
    scene, setup, where = example(50, 5000)
    plan = pf.plan(lambda c, p: residuals(scene, c, p), setup, where, argnums=(0, 1), sparsity="global")
    plan.explain()
    by_camera, by_point = plan(setup, where)
    print(f"blocks of {tuple(by_camera.shape)} and {tuple(by_point.shape)}")
