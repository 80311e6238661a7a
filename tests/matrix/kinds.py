"""One row of each kind, for tests of seconds a row: these run in `make test`, the others in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from classes import ROWS

# One of each class, the one that has most of its parts; and what else is a graph of its own kind: codes that come to be
# in the first step, codes that are parameters, codes that a network makes, an optimizer inside of forward, images.
KINDS = [
    "vq_dead_codes", "vq_kmeans", "vq_learnable", "vq_image", "residual_vq_dropout", "residual_vq_implicit",
    "grouped_residual_vq", "fsq_symmetric", "residual_fsq_dropout", "grouped_residual_fsq", "lfq_part_of_tokens",
    "residual_lfq_dropout", "grouped_residual_lfq", "evo_lfq", "fsp", "latent", "latent_in_place", "binary_mapper",
]  # fmt: skip
assert {ROWS[row].name for row in KINDS} == {row.name for row in ROWS.values()}


def exhaustive(value: Any) -> Any:
    """A parameter of a test for `make test-all`."""
    return pytest.param(value, marks=pytest.mark.exhaustive)


def one_of_each(rows: Iterable[str] = ROWS) -> list[Any]:
    return [row if row in KINDS else exhaustive(row) for row in rows]
