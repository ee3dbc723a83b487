"""Where a function is evaluated: read from a file, or asked of the target's module."""

from __future__ import annotations

import csv
import inspect
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import UserError, guarded, one_line
from .target import Target

SUFFIXES = ".npz, .pt or .csv"


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call, and names for the entries of a vector when the file gives them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entry_names: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class _Named:
    """Values by name, not yet matched with the function's parameters."""

    values: dict[str, Any]
    vector: torch.Tensor | None = None
    entry_names: tuple[str, ...] = field(default=())


def load_inputs(target: Target, at: Path | None) -> Inputs:
    """Read the inputs from `at`, or from `example_inputs()` of the target's module.

    Args:
        target: the function; its parameter names decide how named values are passed.
        at: an `.npz` (arrays by parameter name), a `.pt` (a tensor, tuple or dictionary) or a `.csv` (numbers, with
            a header or without); None asks the module.

    Raises:
        UserError: no such file, a file that cannot be read, or values that do not fit the function's parameters.
    """
    if at is None:
        example = getattr(target.module, "example_inputs", None)
        if not callable(example):
            where = target.source.name if target.source else target.module.__name__
            raise UserError(f"{where} has no example_inputs(): give the inputs with --at FILE ({SUFFIXES})")
        given = guarded(example, "calling example_inputs()", target.source)
        return _bind(target, given, "example_inputs()")
    if not at.is_file():
        raise UserError(f"there is no file {at} to read the inputs from")
    readers = {".npz": _read_npz, ".pt": _read_pt, ".csv": _read_csv}
    reader = readers.get(at.suffix.lower())
    if reader is None:
        raise UserError(f"inputs are read from {SUFFIXES}, not from '{at.suffix}' ({at})")
    return _bind(target, reader(at), str(at))


def _read_npz(path: Path) -> dict[str, torch.Tensor] | tuple[torch.Tensor, ...]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError) as error:
        raise UserError(f"{path} cannot be read as .npz: {one_line(error)}") from error
    tensors: dict[str, torch.Tensor] = {}
    for name, array in arrays.items():
        try:
            tensors[name] = torch.from_numpy(np.array(array))
        except TypeError as error:
            raise UserError(f"array '{name}' in {path} holds {array.dtype}, not numbers") from error
    if not tensors:
        raise UserError(f"{path} holds no arrays")
    # numpy names arrays that were saved without a name arr_0, arr_1, ...: those are positional.
    if all(name == f"arr_{index}" for index, name in enumerate(tensors)):
        return tuple(tensors.values())
    return tensors


def _read_pt(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        reason = one_line(error).split(". ")[0]
        raise UserError(f"{path} cannot be read as tensors saved by torch.save: {reason}") from error


def _read_csv(path: Path) -> torch.Tensor | _Named:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                (number, [cell.strip() for cell in row])
                for number, row in enumerate(csv.reader(file), start=1)
                if any(cell.strip() for cell in row) and not row[0].lstrip().startswith("#")
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as CSV: {one_line(error)}") from error
    header: list[str] = []
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        header = rows.pop(0)[1]
    if not rows:
        raise UserError(f"{path} holds no numbers")
    width = len(header or rows[0][1])
    table = np.empty((len(rows), width))
    for index, (number, row) in enumerate(rows):
        if len(row) != width:
            raise UserError(f"{path}, line {number}: {len(row)} columns where {width} were expected")
        for column, cell in enumerate(row):
            if not _is_number(cell):
                raise UserError(f"{path}, line {number}, column {column + 1}: '{cell}' is not a number")
            table[index, column] = float(cell)
    vector = table[0] if len(rows) == 1 else table
    if width == 1 and len(rows) > 1:
        vector = table[:, 0]
    if not header:
        return torch.from_numpy(vector.copy())
    columns = table[0] if len(rows) == 1 else table.T
    values = {name: torch.from_numpy(np.array(column)) for name, column in zip(header, columns, strict=True)}
    names = tuple(header) if len(rows) == 1 else ()
    return _Named(values, torch.from_numpy(vector.copy()), names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _bind(target: Target, given: Any, source: str) -> Inputs:
    """Match what was given with the function's parameters."""
    # A module's parameters are those of its forward; its __call__ takes anything.
    called = target.function.forward if isinstance(target.function, torch.nn.Module) else target.function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        # Built-in functions such as torch.sin tell no signature; torch reports a bad call itself.
        signature = None
    entry_names: tuple[str, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(given, _Named) and given.vector is not None and not _fit_by_name(signature, given.values):
        args, entry_names = (given.vector,), given.entry_names
    elif isinstance(given, _Named) or (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
        args, kwargs = _place(signature, given.values if isinstance(given, _Named) else dict(given))
    elif isinstance(given, tuple | list):
        args = tuple(given)
    else:
        args = (given,)
    if signature is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            wanted = ", ".join(signature.parameters) or "nothing"
            got = ", ".join([f"{len(args)} without a name"] * bool(args) + list(kwargs)) or "none"
            raise UserError(f"{target.name} takes ({wanted}); {source} gives {got}: {one_line(error)}") from error
        # Values passed by position get their parameter's name, so that the report can name them.
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
            args, kwargs = (), dict(bound.arguments)
    return Inputs(args, kwargs, entry_names, source)


def _fit_by_name(signature: inspect.Signature | None, values: Mapping[str, Any]) -> bool:
    if signature is None:
        return False
    try:
        signature.bind(**values)
    except TypeError:
        return False
    return True


def _place(signature: inspect.Signature | None, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Named values are keyword arguments, else the one argument of a function of one."""
    if signature is None:
        return tuple(values.values()), {}
    required = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if _fit_by_name(signature, values) or len(required) != 1 or set(values) & set(signature.parameters):
        return (), values
    if len(values) == 1:
        return tuple(values.values()), {}
    return (values,), {}
