"""Runs checks in processes of their own, many at once.

A kernel that fails ends the CUDA context of its process alone, and one that never returns is killed. The processes are
forked from one that has imported everything and has not touched the card, so each costs little more than a context.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

Check = Callable[[], None]


class _Running(NamedTuple):
    process: multiprocessing.process.BaseProcess
    result: Connection
    until: float


def run(checks: dict[str, Check], at_once: int, seconds: float) -> dict[str, str]:
    """The result of each check: empty, or why it failed."""
    waiting = list(checks.items())[::-1]
    running: dict[str, _Running] = {}
    found: dict[str, str] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name, check = waiting.pop()
            running[name] = _start(check, seconds)
        multiprocessing.connection.wait([one.process.sentinel for one in running.values()], 0.2)
        for name, one in list(running.items()):
            reason = _ended(one, seconds)
            if reason is not None:
                found[name] = reason
                del running[name]
    return {name: found[name] for name in checks}


def _start(check: Check, seconds: float) -> _Running:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(check, there))
    process.start()
    there.close()
    return _Running(process, here, time.monotonic() + seconds)


def _report(check: Check, result: Connection) -> None:
    try:
        check()
        reason = ""
    except Exception as error:  # one failing check must not hide the others
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {' | '.join(lines[:6])}"
    result.send(reason)


def _ended(one: _Running, seconds: float) -> str | None:
    """Nothing while it runs."""
    if one.result.poll():
        try:
            reason: str | None = one.result.recv()
        except EOFError:
            one.process.join()
            return f"ended with {one.process.exitcode}"
        one.process.join(5)
        if one.process.is_alive():
            one.process.kill()
            return f"{reason}; its process did not end"
        return reason
    if time.monotonic() > one.until:
        one.process.kill()
        return f"not done in {seconds:g} s"
    return None
