"""The other sides of the benchmarks compute what ours compute; their reports say what was measured."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import pushforward as pf
from benchmarks import compiled_report, lanes
from benchmarks.by_hand import Functional, PlainAutograd
from benchmarks.compiled import difference, peak_of_tensors
from benchmarks.compiled_report import OURS, Result
from benchmarks.compiled_workloads import WORKS
from benchmarks.timing import Spread


@pytest.mark.parametrize("library", [PlainAutograd, Functional])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_derivatives_by_hand(work, library):
    if work.name.startswith(("tile", "100 sines of 16, jvp")):
        pytest.skip("seconds of Python")
    work = dataclasses.replace(work, dtype="float64")
    arrays = tree_map(lambda a: torch.from_numpy(a.astype("float64")), work.arrays(np.random.default_rng(0)))
    assert difference(work, work.torch(library)(*arrays), work.torch(pf)(*arrays)) is None


def test_memory_of_a_call():
    x = torch.ones(1000, dtype=torch.float64)
    assert peak_of_tensors(lambda: x.sin()) == 8000


def result(name, dtype, size="small", **microseconds):
    spreads = {side.replace("_", "."): Spread(m, m, m) for side, m in microseconds.items()}
    spreads[OURS] = Spread(2.0, 2.0, 2.0)
    seconds = {OURS: 1.0, "torch.compile": 2.0}
    return Result(name, size, dtype, spreads, seconds, {OURS: 2048})


def test_the_report_of_compiled_programs(tmp_path):
    results = [
        result("a", "float32", torch_compile=8.0, jax_jit=1.0),
        result("a", "float64", torch_compile=2.0, jax_jit=4.0),
    ]
    assert compiled_report.mean(results, "torch.compile") == pytest.approx(2.0)
    assert compiled_report.mean(results, "torch.compile", dtype="float32") == pytest.approx(4.0)
    assert compiled_report.compile_ratio(results) == pytest.approx((0.5, 0.5))
    assert compiled_report.behind(results) == ["a (float32): 2.00 times the time of jax.jit"]
    text = compiled_report.text(results)
    assert "| torch.compile (compiled) | 2.00 | 4.00 | 1.00 | 2.00 | – | – |" in text
    assert "| a (float32) | 1.0 | 2.0 | – | 2.0 | – | – |" in text
    pytest.importorskip("matplotlib")
    compiled_report.draw(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_the_sides_of_a_split_agree():
    work = next(w for w in lanes.splits() if w.name.startswith("1 step"))
    ours = work.sides[lanes.OURS]()
    for side, call in work.sides.items():
        if side != lanes.OURS:
            assert work.same(ours, call()), side
    assert not work.same(ours, ours + 1)


def test_the_sides_of_a_ragged_batch_agree():
    work = next(lanes.ragged())
    ours = work.sides[lanes.OURS]()
    for side, call in work.sides.items():
        if side != lanes.OURS:
            assert work.same(ours, call()), side
