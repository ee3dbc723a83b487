"""Every benchmark row builds, and its sides agree in value on tiny sizes in float64; nothing is timed here.

The rows are also a test of the library: each workload under each transform against torch.func and plain autograd.
"""

import dataclasses
import json

import pytest
import torch
import torch.func
from torch.utils._python_dispatch import TorchDispatchMode

import pushforward as pf
from benchmarks import claims, picture, report, timing
from benchmarks.__main__ import main
from benchmarks.agreement import difference, prepare
from benchmarks.memory import FORWARD, measure_side, peak_of_tensors
from benchmarks.timing import Effort, Spread, time_row
from benchmarks.workloads import OURS, ROWS, SUBJECTS, THEIRS, Libraries

LIBRARIES = Libraries(pf, torch.func)

# Only what torch.func warns of itself; a warning of the library under test must still be an error.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Attempted to insert a get_attr Node:UserWarning"
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_sides_agree(row):
    prepared = prepare(row, LIBRARIES, row.make("tiny"))
    assert prepared.status == "ok"
    assert set(row.sides) - set(prepared.refusals) >= set(list(row.sides)[:2])


NETWORKS = [row for row in ROWS if row.group == "model" and row.kind == "library" and row.transform != "linearize"]


@pytest.mark.parametrize("row", NETWORKS, ids=lambda row: row.name)
def test_networks_agree_in_float32(row):
    # Kernels for float32 are others than those for float64, and some of them are particular about shapes and strides.
    sides = {side: row.sides[side] for side in (OURS, THEIRS)}
    prepared = prepare(dataclasses.replace(row, sides=sides), LIBRARIES, row.make("time"))
    assert prepared.status == "ok"


class OperatorCounter(TorchDispatchMode):
    """Counts ATen operators."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_number_of_operators_is_as_declared(subject):
    problem = subject.make("time")
    with OperatorCounter() as counter:
        problem.func(*problem.point)
    # Versions of torch differ by a view or two; what counts is on which side of "short" a function falls.
    assert counter.count == pytest.approx(subject.ops, rel=0.1)
    assert (counter.count <= claims.SHORT_OPS) == (subject.ops <= claims.SHORT_OPS)


def test_names_of_rows_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (torch.ones(2), torch.ones(2), None),
        (torch.ones(2), torch.ones(3), "output 0 is torch.float32 (2,) instead of torch.float32 (3,)"),
        ((torch.ones(2), torch.ones(2)), torch.ones(2), "2 tensors instead of 1"),
        (torch.ones(2), torch.tensor([1.0, 1.5]), "output 0 differs by 0.5"),
        (torch.tensor([1.0, float("nan")]), torch.ones(2), "output 0 differs by nan"),
        (torch.empty(0), torch.empty(0), None),
    ],
)
def test_difference_says_what_differs(ours, theirs, found):
    assert difference(ours, theirs) == found


def row_named(name):
    return next(row for row in ROWS if row.name == name)


def broken(**wrong):
    """torch.func with some of its transforms replaced."""
    names = ("vmap", "jvp", "grad", "jacfwd", "jacrev", "hessian", "linearize")
    return type("Broken", (), {name: staticmethod(wrong.get(name, getattr(torch.func, name))) for name in names})


def test_a_wrong_answer_is_not_timed():
    doubled = broken(grad=lambda func, argnums=0: lambda *args: 2 * torch.func.grad(func, argnums)(*args))
    result = time_row(row_named("sin(x)·x | grad"), Libraries(doubled, torch.func), timing.QUICK)
    assert result.status.startswith("WRONG: against theirs: output 0 differs")
    assert not result.microseconds


def test_a_refusal_is_a_row():
    def refuse(*_):
        raise NotImplementedError("no rule for sin\nwrite one")

    result = time_row(row_named("sin(x)·x | grad"), Libraries(broken(grad=refuse), torch.func), timing.QUICK)
    assert result.status == "refused: NotImplementedError: no rule for sin"
    assert not result.microseconds


def test_one_ratio_a_round():
    effort = Effort(sample_ns=1, row_ns=1, least_rounds=2, most_rounds=2)
    result = time_row(row_named("dot | grad"), Libraries(torch.func, torch.func), effort)
    assert result.rounds == 2
    assert set(result.speedups) == {THEIRS, "plain autograd"}
    assert result.speedup > 0


def test_peak_counts_what_is_alive_at_once():
    x = torch.randn(1000)

    def call():
        y = x.sin()
        del y
        z = x.cos()
        return torch.cat([z, z])

    assert peak_of_tensors(call) == 3 * 4000


@pytest.mark.parametrize("side", [OURS, THEIRS, FORWARD])
def test_memory_of_a_row_is_measured(side):
    measured = measure_side("sin(x)·x | jvp", side, "pushforward", "torch.func")
    assert measured["tensors"] > 4 * 200_000


def test_claims_follow_the_numbers():
    def timed(name, speedup):
        row = row_named(name)
        spread = Spread(speedup, speedup - 0.1, speedup + 0.1)
        return timing.Timing(name, row.subject, row.transform, row.group, row.kind, row.ops, "ok", THEIRS,
                             speedups={THEIRS: spread})  # fmt: skip

    good = [timed("dot | grad", 2.0), timed("chain of 100 | vmap", 0.6)]
    assert claims.is_never_slower_on_short_functions(good).holds
    assert claims.keeps_up_on_long_chains(good).holds
    assert claims.is_faster_on_average(good).holds is False
    bad = [*good, timed("dot | jvp", 0.95), timed("dot | vmap", 0.8)]
    verdict = claims.is_never_slower_on_short_functions(bad)
    assert verdict.holds is False
    assert verdict.exceptions == [
        "dot | vmap: 0.80 (0.70 to 0.90)",
        "dot | jvp: 0.95 (0.85 to 1.05), within the noise",
    ]
    assert claims.keeps_up_on_long_chains([timed("dot | grad", 2.0)]).holds is None


def test_command_writes_all_three_reports(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = {name: tmp_path / f"bench.{name}" for name in ("json", "md", "png")}
    code = main(
        ["--only", "^dot . (grad|vmap)$", "--quick", "--no-memory", "--json", str(files["json"]), "--markdown",
         str(files["md"]), "--plot", str(files["png"])]
    )  # fmt: skip
    assert code == 0
    assert "every row gives an answer, and the right one: holds" in capsys.readouterr().out
    assert [t["name"] for t in json.loads(files["json"].read_text())["timings"]] == ["dot | vmap", "dot | grad"]
    assert "| dot | vmap | 1 |" in files["md"].read_text()
    assert files["png"].stat().st_size > 10_000


def test_picture_without_rows_is_not_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    picture.draw(report.Results("a", "b", "quick", "cpu", [], []), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("argv", [["--only", "("], ["--pf", "no_such_library"], ["--only", "no such row"]])
def test_bad_command_lines_end_with_2(argv, capsys):
    assert main(argv) == 2
    assert capsys.readouterr()


def test_numbers_are_put_between_their_marks(tmp_path):
    from benchmarks import record

    page = tmp_path / "page.md"
    page.write_text("a\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nb\n")
    machine = {"torch": "2", "processor": "p"}
    results = {"machine": machine, "means": [{"of": "jvp", "rows": 3, "speedup": 1.5}]}
    record.filled(page, "measured", record.summary(results))
    text = page.read_text()
    assert "| jvp | 3 | 1.50 |" in text
    assert "old" not in text
    assert text.startswith("a\n")
    assert text.endswith("-->\nb\n")
    with pytest.raises(ValueError, match="no marks"):
        record.filled(page, "other", "")
