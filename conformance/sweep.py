"""Runs the checks of an operator, and many operators in processes of their own.

A process that dies costs the operator it was at, and no other.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.connection
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .checks import LANE_CHECKS, Check, Derivatives
from .compare import TOLERANCES, difference
from .database import Call, MustRefuseError, NothingToCompareError, TorchFailsError, calls, first_line
from .names import DERIVATIVES, KINK, REFUSED, STATUSES
from .records import Record, Settings
from .references import Reference

SLOW = ("slow fallback", "performance drop")
SECONDS = 20.0  # of processor time for one check
SILENCE = 900.0  # seconds on the clock after which a process is given up
LIFETIME = 40  # operators for one process, so that what an operator leaves behind stays small


class OutOfTimeError(BaseException):
    """No Exception, so that no library's `except Exception` takes it."""


def limited(work: Callable[[], Any]) -> Any:
    """`work()`, within `SECONDS` of processor time: the clock on the wall depends on what else runs."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def out_of_time(*_: Any) -> None:
    """The handler of the timer."""
    raise OutOfTimeError


Outcome = tuple[str, str]
Told = tuple[str, str, Outcome]  # library, transform, status with its reason


def judged(check: Check, tolerances: dict[str, Any], wanted: Any) -> Outcome:
    """Run one check against the expected value and source `wanted`."""
    expected, source = wanted
    forget_what_was_said()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            got = limited(check.actual)
        except OutOfTimeError:
            return "timeout", f"{check.name}: more than {SECONDS:.0f} s"
        except Exception as error:
            return "error", f"{check.name}: {first_line(error)}"
    try:
        why = difference(got, expected, tolerances[source])
    except Exception as error:
        return "error", f"{check.name}: its result cannot be read: {first_line(error)}"
    if why is not None and check.opinion is not None:
        try:
            second, kind = limited(check.opinion)
        except (Exception, OutOfTimeError):
            second = None
        if second is not None:
            if difference(got, second, tolerances[kind]) is None:
                why = None  # the reference is wrong: torch's own second derivatives are, for some operators
            elif difference(expected, second, tolerances[kind]) is not None:
                return "none", f"{KINK} at a sample, {check.name}"
    if why is not None:
        return "wrong", f"{check.name}: {why}"
    slow = [text for text in (str(w.message) for w in said) if any(s in text.lower() for s in SLOW)]
    return ("slow", f"{check.name}: {slow[0].splitlines()[0][:160]}") if slow else ("pass", "")


def refused(check: Check, why: str) -> Outcome:
    """Run a check that has no right answer."""
    try:
        limited(check.actual)
    except OutOfTimeError:
        return "timeout", f"{check.name}: more than {SECONDS:.0f} s"
    except Exception:
        return "none", REFUSED + why
    return "wrong", f"{check.name}: not refused: {why}"


def forget_what_was_said() -> None:
    """Slow fallbacks are said once per operator; here once per check."""
    from pushforward.core import slow

    slow._SAID.clear()


def wanted(check: Check) -> Any:
    """What a check expects; raises `MustRefuseError`, `NothingToCompareError` or `TorchFailsError`."""
    try:
        return limited(check.expected)
    except (MustRefuseError, NothingToCompareError, TorchFailsError):
        raise
    except OutOfTimeError:
        raise TorchFailsError(f"{check.name}: the reference takes more than {SECONDS:.0f} s") from None
    except Exception as error:
        raise TorchFailsError(f"{check.name}: {first_line(error)}") from None


def of_sample(call: Call, seed: int, settings: Settings, libraries: dict[str, Any]) -> Iterator[Told]:
    """Library, transform and outcome of every check of one sample; the references are worked out once for all."""

    def every(transform: str, outcome: Outcome) -> Iterator[Told]:
        return ((library, transform, outcome) for library in libraries)

    reference: Reference | None = None
    missing: Outcome = ("none", "")
    if any(t in DERIVATIVES for t in settings.transforms):
        try:
            reference = limited(lambda: Reference(call, seed))
        except NothingToCompareError as reason:
            missing = ("none", str(reason))
        except (TorchFailsError, OutOfTimeError) as reason:
            missing = ("torch fails", str(reason) or "out of time")
    tolerances = TOLERANCES[settings.dtype]
    for transform in settings.transforms:
        if transform in DERIVATIVES and reference is None:
            yield from every(transform, missing)
            continue
        per_library = []
        try:
            for lib in libraries.values():
                if transform in LANE_CHECKS:
                    made = LANE_CHECKS[transform](call, lib)
                else:
                    assert reference is not None
                    made = Derivatives(reference, lib).checks(transform)
                per_library.append(list(made))
        except NothingToCompareError as reason:
            yield from every(transform, ("none", str(reason)))
            continue
        for checks in zip(*per_library, strict=True):
            try:
                expected = wanted(checks[0])
            except MustRefuseError as reason:
                for library, check in zip(libraries, checks, strict=True):
                    yield library, transform, refused(check, str(reason))
            except NothingToCompareError as reason:
                yield from every(transform, ("none", str(reason)))
            except TorchFailsError as reason:
                yield from every(transform, ("torch fails", str(reason)))
            else:
                for library, check in zip(libraries, checks, strict=True):
                    yield library, transform, judged(check, tolerances, expected)



def of_operator(op: Any, settings: Settings) -> Record:
    """For every library and transform the worst status, why, and how many checks had which.

    What passes has a reason where a sample has no right answer, or none that torch knows.
    """
    libraries = {name: importlib.import_module(name) for name in settings.libraries}
    found: dict[tuple[str, str], list[Outcome]] = {(n, t): [] for n in libraries for t in settings.transforms}
    try:
        for k, call in enumerate(calls(op, settings.dtype, settings.samples)):
            if not call.dense:
                continue
            for library, transform, outcome in of_sample(call, k, settings, libraries):
                found[library, transform].append(outcome)
    except (NothingToCompareError, TorchFailsError) as reason:
        kind = "none" if isinstance(reason, NothingToCompareError) else "torch fails"
        found = {key: [(kind, str(reason))] for key in found}
    made: Record = {name: {} for name in libraries}
    for (library, transform), outcomes in found.items():
        outcomes = outcomes or [("none", "no sample of dense tensors")]
        status, detail = max(outcomes, key=lambda o: STATUSES.index(o[0]))
        if status == "pass":
            detail = "; ".join(dict.fromkeys(why for s, why in outcomes if s == "torch fails" or why.startswith((REFUSED, KINK))))
        compared = sum(s not in ("none", "torch fails") for s, _ in outcomes)
        made[library][transform] = {"status": status, "detail": detail, "compared": compared}
    return made


# -- processes --------------------------------------------------------------------------------------------------------


def serve(connection: Any, ops: list[Any], settings: Settings) -> None:
    """A child: operators by number come in, records go out."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, out_of_time)
    torch._C._debug_only_display_vmap_fallback_warnings(True)
    warnings.simplefilter("ignore")
    while (k := connection.recv()) is not None:
        connection.send(of_operator(ops[k], settings))


