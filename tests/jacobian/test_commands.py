"""`pushforward explain` and `pushforward jacobian` at the terminal."""

import numpy as np
import pytest

from pushforward.cli.main import main

MODEL = """
import torch

def spring(x):
    return x[1:] - 2 * x[:-1] ** 2

def tall(a, b):
    return torch.outer(a, torch.arange(50.0)).reshape(-1) * b

def example_inputs():
    return {"x": torch.linspace(0, 1, 200, dtype=torch.float64)}
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.mark.filterwarnings("ignore")
def test_jacobian_of_a_sparse_function(model, tmp_path, capsys):
    sparse = pytest.importorskip("scipy.sparse")
    assert main(["jacobian", f"{model}:spring", "--out", str(tmp_path / "out"), "--sparsity", "global"]) == 0
    out = capsys.readouterr().out
    assert "Jacobian of spring: 199 outputs × 200 inputs" in out
    assert "2 colours" in out
    assert "predicted" in out
    assert "⠙⢦" in out
    matrix = sparse.load_npz(tmp_path / "out" / "jacobian.npz")
    x = np.linspace(0, 1, 200)
    np.testing.assert_allclose(matrix.toarray(), np.eye(199, 200, 1) - 4 * np.diag(x)[:199])
    assert (tmp_path / "out" / "pattern.png").stat().st_size > 5000


@pytest.mark.filterwarnings("ignore")
def test_jacobian_of_a_dense_function(model, tmp_path, capsys):
    at = tmp_path / "at.npz"
    np.savez(at, a=np.ones(2), b=np.float64(3.0))
    arguments = ["jacobian", f"{model}:tall", "--at", str(at), "--wrt", "a", "--out", str(tmp_path), "--no-picture"]
    assert main([*arguments, "--sparsity", "none"]) == 0
    assert "forward" in capsys.readouterr().out
    with np.load(tmp_path / "jacobian.npz") as file:
        assert file["jacobian"].shape == (100, 2)
        assert list(file["input_names"]) == ["a[0]", "a[1]"]
        np.testing.assert_allclose(file["jacobian"][:50, 0], 3 * np.arange(50))


def test_explain_differentiates_nothing_and_writes_nothing(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert main(["explain", f"{model}:spring"]) == 0
    out = capsys.readouterr().out
    assert "chosen:" in out
    assert "forward, sparse" in out
    assert "reverse" in out
    assert {p for p in tmp_path.iterdir() if p.suffix != "" and p.name != "__pycache__"} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "lots"], "memory='lots'"),
        (["--memory", "1KB", "--sparsity", "none"], "does not fit into"),
        (["--chunk-size", "0"], "chunk_size"),
        (["--wrt", "y"], "y"),
    ],
)
def test_errors_are_one_line(model, capsys, options, message):
    assert main(["explain", f"{model}:spring", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
