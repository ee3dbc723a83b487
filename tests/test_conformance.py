"""The recorded sweep over PyTorch's operator database: what it says, how it is compared, the page made from it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import pushforward as pf
from conformance import page, records
from conformance.checks import Check, Derivatives
from conformance.compare import TOLERANCES
from conformance.database import Call
from conformance.names import BAD, TRANSFORMS
from conformance.references import Reference
from conformance.sweep import judged, refused
from pushforward.ops.table import ROWS

OURS = records.load(records.path_of("pushforward", torch.float64))["operators"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_nothing_recorded_is_wrong_or_refused(dtype):
    recorded = records.load(records.path_of("pushforward", dtype))["operators"]
    bad = records.reasons(recorded, BAD)
    assert len(recorded) > 600
    assert records.summary(recorded)["vjp"]["pass"] > 300
    assert not bad, bad


def test_few_operators_run_lane_by_lane():
    slow = {name for name, by in OURS.items() if any(status == "slow" for status, _ in by.values())}
    assert len(slow) <= 10, slow


def test_every_transform_is_recorded_for_every_operator():
    assert all(set(by) == set(TRANSFORMS) for by in OURS.values())


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("pass", "pass", False),
        ("pass", "slow", True),
        ("slow", "pass", False),
        ("slow", "error", True),
        ("error", "error", False),
        ("error", "wrong", True),
        ("pass", "none", True),
        ("pass", "torch fails", True),
        ("none", "pass", False),
        ("none", "error", True),
        (None, "pass", False),
        (None, "wrong", True),
    ],
)
def test_what_counts_as_worse(before, after, worse):
    old = {} if before is None else {"sin": {"jvp": [before, ""]}}
    found = records.regressions(old, {"sin": {"jvp": [after, "because"]}})
    assert bool(found) is worse
    assert all("sin" in line and after in line and "because" in line for line in found)


def test_records_are_read_as_they_were_written(tmp_path):
    settings = records.Settings(("pushforward",), ("jvp",), torch.float64, 2)
    operators = {"cos": {"jvp": ["pass", ""]}, "sin": {"jvp": ["error", "why"]}}
    path = records.path_of("pushforward", torch.float32, tmp_path)
    records.save(path, settings, operators)
    found = records.load(path)
    assert path.name == "pushforward_float32.json"
    assert found["operators"] == operators
    assert found["about"]["samples"] == 2
    assert records.load(tmp_path / "none.json")["operators"] == {}


def test_the_page_is_what_records_and_table_say(tmp_path):
    page.write_page(tmp_path / "coverage.md")
    assert (tmp_path / "coverage.md").read_text() == page.PAGE.read_text(), "./run conformance --page makes it anew"


def test_coverage_has_every_operator_of_the_table():
    rows = pf.coverage()
    names = {row.operator for row in rows}
    assert names <= set(ROWS)
    assert len(ROWS) - len(names) < 5  # rows for variants that this version of torch does not have
    by_name = {row.operator: row for row in rows}
    assert by_name["mul"].vmap == by_name["mul"].jvp == "own rule"
    assert by_name["_foreach_add"].vmap == "decomposition"
    assert by_name["sign"].jvp == by_name["zeros"].vjp == "no derivative"
    assert by_name["geqrf"].jvp.startswith("refused (")
    assert by_name["cdist"].vjp_vjp == "decomposition"


def test_the_page_lists_what_is_refused_and_what_is_slow():
    ours = {
        "operators": {
            "a": {"vmap": ["pass", "refused: each lane would write"], "jvp": ["pass", ""]},
            "b": {"jvp_jvp": ["none", "autograd and differences disagree at a sample, jvp of jvp"]},
            "c": {"vmap": ["slow", "all: a loop"]},
            "d": {"vmap": ["torch fails", "the plain call: no"]},
        }
    }
    text = page.failures(ours)
    assert "## What is not right here\n\n- `c`: slow: all: a loop (vmap)\n" in text
    assert "- `d`: torch fails: the plain call: no (vmap)\n" in text
    assert "must raise, and does.\n\n- `a`: refused: each lane would write (vmap)\n" in text
    assert "- `b`: autograd and differences disagree at a sample, jvp of jvp (jvp of jvp)\n" in text
    assert records.lane_loops(ours["operators"]) == ["c"]
    assert "any transform: 1: `c`." in page.loops(ours).replace("\\\n", "")


class Careless:
    """A library that gives a number where there is no right one."""

    @staticmethod
    def vmap(_function, **_options):
        return lambda *args: args[0]


@pytest.mark.parametrize(("library", "status"), [(pf, "none"), (Careless, "wrong")])
def test_a_write_of_every_lane_into_what_all_share_must_be_refused(library, status):
    running, x = torch.zeros(2), torch.ones(3, 2)
    check = Check("all", lambda: None, lambda: library.vmap(lambda v: running.add_(v))(x * torch.arange(3.0)[:, None]))
    assert refused(check, "why")[0] == status


def test_single_precision_is_judged_by_double_precision():
    """A gradient that is a difference of large numbers: the reference is no better than what it judges."""
    op = SimpleNamespace(op=torch.sum, supports_autograd=True, gradcheck_wrapper=lambda f, *args: f(*args))
    x = torch.ones(3, dtype=torch.float32, requires_grad=True)
    sample = SimpleNamespace(input=x, args=(), kwargs={}, output_process_fn_grad=None)
    reference = Reference(Call(op, sample), 0)
    (check,) = Derivatives(reference, pf).checks("vjp")
    rough, kind = check.expected()
    off = (rough[0], [g + 1 for g in rough[1]])
    assert judged(check, TOLERANCES[torch.float32], (rough, kind))[0] == "pass"
    assert judged(check, TOLERANCES[torch.float32], (off, kind))[0] == "pass"  # what is off is the reference
    reference.pull_widely = lambda *_: off[1]
    assert judged(check, TOLERANCES[torch.float32], (off, kind))[0] == "wrong"
