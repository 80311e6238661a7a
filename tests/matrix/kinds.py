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
    "sim_vq_image", "residual_sim_vq_dropout", "random_projection", "sequential", "hierarchical_vq",
    "hierarchical_vq_dropout",
]  # fmt: skip


def exhaustive(value: Any) -> Any:
    """A parameter of a test for `make test-all`."""
    return pytest.param(value, marks=pytest.mark.exhaustive)


def one_of_each(rows: Iterable[str] = ROWS) -> list[Any]:
    """All rows; `make test` runs those of KINDS, and the first of a class that has none there."""
    rows = list(rows)
    chosen = {row: ROWS[row].name for row in rows if row in KINDS}
    first = {ROWS[row].name: row for row in reversed(rows)}
    chosen |= {row: name for name, row in first.items() if name not in chosen.values()}
    return [row if row in chosen else exhaustive(row) for row in rows]
