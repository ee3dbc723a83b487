"""The command line: what it prints and writes, and that every error is one line with exit code 2."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pushforward.cli import main, measure, picture
from pushforward.cli.differences import central_differences
from pushforward.cli.progress import track

MODEL = '''
import torch

WEIGHT = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
NARROW = WEIGHT.float()


def waves(amplitude, phase):
    return amplitude * torch.sin(torch.arange(4, dtype=torch.float64) + phase)


def linear(x):
    return WEIGHT @ x


def narrow(x):
    return NARROW @ x.float()


def strict_narrow(x):
    return NARROW @ x


def loss(x):
    return (x**2).sum()


def many(params):
    return {"first": params["a"] * params["b"], "second": (params["a"].sum(),)}


def wrong_inside(x):
    y = x + 1
    return y @ torch.ones(7, dtype=torch.float64)


def infinite(x):
    return 1 / (x - x[0])


def integers(x):
    return (x > 0).long()


def words(x):
    return "a sentence"


def nothing(x):
    return None


def quits(x):
    raise SystemExit("not today")


def kink(x):
    return torch.relu(x - 1e-9)


def root(x):
    return x.sqrt()


def choose(x, index):
    return x[index]


def random(x):
    return x * torch.rand(3, dtype=torch.float64)


def writes(x):
    return x.mul_(2.0)


class Thing:
    pass


value = 3
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())


def example_inputs():
    return {"amplitude": 2.0, "phase": torch.tensor(0.5, dtype=torch.float64)}
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("model.py").write_text(MODEL)
    np.savez("x.npz", x=np.array([0.5, -1.0, 2.0]))
    np.savez("x32.npz", x=np.array([0.5, -1.0, 2.0], dtype=np.float32))
    yield tmp_path
    for name in ("model", "needy", "broken"):
        sys.modules.pop(name, None)


def report(capsys, *arguments):
    assert main(["sensitivity", *arguments, "--no-picture"]) == 0
    return capsys.readouterr().out


def error_line(capsys, *arguments):
    code = main(["sensitivity", *arguments])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("pushforward: error: ")
    assert "Traceback" not in err
    return err


# What is computed


def test_example_inputs_give_the_analytic_jacobian(folder, capsys):
    text = report(capsys, "model.py:waves")
    assert "n = 2 inputs, m = 4 outputs, float64" in text
    assert "forward: 2 forward passes against 4 reverse passes" in text
    assert "central differences in float64 (4 evaluations) agree" in text
    written = np.load("jacobian.npz")
    angle = np.arange(4) + 0.5
    np.testing.assert_allclose(written["jacobian"], np.stack([np.sin(angle), 2 * np.cos(angle)], axis=1), rtol=1e-14)
    np.testing.assert_allclose(written["outputs"], 2 * np.sin(angle), rtol=1e-14)
    np.testing.assert_allclose(written["differences"], written["jacobian"], atol=1e-8)
    assert written["input_names"].tolist() == ["amplitude", "phase"]
    assert written["output_names"].tolist() == ["output[0]", "output[1]", "output[2]", "output[3]"]
    assert written["mode"] == "forward"


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_both_modes_give_the_matrix_of_a_linear_function(folder, capsys, mode):
    text = report(capsys, "model.py:linear", "--at", "x.npz", "--mode", mode)
    assert f"{mode}: as asked" in text
    expected = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3).numpy()
    np.testing.assert_allclose(np.load("jacobian.npz")["jacobian"], expected, rtol=1e-14)


def test_one_output_takes_one_reverse_pass(folder, capsys):
    text = report(capsys, "model.py:loss", "--at", "x.npz")
    assert "reverse: 1 reverse pass against 3 forward passes" in text
    np.testing.assert_allclose(np.load("jacobian.npz")["jacobian"], [[1.0, -2.0, 4.0]], rtol=1e-14)


def test_module_target_and_torch_builtin(folder, capsys):
    torch.save(torch.tensor([0.0, 1.0], dtype=torch.float64), "t.pt")
    report(capsys, "torch:sin", "--at", "t.pt")
    np.testing.assert_allclose(np.load("jacobian.npz")["jacobian"], np.diag(np.cos([0.0, 1.0])), rtol=1e-14)
    report(capsys, "model:loss", "--at", "x.npz")


def test_nested_inputs_and_outputs_are_named_by_their_paths(folder, capsys):
    torch.save({"a": torch.tensor([2.0, 3.0]).double(), "b": torch.tensor([5.0, 7.0]).double()}, "p.pt")
    report(capsys, "model.py:many", "--at", "p.pt")
    written = np.load("jacobian.npz")
    assert written["input_names"].tolist() == [f"params['{key}'][{i}]" for key in "ab" for i in range(2)]
    assert written["output_names"].tolist() == ["output['first'][0]", "output['first'][1]", "output['second'][0]"]
    expected = [[5, 0, 2, 0], [0, 7, 0, 3], [1, 1, 0, 0]]
    np.testing.assert_array_equal(written["jacobian"], expected)


def test_a_float32_module_is_checked_in_float64(folder, capsys):
    text = report(capsys, "model.py:net", "--at", "x32.npz")
    assert "m = 4 outputs, float32" in text
    assert "central differences in float64 (6 evaluations) agree" in text


def test_a_function_that_refuses_float64_is_checked_in_float32(folder, capsys):
    text = report(capsys, "model.py:strict_narrow", "--at", "x32.npz")
    assert "central differences in float32 (6 evaluations) agree" in text
    assert "(the function does not take float64)" in text


def test_differences_that_disagree_are_said_to(folder, capsys):
    np.savez("zero.npz", x=np.zeros(2))
    text = report(capsys, "model.py:kink", "--at", "zero.npz")
    assert "DIFFER" in text
    assert "worst at d output[0] / d x[0]; near a kink" in text


def test_derivatives_that_are_not_finite_are_pointed_out(folder, capsys):
    np.savez("edge.npz", x=np.array([1.0, 0.0]))
    text = report(capsys, "model.py:root", "--at", "edge.npz")
    assert "derivatives are not finite, the first d output[1] / d x[" in text


def test_a_random_function_is_pointed_out(folder, capsys):
    assert "a random function has no one derivative" in report(capsys, "model.py:random", "--at", "x.npz")


def test_wrt_keeps_the_others_constant(folder, capsys):
    report(capsys, "model.py:waves", "--wrt", "phase")
    written = np.load("jacobian.npz")
    assert written["input_names"].tolist() == ["phase"]
    np.testing.assert_allclose(written["jacobian"][:, 0], 2 * np.cos(np.arange(4) + 0.5), rtol=1e-14)
    np.savez("pick.npz", x=np.array([0.5, 1.5]), index=np.array([1]))
    report(capsys, "model.py:choose", "--at", "pick.npz", "--wrt", "x")
    np.testing.assert_array_equal(np.load("jacobian.npz")["jacobian"], [[0.0, 1.0]])


def test_a_function_that_writes_into_its_input(folder, capsys):
    assert "agree" in report(capsys, "model.py:writes", "--at", "x.npz")
    written = np.load("jacobian.npz")
    np.testing.assert_array_equal(written["inputs"], [0.5, -1.0, 2.0])
    np.testing.assert_array_equal(written["jacobian"], 2 * np.eye(3))


def test_half_precision(folder, capsys):
    torch.save(torch.tensor([0.5, 1.0], dtype=torch.bfloat16), "half.pt")
    assert "agree" in report(capsys, "torch:sin", "--at", "half.pt")
    np.testing.assert_allclose(np.diag(np.load("jacobian.npz")["jacobian"]), np.cos([0.5, 1.0]), rtol=1e-2)


def test_a_file_with_the_name_of_a_module_does_not_replace_it(folder, capsys):
    Path("colorsys.py").write_text("def f(x):\n    return 2 * x\n")
    import colorsys

    report(capsys, "colorsys.py:f", "--at", "x.npz")
    assert sys.modules["colorsys"] is colorsys


# Inputs from CSV


@pytest.mark.parametrize(
    ("text", "target", "names"),
    [
        ("# a remark\namplitude,phase\n2.0,0.5\n", "waves", ["amplitude", "phase"]),
        ("one,two,three\n0.5,-1,2\n", "linear", ["one", "two", "three"]),
        ("0.5,-1,2\n", "linear", ["x[0]", "x[1]", "x[2]"]),
        ("0.5\n-1\n2\n", "linear", ["x[0]", "x[1]", "x[2]"]),
        ("x\n0.5\n-1\n2\n", "linear", ["x[0]", "x[1]", "x[2]"]),
        ("1,2\n3,4\n", "loss", ["x[0,0]", "x[0,1]", "x[1,0]", "x[1,1]"]),
    ],
)
def test_csv(folder, capsys, text, target, names):
    Path("at.csv").write_text(text)
    report(capsys, f"model.py:{target}", "--at", "at.csv")
    assert np.load("jacobian.npz")["input_names"].tolist() == names


# Errors: one line, exit code 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("model.py", "does not name a function: write file.py:function or package.module:function"),
        ("model.py:", "does not name a function"),
        ("absent.py:f", "there is no file absent.py"),
        ("absent.module:f", "there is no module 'absent.module'"),
        ("absent:f", "there is no module 'absent'"),
        ("model.py:wave", "has no function 'wave': did you mean 'waves'?"),
        ("model.py:zzz", "has no function 'zzz'; it has waves, linear"),
        ("model.py:value", "'value' in model.py is of type int, not a function"),
        ("model.py:Thing", "'Thing' in model.py is a class"),
        ("broken.py:f", "loading broken.py failed: ZeroDivisionError: division by zero (broken.py:2)"),
        ("syntax.py:f", "loading syntax.py failed: SyntaxError"),
        ("leaves.py:f", "loading leaves.py failed: SystemExit: 3"),
        ("needy:f", "importing needy failed: ModuleNotFoundError: No module named 'absent_dependency' (needy.py:1)"),
        ("broken.part:f", "importing broken.part failed: ZeroDivisionError: division by zero"),
    ],
)
def test_bad_targets(folder, capsys, spec, words):
    Path("broken.py").write_text("x = 1\ny = x / 0\n")
    Path("syntax.py").write_text("def f(:\n")
    Path("leaves.py").write_text("raise SystemExit(3)\n")
    Path("needy.py").write_text("import absent_dependency\n")
    assert words in error_line(capsys, spec)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("wrong_inside", "calling wrong_inside failed: RuntimeError: "),
        ("infinite", "infinite is not finite at these inputs: output[0] is inf (1 of 3 outputs)"),
        ("integers", "returned output of torch.int64: only floating-point outputs have derivatives"),
        ("words", "returned output of type str, not a tensor"),
        ("nothing", "returned no numbers"),
        ("quits", "calling quits failed: SystemExit: not today (model.py:"),
        ("waves", "waves takes (amplitude, phase); x.npz gives x: missing a required argument: 'amplitude'"),
    ],
)
def test_functions_that_have_no_sensitivity(folder, capsys, function, words):
    assert words in error_line(capsys, f"model.py:{function}", "--at", "x.npz")


def test_a_wrong_shape_names_the_line(folder, capsys):
    np.savez("four.npz", x=np.ones(4))
    message = error_line(capsys, "model.py:linear", "--at", "four.npz")
    line = 1 + MODEL.splitlines().index("    return WEIGHT @ x")
    assert "size mismatch" in message
    assert f"(model.py:{line})" in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x": np.array([1, 2, 3])}, "input 'x' holds int64 numbers, which have no derivative"),
        ({"x": np.array([True])}, "input 'x' holds bool numbers"),
        ({"x": np.array([1j])}, "input 'x' holds complex128 numbers"),
        ({"x": np.array([1.0, np.nan, 2.0])}, "input 'x[1]' is nan: inputs must be finite"),
        ({"x": np.array(np.inf)}, "input 'x' is inf: inputs must be finite"),
        ({"x": np.array([])}, "no floating-point input to differentiate to"),
        ({"x": np.array(["a"])}, "array 'x' in at.npz holds <U1, not numbers"),
        ({}, "at.npz holds no arrays"),
        ({"x": np.ones(3), "y": np.ones(3)}, "linear takes (x); at.npz gives x, y"),
    ],
)
def test_bad_arrays(folder, capsys, values, words):
    np.savez("at.npz", **values)
    assert words in error_line(capsys, "model.py:linear", "--at", "at.npz")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("at.csv", "a,b\n1,x\n", "at.csv, line 2, column 2: 'x' is not a number"),
        ("at.csv", "1,2\n3\n", "at.csv, line 2: 1 columns where 2 were expected"),
        ("at.csv", "", "at.csv holds no numbers"),
        ("at.csv", "a,b\n", "at.csv holds no numbers"),
        ("at.npz", "not an archive", "at.npz cannot be read as .npz"),
        ("at.npz", "", "at.npz cannot be read as .npz"),
        ("at.pt", "not a tensor", "at.pt cannot be read as tensors saved by torch.save"),
        ("at.txt", "1", "inputs are read from .npz, .pt or .csv, not from '.txt'"),
    ],
)
def test_bad_files(folder, capsys, name, content, words):
    Path(name).write_text(content)
    assert words in error_line(capsys, "model.py:linear", "--at", name)


def test_other_errors(folder, capsys):
    assert "there is no file absent.npz" in error_line(capsys, "model.py:linear", "--at", "absent.npz")
    assert "there is no input 'z': the inputs are x" in error_line(
        capsys, "model.py:linear", "--at", "x.npz", "--wrt", "z"
    )
    Path("plain.py").write_text("def f(x):\n    return x\n")
    assert "plain.py has no example_inputs(): give the inputs with --at FILE" in error_line(capsys, "plain.py:f")
    Path("taken").write_text("")
    assert "cannot write into taken" in error_line(capsys, "model.py:waves", "--out", "taken")
    Path("labelled.py").write_text(MODEL + "\n\ndef example_labels():\n    return {'along': [1.0], 'title': 'waves'}\n")
    assert "has 1 entries, waves has 4 outputs" in error_line(capsys, "labelled.py:waves")


@pytest.mark.parametrize("argv", [[], ["sensitivity"], ["nonsense"], ["sensitivity", "a:b", "--mode", "sideways"]])
def test_a_bad_command_line_is_one_line(capsys, argv):
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--help" in err


def test_the_process_ends_with_the_code_and_without_a_traceback(folder):
    command = [sys.executable, "-m", "pushforward.cli", "sensitivity", "model.py:absent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("pushforward: error: model.py has no function 'absent'")
    assert done.stderr.count("\n") == 1


# Picture, progress, parts


@pytest.mark.parametrize(
    ("target", "at"), [("model.py:waves", None), ("model.py:loss", "x.npz"), ("model.py:linear", "x.npz")]
)
def test_the_picture_is_a_png_of_its_own(folder, capsys, target, at):
    assert main(["sensitivity", target, *(["--at", at] if at else [])]) == 0
    assert "wrote sensitivity.png" in capsys.readouterr().out
    assert Path("sensitivity.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_reason_is_printed(folder, capsys, monkeypatch):
    monkeypatch.setattr(picture, "draw", lambda analysis, path: "matplotlib is not installed")
    assert main(["sensitivity", "model.py:waves"]) == 0
    assert "no picture: matplotlib is not installed" in capsys.readouterr().out


def test_long_work_says_how_far_it_is(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 9.0, 12.0])
    monkeypatch.setattr("pushforward.cli.progress.time.perf_counter", lambda: next(clock))
    assert list(track(range(4), "Jacobian", 100, 25)) == [0, 1, 2, 3]
    assert capsys.readouterr().err == "Jacobian: 50 of 100, about 3 s left\nJacobian: 75 of 100, about 3 s left\n"


@pytest.mark.parametrize(
    ("n", "m", "mode"), [(10, 2000, "forward"), (2000, 10, "reverse"), (3, 3, "forward"), (1, 1, "forward")]
)
def test_the_mode_with_fewer_passes_is_chosen(n, m, mode):
    assert measure.choose_mode(n, m).mode == mode


def test_more_directions_than_one_batch(folder, capsys):
    np.savez("wide.npz", x=np.arange(1.0, 76.0))
    report(capsys, "model.py:root", "--at", "wide.npz")
    np.testing.assert_allclose(
        np.load("jacobian.npz")["jacobian"], np.diag(0.5 / np.sqrt(np.arange(1.0, 76.0))), rtol=1e-14
    )


def test_central_differences_of_a_cubic():
    x = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    found = central_differences(lambda x: x**3, x, [slice(0, 3)], [0, 1, 2])
    torch.testing.assert_close(found, torch.diag(3 * x**2), atol=1e-8, rtol=1e-8)


def test_captured_single_precision_is_not_called_a_wrong_derivative(tmp_path, capsys, monkeypatch):
    (tmp_path / "decay.py").write_text(
        "import torch\n"
        "T = torch.linspace(0, 5, 400)\n"
        "def decay(size, rate, freq):\n"
        "    return size * torch.exp(-rate * T) * torch.cos(freq * T)\n"
        "def example_inputs():\n"
        "    return tuple(torch.tensor(v, dtype=torch.float64) for v in (0.5, 2.0, 3.0))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["sensitivity", "decay.py:decay"]) == 0
    out = capsys.readouterr().out
    assert "the function computes in float32" in out
    assert "DIFFER" not in out
