"""Every class in DistributedDataParallel and in FSDP2 on two ranks: they train, stay replicas, and save."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import matrix_model
import pytest
import torch
from classes import ROWS
from matrix_model import Around
from ranks import Ranks

Pool = Callable[[int], Ranks]
every_row = pytest.mark.parametrize("row", ROWS)


@pytest.fixture(scope="module")
def data_parallel(pool: Pool) -> list[dict[str, Any]]:
    return pool(2).run(matrix_model.on_rank, "data_parallel")


@pytest.fixture(scope="module", params=[True, False], ids=["cast", "no_cast"])
def fully_sharded(pool: Pool, request: pytest.FixtureRequest) -> tuple[bool, list[dict[str, Any]]]:
    return request.param, pool(2).run(matrix_model.on_rank, "fully_sharded", request.param)


def of_row(answers: list[dict[str, Any]], row: str) -> tuple[Any, Any]:
    for answer in answers:
        if isinstance(answer[row], str):
            pytest.fail(answer[row], pytrace=False)
    first, second = (answer[row] for answer in answers)
    return first, second


def assert_replicas(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert value.isfinite().all(), name
        # Noise for tokens is local to a rank; in modules that only draw noise, so may be the seed and the step.
        if name not in ("quantizer.rng", "quantizer.lfq.rng"):
            assert torch.equal(value, other[name]), name


def put(record: Callable[[str, object], None], row: str, column: str) -> None:
    record("cell", json.dumps(["frameworks", row, column, "yes"]))


@every_row
def test_ddp(
    row: str, data_parallel: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    put(record_property, row, "DDP")
    first, second = of_row(data_parallel, row)
    assert_replicas(first["state"], second["state"])
    for a, b in zip(first["gradients"], second["gradients"], strict=True):
        assert torch.equal(a, b) and a.isfinite().all()


@pytest.fixture(scope="module")
def forward_twice(pool: Pool) -> list[dict[str, Any]]:
    return pool(2).run(matrix_model.on_rank, "two_forwards")


@every_row
def test_two_forwards_before_one_backward(row: str, forward_twice: list[dict[str, Any]]) -> None:
    for gradients in of_row(forward_twice, row):
        assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_rotations_that_differ_are_found(two: Ranks) -> None:
    for found in two.run(matrix_model.rotations_differ):
        assert found == ["orthogonal_rot: ranks 0 | 1"]


@every_row
def test_fsdp2_in_bfloat16(
    row: str,
    fully_sharded: tuple[bool, list[dict[str, Any]]],
    record_property: Callable[[str, object], None],
) -> None:
    put(record_property, row, "FSDP2")
    cast, answers = fully_sharded
    first, second = of_row(answers, row)
    assert_replicas(first["state"], second["state"])
    for name, value in first["state"].items():
        assert value.dtype not in (torch.bfloat16, torch.float16), name
        assert torch.equal(value, first["whole"][name]), name
    # The output has the dtype of the input, which the policy decides; for a class that returns only indices, the test's
    # own input takes its place.
    narrow = (cast and row != "random_projection") or ROWS[row].name == "EvoLFQ"
    assert first["output"] == (torch.bfloat16 if narrow else torch.float32)
    assert torch.tensor(first["losses"]).isfinite().all()
    assert torch.equal(first["evaluated"], second["evaluated"])
    # The saved state is that of a model without a wrapper.
    plain = Around(row, seed=5)
    plain.load_state_dict(first["whole"], strict=True)
    plain.eval()
    with torch.no_grad():
        assert plain(matrix_model.data(row, 99)).isfinite()
