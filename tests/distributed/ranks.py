"""Ranks as processes that live as long as the tests, because starting Python and torch takes longer than most tests.

`Ranks(2).run(function, *args)` calls `function(rank, *args)` on each rank of a Gloo group and returns the results.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

# Generous: on a busy machine one rank may compile much longer than the others.
GROUP_TIMEOUT = timedelta(seconds=120)
ANSWER_TIMEOUT = 150.0


class RankError(AssertionError):
    """A rank raised; the message holds its traceback."""


def _serve(rank: int, size: int, store: str, tasks: Connection) -> None:
    import torch.distributed as dist

    import torchvq  # noqa: F401  (registers the operators)

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=GROUP_TIMEOUT
    )
    tasks.send((True, None))
    while (task := tasks.recv()) is not None:
        function, args = task
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # as the fixture nothing_compiled does, which does not reach this process
        try:
            answer = (True, function(rank, *args))
        except Exception:  # any exception of the test's function is reported to that test
            answer = (False, traceback.format_exc())
        tasks.send(answer)
    dist.destroy_process_group()


class Ranks:
    """`size` processes in one Gloo group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        # Ranks are forked from a process that has only imported these modules.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "torchvq"])
        pipes = [context.Pipe() for _ in range(size)]
        store = str(Path(self._folder.name) / "store")
        self._pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(rank, size, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            # Only the rank holds its end, so that the pipe closes when it dies.
            theirs.close()
        self._answers(range(size))

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls the function on all ranks; raises RankError if one of them does."""
        self.start(function, *args)
        return self.collect()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        for pipe in self._pipes:
            pipe.send((function, args))

    def collect(self, ranks: range | None = None) -> list[Any]:
        return self._answers(range(self.size) if ranks is None else ranks)

    def first(self, ranks: set[int]) -> tuple[int, Any]:
        """The rank among these that answers first, and its answer."""
        ready = wait([self._pipes[rank] for rank in ranks], ANSWER_TIMEOUT)
        if not ready:
            raise RankError(f"of ranks {ranks} none answers")
        rank = next(rank for rank in ranks if self._pipes[rank] in ready)
        return rank, self._answers(range(rank, rank + 1))[0]

    def failures(self, survivors: set[int]) -> Iterator[Any]:
        """The answers of ranks that have lost another one, each of which ends with its answer, as its program would.

        Whether a rank waits for the lost rank or for another survivor is chance.
        """
        waiting = set(survivors)
        while waiting:
            rank, answer = self.first(waiting)
            yield answer
            self.processes[rank].kill()
            waiting.remove(rank)

    def _answers(self, ranks: range) -> list[Any]:
        answers = []
        for rank in ranks:
            if not self._pipes[rank].poll(ANSWER_TIMEOUT):
                self.close()
                raise RankError(f"rank {rank} does not answer")
            try:
                answers.append(self._pipes[rank].recv())
            except EOFError:
                answers.append((False, "the process has ended"))
        for rank, (fine, value) in zip(ranks, answers, strict=True):
            if not fine:
                raise RankError(f"rank {rank}: {value}")
        return [value for _, value in answers]

    def close(self) -> None:
        """Ends the processes, including hanging ones."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def outcome(function: Callable[..., Any], *args: Any) -> str:
    """`<type>: <message>` of what the function raised, or "nothing"."""
    try:
        function(*args)
    except Exception as error:  # the type is part of what tests compare
        return f"{type(error).__name__}: {error}"
    return "nothing"


def stderr_of(function: Callable[..., Any], *args: Any) -> str:
    """The text that the function writes to standard error, including that of C++."""
    # A rank runs many tests, and Python shows a warning only once.
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("always")
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            function(*args)
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        return file.read().decode()
