"""Fixtures of the distributed tests: groups of two and of three ranks, started once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ranks import Ranks


class Pool:
    """Groups by size; a group that a test has broken is replaced."""

    def __init__(self) -> None:
        self._groups: dict[int, Ranks] = {}

    def __call__(self, size: int) -> Ranks:
        group = self._groups.get(size)
        if group is None or not all(process.is_alive() for process in group.processes):
            group = self._groups[size] = Ranks(size)
        return group

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    groups = Pool()
    yield groups
    groups.close()


@pytest.fixture(params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request: pytest.FixtureRequest, pool: Callable[[int], Ranks]) -> Ranks:
    return pool(request.param)


@pytest.fixture
def two(pool: Callable[[int], Ranks]) -> Ranks:
    return pool(2)
