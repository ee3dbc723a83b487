"""What goes wrong at the terminal, said in one line."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LONGEST_MESSAGE = 600


class UserError(Exception):
    """Something that the person at the terminal can put right.

    The command prints its message as one line on standard error and ends with exit code 2, without a traceback.
    """


def one_line(text: object) -> str:
    r"""Join the lines of a message, and shorten a very long one.

    >>> one_line("size mismatch:\n   3 against 4")
    'size mismatch: 3 against 4'
    """
    joined = " ".join(str(text).split())
    return joined if len(joined) <= LONGEST_MESSAGE else joined[: LONGEST_MESSAGE - 3] + "..."


def failure(error: BaseException, source: Path | None) -> str:
    """Describe an exception raised in the target's code, with the line of the target's own file.

    Args:
        error: the exception.
        source: the target's file; the innermost frame inside it is named.
    """
    text = f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})"
    own = [frame for frame in frames if source is not None and Path(frame.filename).resolve() == source.resolve()]
    return f"{text} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else text


def guarded(call: Callable[[], T], doing: str, source: Path | None) -> T:
    """Call code of the target's author; what it raises becomes a `UserError` that says what was being done.

    Raises:
        UserError: `call` raised an exception, or tried to exit.

    >>> guarded(lambda: 1 / 0, "calling half", None)
    Traceback (most recent call last):
    pushforward.cli.errors.UserError: calling half failed: ZeroDivisionError: division by zero
    """
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{doing} failed: {failure(error, source)}") from error
