"""Tests that take seconds per row: `make test` runs one row of each kind, `make test-all` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from classes import ROWS

# For each class the row with most of its parts, and rows whose graph is of another kind: codes initialised in the first
# step, codes that are parameters, codes that a network computes, an optimizer inside the forward, images.
KINDS = [
    "vq_dead_codes", "vq_kmeans", "vq_learnable", "vq_image", "residual_vq_dropout", "residual_vq_implicit",
    "grouped_residual_vq", "fsq_symmetric", "residual_fsq_dropout", "grouped_residual_fsq", "lfq_part_of_tokens",
    "residual_lfq_dropout", "grouped_residual_lfq", "evo_lfq", "fsp", "latent", "latent_in_place", "binary_mapper",
    "sim_vq_image", "residual_sim_vq_dropout", "random_projection", "sequential", "hierarchical_vq",
    "hierarchical_vq_dropout",
]  # fmt: skip


def exhaustive(value: Any) -> Any:
    """A parameter that only `make test-all` runs."""
    return pytest.param(value, marks=pytest.mark.exhaustive)


def one_of_each(rows: Iterable[str] = ROWS) -> list[Any]:
    """All rows; `make test` runs those in KINDS, and the first row of a class that has none there."""
    rows = list(rows)
    chosen = {row: ROWS[row].name for row in rows if row in KINDS}
    first = {ROWS[row].name: row for row in reversed(rows)}
    chosen |= {row: name for name, row in first.items() if name not in chosen.values()}
    return [row if row in chosen else exhaustive(row) for row in rows]
