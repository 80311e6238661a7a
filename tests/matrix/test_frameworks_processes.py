"""Modules in several threads, and in spawned or forked processes, as in servers and data loaders."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from classes import ROWS, Seen, build, data, forward, state
from framework_steps import assert_same, assert_same_state, train
from torch import nn
from torch.utils.data import DataLoader, Dataset

Cell = Any
THREADS, ROUNDS = 3, 8


@pytest.mark.parametrize("row", ROWS)
def test_threads_evaluate_one_module(row: str, cell: Cell) -> None:
    cell("frameworks", row, "threads")
    module = build(row)
    train(module, row, [0])
    module.eval()
    before = state(module)
    inputs = [data(row, step) for step in range(THREADS)]
    expected = [forward(module, x) for x in inputs]
    found: list[list[Seen]] = [[] for _ in inputs]
    start = threading.Barrier(THREADS)

    def evaluate(thread: int) -> None:
        start.wait()
        for _ in range(ROUNDS):
            found[thread].append(forward(module, inputs[thread]))

    threads = [threading.Thread(target=evaluate, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results, right in zip(found, expected, strict=True):
        assert len(results) == ROUNDS
        for result in results:
            assert_same([t.detach() for t in result], [t.detach() for t in right])
    assert_same_state(module, before)


class Tokens(Dataset[tuple[str, list[torch.Tensor]]]):
    """Tokens of every row, computed by a module that was sent to a worker."""

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {row: build(row).eval() for row in ROWS}

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, index: int) -> tuple[str, list[torch.Tensor]]:
        row = list(ROWS)[index]
        torch.set_num_threads(1)
        with torch.no_grad():
            return row, [part.clone() for part in forward(self.modules[row], data(row))]


@pytest.fixture(scope="module", params=["spawn", "fork"])
def of_workers(request: pytest.FixtureRequest) -> dict[str, list[torch.Tensor]]:
    loader = DataLoader(
        Tokens(), batch_size=None, num_workers=1, multiprocessing_context=request.param
    )
    return dict(iter(loader))


@pytest.mark.parametrize("row", ROWS)
def test_workers_of_a_data_loader(
    row: str, of_workers: dict[str, list[torch.Tensor]], cell: Cell
) -> None:
    cell("frameworks", row, "worker processes")
    with torch.no_grad():
        assert_same(of_workers[row], forward(build(row).eval(), data(row)))
