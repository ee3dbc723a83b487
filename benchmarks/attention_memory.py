"""``python -m benchmarks.attention_memory``: the peak memory of forward mode through fused attention, by length.

The tangent runs over blocks of keys, so that the peak grows with the length L, and not with its square as that of
softmax(q kᵀ) v written out. ``--record`` keeps the numbers in `benchmarks/attention_memory.json`, from which
`./run conformance --page` makes a table in `docs/coverage.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import pushforward

from .memory import peak_of_tensors

RECORDED = Path(__file__).with_name("attention_memory.json")
LENGTHS = (1024, 2048, 4096, 8192)
HEADS, WIDTH = 2, 32
MODES = {
    "jvp": lambda f, x, v: pushforward.jvp(f, x, v)[1],
    "jvp(grad)": lambda f, x, v: pushforward.jvp(pushforward.grad(lambda *x: f(*x).square().sum()), x, v)[1],
}


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with its matrix of L × L weights."""
    return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v


def point(length: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Queries, keys and values, and a direction."""
    draw = torch.Generator().manual_seed(length)
    made = torch.randn(6, 1, HEADS, length, WIDTH, generator=draw).unbind(0)
    return made[:3], made[3:]


def measured(length: int, both: bool) -> dict[str, Any]:
    """Peak bytes above the arguments, and the largest difference from the formula written out where `both`."""
    x, v = point(length)
    found: dict[str, Any] = {"length": length}
    for name, mode in MODES.items():
        fused = torch.nn.functional.scaled_dot_product_attention
        found[name] = peak_of_tensors(lambda mode=mode: mode(fused, x, v))
        if both:
            found[f"{name}, written out"] = peak_of_tensors(lambda mode=mode: mode(written_out, x, v))
            got, expected = mode(fused, x, v), mode(written_out, x, v)
            found[f"{name}, difference"] = float((got - expected).abs().max() / expected.abs().max())
    return found


def growth(rows: list[dict[str, Any]], mode: str) -> float:
    """How many times the peak grows from the first length to the last."""
    return rows[-1][mode] / rows[0][mode]


def main(argv: list[str] | None = None) -> int:
    """The exit code is 1 where the peak grows faster than the length, by more than a tenth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_memory", description=__doc__)
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=LENGTHS)
    parser.add_argument("--written-out", type=int, default=4096, help="the longest sequence for the formula written out")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for length in options.lengths:
        rows.append(measured(length, length <= options.written_out))
        shown = (f"{k} {v / 2**20:.1f} MiB" if type(v) is int else f"{k} {v:.1e}" for k, v in rows[-1].items())
        print(", ".join([str(length), *list(shown)[1:]]), flush=True)
    longer = options.lengths[-1] / options.lengths[0]
    grown = {mode: growth(rows, mode) for mode in MODES}
    print(f"{longer:.0f} times the length: " + ", ".join(f"{m} {g:.1f} times the peak" for m, g in grown.items()))
    if options.record:
        RECORDED.write_text(json.dumps({"heads": HEADS, "width": WIDTH, "rows": rows}, indent=1) + "\n")
    return int(any(g > 1.1 * longer for g in grown.values()))


if __name__ == "__main__":
    sys.exit(main())
