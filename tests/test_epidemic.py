"""The epidemic of 1978: the fits to their published digits, and the sensitivities of 5,000 time points."""

import itertools

import numpy as np
import pytest
import torch

import pushforward as pf
from examples.epidemic.fit import SETTINGS, fit, gauss_newton, read_counts
from examples.epidemic.model import BOYS, TIMES, boys_in_bed, example_inputs, infected
from pushforward.cli import main

# β, γ, R0 and cases on day 1 of the least-squares optimum in each setting.
OPTIMA = [(1.669, 0.443, 3.764, None), (1.700, 0.447, 3.804, None), (1.788, 0.456, 3.924, 2.09)]


def test_the_counts():
    days, counts = read_counts()
    assert days.tolist() == list(range(1, 15))
    assert counts.tolist() == [3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4]


@pytest.mark.parametrize(("setting", "optimum"), list(zip(SETTINGS, OPTIMA, strict=True)))
def test_the_optimum_to_the_digits_given(setting, optimum):
    found = fit(setting)
    beta, gamma, *cases = found.parameters.tolist()
    assert (round(beta, 3), round(gamma, 3), round(found.reproduction[0], 3)) == optimum[:3]
    assert [round(value, 2) for value in cases] == ([optimum[3]] if optimum[3] else [])
    misfits = [at.misfit for at in found.path]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(misfits))


def test_the_standard_error_of_r0_is_that_of_the_quotient():
    found = fit(SETTINGS[1])
    beta, gamma = found.parameters
    slope = torch.stack([1 / gamma, -beta / gamma**2])
    assert found.reproduction[1] == pytest.approx((slope @ found.covariance @ slope).sqrt().item(), rel=1e-12)


def test_gauss_newton_solves_a_linear_problem_and_says_when_it_cannot():
    matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], dtype=torch.float64)
    right = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    found, _ = gauss_newton(lambda p: matrix @ p - right, [1.0, 1.0])
    torch.testing.assert_close(found, torch.linalg.lstsq(matrix, right).solution, rtol=1e-6, atol=1e-8)
    with pytest.raises(ArithmeticError, match="lowers the sum of squares"):
        gauss_newton(lambda p: p * float("nan"), [1.0])


def test_the_integrator_is_of_fourth_order(monkeypatch):
    values = [torch.tensor(value, dtype=torch.float64) for value in (1.7, 0.45, 3.0)]
    from_grid = boys_in_bed(*values, 1.0, torch.tensor([6.0, 6.05, 6.1], dtype=torch.float64))
    fine = reference(1.7, 0.45, 3.0, [5.0, 5.05, 5.1], 2000)
    np.testing.assert_allclose(from_grid.numpy(), fine, rtol=1e-6)
    # With γ = 0 the model is the logistic curve, known in closed form.
    exact = BOYS / (1 + (BOYS / 3.0 - 1) * torch.exp(-1.7 * (TIMES - 1)))
    errors = []
    for steps_per_day in (10, 20):
        monkeypatch.setattr("examples.epidemic.model.STEPS_PER_DAY", steps_per_day)
        logistic = boys_in_bed(values[0], torch.zeros_like(values[0]), values[2], 1.0, TIMES)
        errors.append((logistic / exact - 1).abs().max().item())
    assert errors[0] < 2e-5
    assert 14 < errors[0] / errors[1] < 18


def reference(beta, gamma, cases, after, steps_per_day):
    """The model by midpoint steps in plain Python."""
    found = []
    for days in after:
        s, i = BOYS - cases, cases
        count = round(days * steps_per_day)
        for _ in range(count):
            h = days / count
            new = beta * s * i / BOYS
            s_mid, i_mid = s - h / 2 * new, i + h / 2 * (new - gamma * i)
            new_mid = beta * s_mid * i_mid / BOYS
            s, i = s - h * new_mid, i + h * (new_mid - gamma * i_mid)
        found.append(i)
    return found


def test_sensitivities_of_5000_times_equal_differences():
    values = [torch.tensor(value, dtype=torch.float64) for value in example_inputs().values()]
    found = pf.jacfwd(infected, argnums=(0, 1, 2))(*values)
    for index, column in enumerate(found):
        assert column.shape == (5000,)
        h = 1e-5
        above, below = list(values), list(values)
        above[index], below[index] = values[index] + h, values[index] - h
        differences = (infected(*above) - infected(*below)) / (2 * h)
        assert (column - differences).abs().max() <= 1e-7 * differences.abs().max()


def test_the_command_reports_the_epidemic(tmp_path, capsys):
    at = tmp_path / "fit.csv"
    at.write_text("beta,gamma,first_cases\n1.788106,0.455701,2.093443\n")
    code = main(["sensitivity", "examples.epidemic.model:infected", "--at", str(at), "--out", str(tmp_path)])
    text = capsys.readouterr().out
    assert code == 0
    assert "n = 3 inputs, m = 5000 outputs, float64" in text
    assert "forward: 3 forward passes against 5000 reverse passes" in text
    assert "agree" in text
    assert "day 5.127" in text
    written = np.load(tmp_path / "jacobian.npz")
    assert written["jacobian"].shape == (5000, 3)
    assert written["along"][written["jacobian"][:, 0].argmax()] == pytest.approx(5.127, abs=2e-3)
    assert (tmp_path / "sensitivity.png").stat().st_size > 20_000
