"""Fault injection: each planted fault is named with its cause and line."""

import typing

import pytest
import torch
from torch import nn

import pushforward as pf
from tests.check import faulty_functions as _faulty_functions  # noqa: F401  (registers its own)
from tests.check.faulty import FAULTS, line_of


def examined(name):
    made, inputs, kinds, operator, wrong = FAULTS[name]
    func, marked = made, made
    if typing.get_type_hints(made).get("return") is nn.Module:
        torch.manual_seed(0)
        func = made()
        marked = type(func)
    report = pf.check(func, inputs)
    return report, kinds, operator, wrong, line_of(marked)


def verdict(name):
    """Empty when the report names the cause and the line, else what is amiss."""
    report, kinds, operator, wrong, lines = examined(name)
    assert lines, name
    if report.evaluations > 60:
        return f"{report.evaluations} evaluations\n{report}"
    if report.ok is wrong:
        return f"ok is {report.ok}\n{report}"
    blamed = [f for f in report.findings if f.wrong] if wrong else report.findings
    for f in blamed:
        if f.kind in kinds and f.source in lines and operator in (None, f.operator):
            return ""
    return f"wanted {kinds} at {lines}\n{report}"


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_fault_is_named(name):
    assert not verdict(name)


def test_there_are_enough_faults():
    assert len(FAULTS) >= 40
