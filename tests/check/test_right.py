"""No false alarms: functions whose derivatives are right, half of them close by a kink."""

import pytest

import pushforward as pf
from tests.check.right import KINKS, SMOOTH, built

ALL = {**SMOOTH, **KINKS}


@pytest.mark.parametrize("name", sorted(ALL))
def test_no_false_alarm(name):
    made, inputs = ALL[name]
    report = pf.check(built(made), inputs)
    assert report.ok, str(report)
    assert report.evaluations <= 60


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_smooth_functions_have_no_kinks(name):
    made, inputs = SMOOTH[name]
    report = pf.check(built(made), inputs)
    assert not [f for f in report.findings if f.kind == "kink"], str(report)


def test_there_are_enough_functions():
    assert len(SMOOTH) >= 20
    assert len(KINKS) >= 20
