"""No operator's pattern misses a nonzero: PyTorch's operator database against dense Jacobians."""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from pushforward.sparsity.csr import Pattern
from pushforward.sparsity.detect import NoPatternError, detect

# torch's own reverse formula is not the derivative there, so it is no oracle.
WRONG_ORACLE = {
    "as_strided_scatter": "gradient of the elements outside of the view is lost",
    "nextafter": "taken as constant here, as the steps of a float are",
}
NAMES = sorted(
    {op.name for op in op_db if torch.float64 in op.supported_dtypes("cpu") and op.supports_autograd}
    - set(WRONG_ORACLE)
)
LARGEST = 300


def jacobian(outs, xs):
    """Nonzero places by reverse mode, NaN (0 · inf of torch's own sums) left out."""
    rows = []
    for o in outs:
        for y in o.reshape(-1).unbind():
            row = torch.zeros(sum(x.numel() for x in xs))
            for part in [y.real, y.imag] if y.is_complex() else [y]:
                if part.requires_grad:
                    grads = torch.autograd.grad(part, xs, retain_graph=True, allow_unused=True)
                    flat = [
                        torch.zeros(x.numel()) if g is None else g.reshape(-1).abs()
                        for g, x in zip(grads, xs, strict=True)
                    ]
                    row = row + torch.cat(flat).nan_to_num(0.0)
            rows.append(row)
    return torch.stack(rows)


def cases(name):
    for op in op_db:
        if op.name != name or torch.float64 not in op.supported_dtypes("cpu") or not op.supports_autograd:
            continue
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=False), 2))
        except Exception:
            continue
        for s in samples:
            yield op, s


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_never_misses_a_nonzero(name):
    tried = 0
    for op, sample in cases(name):
        flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [
            k
            for k, x in enumerate(flat)
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.layout is torch.strided
        ]
        inputs = [flat[k] for k in places]
        if not inputs or sum(x.numel() for x in inputs) > LARGEST:
            continue

        def f(*xs, flat=flat, places=places, spec=spec, op=op, sample=sample):
            torch.manual_seed(0)
            new = list(flat)
            for k, x in zip(places, xs, strict=True):
                new[k] = x
            first, args, kwargs = tree_unflatten(new, spec)
            out = sample.output_process_fn_grad(op.op(first, *args, **kwargs))
            return [
                o
                for o in tree_flatten(out)[0]
                if isinstance(o, torch.Tensor) and (o.is_floating_point() or o.is_complex())
            ]

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                xs = [x.detach().clone().requires_grad_() for x in inputs]
                outs = f(*xs)
                if not 0 < sum(o.numel() for o in outs) <= LARGEST:
                    continue
                dense = Pattern.from_mask(jacobian(outs, xs) != 0)
        except Exception:
            continue  # torch itself cannot differentiate this sample
        for kind in ("global", "local"):
            try:
                found = detect(f, tuple(inputs), tuple(range(len(inputs))), {}, kind)
            except NoPatternError:
                assert name == "to_sparse"
                continue
            tried += 1
            assert found.pattern.covers(dense), f"{kind}: {found.pattern} does not cover {dense}"
    if not tried:
        pytest.skip("no small sample that torch can differentiate")
