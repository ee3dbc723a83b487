"""The other sides of the benchmarks compute what ours compute; their reports say what was measured."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import pushforward as pf
from benchmarks import compiled, compiled_report, lanes
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


class Gone(Exception):
    pass


def test_a_new_process_goes_on_where_a_side_refused(tmp_path, monkeypatch, capsys):
    started, measured = [], []

    def measure(work, effort, wanted):
        measured.append((work.name, wanted))
        refuses = work.name == "b" and "torch.compile" in wanted
        return Result(work.name, "small", "float32", refusals={"torch.compile": "no"} if refuses else {})

    def execv(path, arguments):
        started.append(arguments)
        raise Gone

    works = [dataclasses.replace(WORKS[0], name=name) for name in "abc"]
    monkeypatch.setattr(compiled, "WORKS", works)
    monkeypatch.setattr(compiled, "measure", measure)
    monkeypatch.setattr(compiled, "warm_up", lambda wanted: None)
    monkeypatch.setattr(compiled.os, "execv", execv)
    monkeypatch.setattr(compiled.os, "sched_setaffinity", lambda *_: None, raising=False)
    out = str(tmp_path / "numbers.json")
    with pytest.raises(Gone):
        compiled.main(["--json", out])
    assert compiled.main(started[0][3:]) == 0
    assert [r.name for r in compiled.read(tmp_path / "numbers.json")] == ["a", "b", "c"]
    assert [name for name, _ in measured] == ["a", "b", "b", "c"]
    assert ["torch.compile" in wanted for _, wanted in measured] == [True, True, False, True]
    assert compiled.read(tmp_path / "numbers.json")[1].refusals == {"torch.compile": "no"}


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