class Worker:
    """A child process and what it is at."""

    def __init__(self, ops: list[Any], settings: Settings) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, ops, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.at: int | None = None
        self.done = 0

    def give(self, k: int) -> None:
        """The next operator."""
        self.at = k
        self.connection.send(k)

    def end(self) -> None:
        """No more operators."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()


def run(ops: list[Any], settings: Settings, jobs: int) -> Iterator[tuple[int, Record]]:
    """The records of all operators, as they come."""
    for name in settings.libraries:
        importlib.import_module(name)  # before the processes part, so that all of them run the same files
    left = iter(range(len(ops)))
    workers: list[Worker] = []

    def put_to_work(worker: Worker | None) -> None:
        k = next(left, None)
        if worker is not None and (k is None or worker.done >= LIFETIME or worker.at is not None):
            worker.end()
            workers.remove(worker)
            worker = None
        if k is not None:
            if worker is None:
                worker = Worker(ops, settings)
                workers.append(worker)
            worker.give(k)

    for _ in range(jobs):
        put_to_work(None)
    while workers:
        ready = multiprocessing.connection.wait([w.connection for w in workers], SILENCE)
        for worker in [w for w in workers if w.connection in ready] or list(workers):
            k = worker.at
            assert k is not None
            try:
                if worker.connection not in ready:
                    worker.process.kill()
                yield k, worker.connection.recv()
                worker.at, worker.done = None, worker.done + 1
            except (EOFError, ConnectionResetError):
                worker.process.join()
                why = f"the process ended with {worker.process.exitcode}"
                crash = {"status": "crash", "detail": why, "compared": 0}
                yield k, {name: {t: dict(crash) for t in settings.transforms} for name in settings.libraries}
            put_to_work(worker)
