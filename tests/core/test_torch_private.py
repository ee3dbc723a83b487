"""Each private torch name still exists and still does what it is used for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pushforward.core import torch_private

SOURCE = Path(torch_private.__file__).parent.parent


@pytest.mark.parametrize("name", torch_private.__all__)
def test_name_exists(name):
    assert getattr(torch_private, name, None) is not None, f"torch moved what `core.torch_private.{name}` needs"


def test_private_names_are_gathered_in_modules_of_their_own():
    pattern = re.compile(
        r"torch\._C\b|torch\._functorch|torch\.utils\._python_dispatch|torch\._subclasses|torch\._inductor"
    )
    found = [
        f"{path.relative_to(SOURCE)}:{k}"
        for path in SOURCE.rglob("*.py")
        if path.name != "torch_private.py" and path.name != "routes.py"
        for k, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not line.lstrip().startswith(("#", '"""', "*"))
    ]
    assert not found, f"private names of torch outside torch_private.py: {found}"


def test_a_mode_is_pushed_and_popped():
    class Mode(torch_private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    before = torch_private.mode_count()
    torch_private.push_mode(Mode())
    assert torch_private.mode_count() == before + 1
    torch_private.pop_mode(None)
    assert torch_private.mode_count() == before


def test_backward_ids():
    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(torch_private.graph_task_id()))
    y.sum().backward()
    assert seen
    assert seen[0] != -1
    assert torch_private.graph_task_id() == -1


def test_the_engine_is_called_as_torch_does():
    x = torch.ones(3, requires_grad=True)
    y = (x * x).sum()
    (g,) = torch_private.run_backward((y,), (torch.ones(()),), False, False, (x,), True, accumulate_grad=False)
    assert torch.equal(g, torch.full((3,), 2.0))
    assert x.grad is None


def test_wrappers_report_what_they_are_told():
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    made = torch_private.make_wrapper(
        Wrapper, (2, 3), (3, 1), None, None, torch.float64, torch.strided, torch.device("cpu")
    )
    assert made.shape == (2, 3)
    assert made.dtype is torch.float64
