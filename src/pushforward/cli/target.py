"""Targets: the function that a command works on, named as `file.py:function` or `package.module:function`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import UserError, guarded

FORMS = "file.py:function or package.module:function"


@dataclass(frozen=True)
class Target:
    """A function found by name, and where it came from."""

    spec: str
    name: str
    function: Callable[..., Any]
    module: ModuleType
    source: Path | None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; an exception in it becomes a `UserError` naming its line."""
        return guarded(lambda: self.function(*args, **kwargs), f"calling {self.name}", self.source)


def load_target(spec: str) -> Target:
    """Find the function that `spec` names.

    Args:
        spec: `file.py:function` or `package.module:function`; the function may be an attribute of something
            (`model.py:net.forward`).

    Raises:
        UserError: no such form, file, module or function, or the module's own code failed.

    >>> load_target("torch:sin").name
    'sin'
    """
    place, colon, name = spec.rpartition(":")
    if not (colon and place and name):
        raise UserError(f"target '{spec}' does not name a function: write {FORMS}")
    is_file = place.endswith(".py") or os.sep in place
    module = _load_file(Path(place)) if is_file else _load_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{place} has no function '{name}'{_suggestion(name, module)}")
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"'{name}' in {place} is of type {type(found).__name__}, not a function")
    if isinstance(found, type):
        raise UserError(f"'{name}' in {place} is a class: name a function, or an instance that can be called")
    source = getattr(module, "__file__", None)
    return Target(spec, name, found, module, Path(source) if source else None)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    # A name of its own: a file called random.py must not take the place of the module random.
    name = f"_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: write {FORMS}")
    module = importlib.util.module_from_spec(spec)
    # A script finds the files beside it, and so does a target; dataclasses and pickle look the module up by name.
    _prefer(str(path.resolve().parent))
    sys.modules[name] = module
    loader = spec.loader
    guarded(lambda: loader.exec_module(module), f"loading {path}", path)
    return module


def _load_module(name: str) -> ModuleType:
    _prefer(os.getcwd())
    found = guarded(lambda: _find(name), f"importing {name}", None)
    if found is None:
        hint = f" (for the file {name}.py write {name}.py:function)" if Path(f"{name}.py").is_file() else ""
        raise UserError(f"there is no module '{name}'{hint}")
    source = Path(found.origin) if found.origin else None
    return guarded(lambda: importlib.import_module(name), f"importing {name}", source)


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:
        # Finding a.b imports a: that a is missing is the answer, that a needs something missing is its own failure.
        missing = getattr(error, "name", None) or name
        if name == missing or name.startswith(f"{missing}."):
            return None
        raise


def _prefer(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _suggestion(name: str, module: ModuleType) -> str:
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    own = [key for key in functions if getattr(vars(module)[key], "__module__", None) == module.__name__]
    close = difflib.get_close_matches(name, functions, n=1)
    if close:
        return f": did you mean '{close[0]}'?"
    return f"; it has {', '.join(own[:8])}" if own else ""
