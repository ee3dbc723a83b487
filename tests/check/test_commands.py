"""`pushforward check` and `pushforward routes`: exit codes, text, pictures."""

import json

import pytest

from pushforward.cli import main

MODEL = """
import torch


def example_inputs():
    return {"x": torch.tensor([0.2, 1.0, -0.5]), "scale": 2.0}


def right(x, scale):
    return torch.tanh(x * scale)


def kinked(x, scale):
    return torch.relu(x * scale - 0.4 + 1e-6)


def wrong(x, scale):
    return x * scale * x.detach()


def broken(x, scale):
    return x @ torch.ones(7)


net = torch.nn.Linear(3, 2)


def integers(x, scale):
    return (x > 0).long()
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_right_function(model, tmp_path, capsys):
    assert main(["check", f"{model}:right", "--out", str(tmp_path), "--order", "2"]) == 0
    out = capsys.readouterr().out
    assert "derivatives are right" in out
    assert "order 2" in out
    if "no picture" not in out:
        assert (tmp_path / "check.png").stat().st_size > 10_000


def test_wrong_function(model, capsys):
    assert main(["check", f"{model}:wrong", "--no-picture"]) == 1
    assert "lost-derivative: `.detach()` at model.py:18" in capsys.readouterr().out


def test_kink_is_no_error(model, capsys):
    assert main(["check", f"{model}:kinked", "--no-picture"]) == 0
    assert "kink: `relu` at model.py:14" in capsys.readouterr().out


def test_function_that_fails(model, capsys):
    assert main(["check", f"{model}:broken", "--no-picture"]) == 1
    assert "model.py:22" in capsys.readouterr().out


def test_command_line_errors(model, capsys):
    assert main(["check", f"{model}:right", "--order", "0"]) == 2
    assert main(["routes", f"{model}:right", "--rounds", "0"]) == 2
    assert main(["check", f"{model}:nothing"]) == 2
    assert "--order is 0" in capsys.readouterr().err


def test_routes(model, tmp_path, capsys):
    numbers = tmp_path / "routes.json"
    assert main(["routes", f"{model}:right", "--out", str(tmp_path), "--rounds", "2", "--json", str(numbers)]) == 0
    out = capsys.readouterr().out
    assert "torch.autograd.functional.jvp" in out
    assert json.loads(numbers.read_text())["routes"][0]["name"] == "pf.jvp"
    if "no picture" not in out:
        assert (tmp_path / "routes.png").stat().st_size > 10_000
