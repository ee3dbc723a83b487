"""Modules as functions of their parameters: `functional_call` and `stack_module_state`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .core.errors import ArgumentError
from .core.words import check_module, instead, kind

Tensor = torch.Tensor


def functional_call(
    module: torch.nn.Module,
    parameter_and_buffer_dicts: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
    return_buffers: bool = False,
) -> Any:
    """Call `module` with other parameters and buffers in place of its own.

    Args:
        module: the module to call; it is as before when the call ends, also after an error.
        parameter_and_buffer_dicts: a dict from names to tensors, or several of them (no name twice).
        args: the positional arguments, a tuple or a single value.
        kwargs: the keyword arguments.
        tie_weights: a tensor shared under several names is replaced under all of them.
        strict: every parameter and buffer must be given, and no other name.
        return_buffers: return `(output, buffers)`: a dict of all buffers as they are after the call, those that were given and the
            module's own; neither is changed.

    Raises:
        ArgumentError: a name does not exist, is missing under `strict`, or tied names are given different tensors.

    Example:
        >>> import torch, pushforward as pf
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> pf.functional_call(layer, {"weight": torch.ones(1, 2)}, (torch.ones(2),))
        tensor([2.])
    """
    check_module("functional_call", "module", module)
    given = merged(parameter_and_buffer_dicts)
    for name, value in given.items():
        if not isinstance(value, Tensor):
            msg = f"functional_call: {name!r} must be a tensor, but is {kind(value)}; {instead(value)}"
            raise ArgumentError(msg)
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    if not return_buffers:
        with replaced(module, given, tie_weights=tie_weights, strict=strict):
            return module(*args, **(kwargs or {}))
    own = dict(module.named_buffers())
    given = dict(given) | {name: given.get(name, b).clone() for name, b in own.items()}
    with replaced(module, given, tie_weights=tie_weights, strict=strict):
        out = module(*args, **(kwargs or {}))
        return out, dict(module.named_buffers())


def merged(dicts: Any) -> dict[str, Tensor]:
    """One dict from one or several; no name twice."""
    if isinstance(dicts, dict):
        return dicts
    if not isinstance(dicts, Sequence) or not all(isinstance(d, dict) for d in dicts):
        msg = (
            f"functional_call: parameter_and_buffer_dicts must be a dict or a tuple of dicts, but is {kind(dicts)}; write "
            "dict(module.named_parameters())"
        )
        raise ArgumentError(msg)
    out: dict[str, Tensor] = {}
    for d in dicts:
        twice = out.keys() & d.keys()
        if twice:
            msg = f"functional_call: {sorted(twice)[0]!r} is in more than one of the dicts"
            raise ArgumentError(msg)
        out.update(d)
    return out


def places(module: torch.nn.Module) -> dict[str, tuple[dict[str, Any], str, Tensor]]:
    """Every name of a parameter or buffer: its owner's dict, its key there and the tensor; shared ones under each name."""
    found: dict[str, tuple[dict[str, Any], str, Tensor]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for store in (owner._parameters, owner._buffers):
            for key, value in store.items():
                if value is not None:
                    found[f"{path}.{key}" if path else key] = (store, key, value)
    return found


@contextlib.contextmanager
def replaced(module: torch.nn.Module, given: dict[str, Tensor], *, tie_weights: bool, strict: bool) -> Iterator[None]:
    """The module with other tensors, for the time of a block."""
    known = places(module)
    unknown = [name for name in given if name not in known]
    if unknown:
        msg = (
            f"functional_call: {type(module).__name__} has no parameter or buffer {unknown[0]!r}; there are "
            f"{', '.join(known) or 'none'}"
        )
        raise ArgumentError(msg)
    wanted = dict(given)
    if tie_weights:
        by_tensor: dict[int, str] = {}
        for name in given:
            own = id(known[name][2])
            other = by_tensor.setdefault(own, name)
            if given[other] is not given[name]:
                msg = (
                    f"functional_call: {other!r} and {name!r} are one tied tensor but were given different values; "
                    "give one of them, the same for both, or say tie_weights=False"
                )
                raise ArgumentError(msg)
        for name, (_, _, own) in known.items():
            if name not in wanted and id(own) in by_tensor:
                wanted[name] = given[by_tensor[id(own)]]
    if strict:
        missing = [name for name in known if name not in wanted]
        if missing:
            msg = f"functional_call(strict=True): {missing[0]!r} of {type(module).__name__} was not given"
            raise ArgumentError(msg)
    before = [(known[name][0], known[name][1], known[name][2]) for name in wanted]
    after: dict[tuple[int, str], Any] = {}
    try:
        for name, value in wanted.items():
            store, key, _ = known[name]
            store[key] = value
            after[id(store), key] = value
        yield
    finally:
        for store, key, own in before:
            if store.get(key) is not after.get((id(store), key)) and isinstance(store.get(key), Tensor):
                for name in given:  # a buffer that the module rebound: the new one belongs to the caller's dict
                    if known[name][0] is store and known[name][1] == key:
                        given[name] = store[key]
            store[key] = own


@contextlib.contextmanager
def frozen_statistics(model: torch.nn.Module, use: str = "running") -> Iterator[torch.nn.Module]:
    """A block in which the normalisation layers of a model leave their running statistics as they are.

    Args:
        model: any module; its layers with running statistics (BatchNorm, InstanceNorm with `track_running_stats`) are meant.
        use: what these layers normalise by: "running", their running statistics, as in evaluation (right for single examples
            under `vmap`), or "batch", the statistics of what they are given, as in training.

    Raises:
        ArgumentError: `use` is neither.

    Example:
        >>> import torch, pushforward as pf
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        >>> loss = lambda x: net(x[None]).sum()
        >>> with pf.frozen_statistics(net):
        ...     pf.vmap(pf.grad(loss))(torch.ones(5, 3)).shape
        torch.Size([5, 3])
    """
    check_module("frozen_statistics", "model", model)
    if use not in ("running", "batch"):
        msg = f"frozen_statistics: use is {use!r}; it must be 'running' or 'batch'"
        raise ArgumentError(msg)
    layers = [
        m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.running_mean is not None
    ]
    if use == "running":
        before = [(m, m.training) for m in layers]
        for m in layers:
            m.training = False
        try:
            yield model
        finally:
            for m, training in before:
                m.training = training
        return
    stores = [(m, m.track_running_stats, {k: m._buffers[k] for k in _STATISTICS}) for m in layers]
    for m in layers:
        m.track_running_stats = False
        for k in _STATISTICS:
            m._buffers[k] = None
    try:
        yield model
    finally:
        for m, tracked, buffers in stores:
            m.track_running_stats = tracked
            m._buffers.update(buffers)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def stack_module_state(models: Sequence[torch.nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers of several modules of one kind, stacked at dim 0, to map over.

    Args:
        models: modules of one class with the same shapes, all in the same mode (train or eval).

    Returns:
        `(params, buffers)`: dicts from names to stacked tensors; stacked parameters that required grad do so as new leaves.

    Example:
        >>> import torch, pushforward as pf
        >>> nets = [torch.nn.Linear(2, 3) for _ in range(4)]
        >>> params, buffers = pf.stack_module_state(nets)
        >>> x = torch.ones(2)
        >>> pf.vmap(lambda p: pf.functional_call(nets[0], p, (x,)))(params).shape
        torch.Size([4, 3])
    """
    if not isinstance(models, (list, tuple, torch.nn.ModuleList)):
        msg = f"stack_module_state: models must be a list of modules, but is {kind(models)}; write stack_module_state([model, ...])"
        raise ArgumentError(msg)
    for k, m in enumerate(models):
        check_module("stack_module_state", f"models[{k}]", m)
    if not models:
        msg = "stack_module_state: no models were given"
        raise ArgumentError(msg)
    if any(type(m) is not type(models[0]) for m in models):
        names = ", ".join(sorted({type(m).__name__ for m in models}))
        msg = f"stack_module_state: the models must be of one class, but are {names}"
        raise ArgumentError(msg)
    if any(m.training != models[0].training for m in models):
        msg = "stack_module_state: some models are in train mode and some in eval mode; call .train() or .eval() on all"
        raise ArgumentError(msg)
    params = {
        name: stacked([dict(m.named_parameters())[name] for m in models], name, leaf=True)
        for name, _ in models[0].named_parameters()
    }
    buffers = {
        name: stacked([dict(m.named_buffers())[name] for m in models], name, leaf=False)
        for name, _ in models[0].named_buffers()
    }
    return params, buffers


def stacked(tensors: list[Tensor], name: str, *, leaf: bool) -> Tensor:
    """One tensor from those of all models; parameters become new leaves."""
    if any(t.shape != tensors[0].shape for t in tensors):
        msg = f"stack_module_state: {name!r} has different shapes: {', '.join(str(list(t.shape)) for t in tensors)}"
        raise ArgumentError(msg)
    if any(t.requires_grad != tensors[0].requires_grad for t in tensors):
        msg = f"stack_module_state: {name!r} requires grad in some models and not in others"
        raise ArgumentError(msg)
    if leaf:
        return torch.stack([t.detach() for t in tensors]).requires_grad_(tensors[0].requires_grad)
    return torch.stack(tensors)
