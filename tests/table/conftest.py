"""Every row is run with plans checked: what a call did is repeated at once, and must give the very same tensors."""

from collections.abc import Iterator

import pytest

from pushforward.plans import replay


@pytest.fixture(autouse=True)
def _plans_checked() -> Iterator[None]:
    replay.CHECKED = True
    yield
    replay.CHECKED = False
