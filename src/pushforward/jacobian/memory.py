"""How much memory a computation takes, before it runs: the most bytes of tensors alive at once.

The computation runs on fake tensors (shapes without numbers) and every storage is counted from its allocation to its
release, saved tensors of the autograd engine included, because it is the engine itself that holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from ..batch.repeat import met
from ..core.errors import ArgumentError
from ..core.torch_private import TorchDispatchMode, fake_tensor_mode, storage_reference

Tensor = torch.Tensor

# Without a budget, so much of what is free may be used.
SAFE_FRACTION = 0.5
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

# Some kernels work on copies of inputs and outputs in a layout of their own: so many times what they read and write.
WORKSPACE = {"convolution": 1.5, "convolution_backward": 1.5}
# In that layout channels come in blocks of so many: a vector register's numbers.
BLOCK = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)


class OutOfBudgetError(ArgumentError, MemoryError):
    """No way to compute a Jacobian fits into the memory given; the message holds the numbers and the ways out.

    Failing:

    >>> import torch, pushforward as pf
    >>> pf.jacobian(torch.sin, memory="1KB")(torch.ones(100))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pushforward.jacobian.memory.OutOfBudgetError: ...

    Fixed, with room, or by using that the matrix is sparse:

    >>> pf.jacobian(torch.sin, memory="10KB", sparsity="global")(torch.ones(100)).layout
    torch.sparse_csr
    """


def parsed_bytes(memory: Any, device: torch.device) -> int:
    """A budget in bytes: "2GiB", a number of bytes, or a fraction (below 1) of what is free on the device.

    Example:
        >>> parsed_bytes("1.5 KiB", torch.device("cpu"))
        1536
    """
    if isinstance(memory, bool):
        memory = str(memory)
    if isinstance(memory, float) and 0 < memory < 1:
        return int(memory * free_bytes(device))
    if isinstance(memory, (int, float)) and memory >= 1:
        return int(memory)
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", memory)
        unit = found.group(2).upper() if found else ""
        if found and (unit in UNITS or unit + "B" in UNITS):
            return int(float(found.group(1)) * UNITS[unit if unit in UNITS else unit + "B"])
    msg = f"memory={memory!r}: it is a text such as '2GiB', a number of bytes, or a fraction below 1 of what is free"
    raise ArgumentError(msg)


def free_bytes(device: torch.device) -> int:
    """What is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 4 * 2**30


def in_words(count: float) -> str:
    """A number of bytes for a person.

    Example:
        >>> in_words(3 * 2**20)
        '3.0 MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class Meter(TorchDispatchMode):
    """Counts operators, elements written, and the bytes of tensors alive that were made under it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports the compiler

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.elements = 0
        self.alive = 0
        self.peak = 0
        self.storages: dict[int, tuple[Any, int]] = {}
        self.generators: list[torch.Generator] = []  # that were passed to operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.sweep()
        if kwargs and isinstance(kwargs.get("generator"), torch.Generator):
            self.generators.append(kwargs["generator"])
            met(kwargs["generator"])
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        made = 0
        for o in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(o, Tensor) and o.layout is torch.strided:
                self.elements += o.numel()
                storage = o.untyped_storage()
                if storage._cdata not in self.storages:
                    size = 0 if aliases else storage.nbytes()  # a view of a constant from outside takes no memory
                    self.storages[storage._cdata] = (storage_reference(storage), size)
                    self.alive += size
                    made += size
        hidden = 0 if aliases or torch.Tag.pointwise in func.tags else hidden_bytes(func, args, out, made)
        self.peak = max(self.peak, self.alive + hidden)
        return out

    def sweep(self) -> None:
        """Forget the storages that are gone."""
        gone = [key for key, (reference, _) in self.storages.items() if reference.expired()]
        for key in gone:
            self.alive -= self.storages.pop(key)[1]

    def owned_before(self, tensors: list[Tensor]) -> None:
        """Storages that were there before: they count as nothing."""
        for t in tensors:
            storage = t.untyped_storage()
            self.storages[storage._cdata] = (storage_reference(storage), 0)


def hidden_bytes(func: Any, args: tuple[Any, ...], out: Any, made: int) -> int:
    """What a kernel takes beside its outputs: copies of expanded arguments, or of all in a layout of its own."""
    tensors = [a for a in args if isinstance(a, Tensor) and a.layout is torch.strided]
    times = WORKSPACE.get(func.overloadpacket.__name__, 0.0)
    total = times * (made + sum(a.numel() * a.element_size() for a in tensors))
    if times and isinstance(out, Tensor) and out.device.type == "cpu" and out.dim() > 2 and out.numel():
        channels = out.shape[1]
        total = max(total, made / channels * BLOCK * -(-channels // BLOCK))
    for a in tensors:
        if any(s == 0 and n > 1 for n, s in zip(a.shape, a.stride(), strict=True)):
            total += a.numel() * a.element_size()
    return int(total)


def predicted_peak(function: Callable[..., Any], inputs: list[Tensor]) -> tuple[int, int]:
    """The peak bytes that `function(*inputs)` would take above its inputs, and how many operators; nothing runs.

    Raises:
        Exception: whatever the function raises on tensors without numbers, e.g. where it branches on a value.
    """
    fake = fake_tensor_mode()
    meter = Meter()
    with fake:
        made = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs]
        meter.owned_before(made)
        with meter:
            result = function(*made)
        del result
    meter.storages.clear()
    return meter.peak, meter.operators
