"""Every row is run with plans checked: what a call did is repeated at once, and must give the very same tensors."""

from collections.abc import Iterator
from typing import Any

import pytest

from pushforward.core.traced import UNPLANNED
from pushforward.plans import describe, replay


@pytest.fixture(autouse=True)
def _plans_checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans at once, and no value is known by what it was before its payload was replaced."""
    form_of = describe.form_of

    def checked(a: Any, leaves: Any, values: Any, levels: Any) -> Any:
        if a._form is UNPLANNED:
            return None
        kept, a._form = a._form, None
        made = form_of(a, [], [], levels)
        a._form = kept
        found = form_of(a, leaves, values, levels)
        assert found is made, "a stale form"
        return found

    monkeypatch.setattr(describe, "form_of", checked)
    replay.CHECKED = True
    yield
    replay.CHECKED = False
