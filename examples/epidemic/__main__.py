"""`python -m examples.epidemic` fits the model to the counts and prints what it finds."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from examples.epidemic.fit import SETTINGS, Fit, fit, read_counts

BAR = 46


def describe(found: Fit) -> str:
    """The way from the guess to the optimum, a step a line."""
    lines = [f"{found.setting.name}:"]
    for number, at in enumerate(found.path):
        beta, gamma, *cases = at.parameters.tolist()
        free = f"   cases {cases[0]:.3f}" if cases else ""
        lines.append(f"  step {number:2d}   half sum of squares {at.misfit:11.3f}  β {beta:.4f}   γ {gamma:.4f}{free}")
    return "\n".join(lines)


def summarise(fits: list[Fit]) -> str:
    """β, γ and R0 of each setting with standard errors."""
    lines = [
        f"{'start of the epidemic':<42}{'β per day':>15}{'γ per day':>15}{'R0 = β/γ':>15}{'cases on day 1':>17}",
        "-" * 104,
    ]
    for found in fits:
        errors = found.covariance.diagonal().sqrt().tolist()
        values = found.parameters.tolist()
        r0, r0_error = found.reproduction
        pairs = [(values[0], errors[0]), (values[1], errors[1]), (r0, r0_error)]
        cells = "".join(f"{value:>8.3f} ±{error:.3f}" for value, error in pairs)
        cases = f"{values[2]:>10.2f} ±{errors[2]:.2f}" if found.setting.cases is None else ""
        lines.append(f"{found.setting.name:<42}{cells}{cases}".rstrip())
    return "\n".join(lines)


def chart(found: Fit) -> str:
    """The counts as bars and the fitted curve as a mark on them, a day a line."""
    days, counts = read_counts()
    scale = BAR / max(counts.max(), found.curve.max()).item()
    lines = ["day  counted  model"]
    for day, count, model in zip(days.tolist(), counts.tolist(), found.curve.tolist(), strict=True):
        bar = list("█" * round(count * scale) + " " * (BAR + 1 - round(count * scale)))
        bar[round(model * scale)] = "◆"
        lines.append(f"{day:3.0f}  {count:7.0f}  {model:5.0f}  {''.join(bar).rstrip()}")
    return "\n".join(lines)


def main() -> None:
    """Fit the three settings, print them, and write the last one's parameters for the sensitivity report."""
    parser = argparse.ArgumentParser(prog="python -m examples.epidemic", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/epidemic"), help="where fit.npz is written")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print("Influenza in an English boarding school, 1978: 763 boys, an SIR model, Gauss-Newton on Jacobians in")
    print("forward mode. Each fit starts from a rough guess.\n")
    start = time.perf_counter()
    fits: list[Fit] = []
    for setting in SETTINGS:
        fits.append(fit(setting))
        print(describe(fits[-1]), end="\n\n", flush=True)
    steps = sum(len(found.path) - 1 for found in fits)
    print(f"{len(fits)} fits, {steps} steps in {time.perf_counter() - start:.1f} s.\n")
    print(summarise(fits), end="\n\n")
    free = fits[-1]
    print(f"Counts (bars) and the last fit (◆):\n{chart(free)}\n")
    names = ("beta", "gamma", "first_cases")
    path = folder / "fit.npz"
    np.savez(path, **{name: np.array(value) for name, value in zip(names, free.parameters.tolist(), strict=True)})
    print(f"wrote {path}\n")


if __name__ == "__main__":
    main()
