"""Every class once in one LightningModule, in a precision of Lightning; each rank writes `FOLDER/RANK.pt`.

`lightning_matrix.py FOLDER PRECISION DEVICES`
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from classes import BATCH, ROWS
from matrix_model import Around
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torchvq import verify_replicas

# The first row of each class, and rows with state that casts could damage.
FIRST = {options.name: row for row, options in reversed(ROWS.items())}
CHOSEN = [*FIRST.values(), "vq_kmeans", "vq_learnable", "vq_projections", "residual_vq_dropout"]
STEPS = 4


class Inputs(Dataset[dict[str, Tensor]]):
    """A sample for every row."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {row: torch.randn(ROWS[row].shape[1:], generator=generator) for row in CHOSEN}


class Every(pl.LightningModule):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({row: Around(row, seed) for row in CHOSEN})
        self.losses: list[float] = []
        self.outputs: dict[str, torch.dtype] = {}
        self.validated = 0

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.stack([part(batch[row]) for row, part in self.parts.items()]).sum()

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        self.outputs = {row: part.output for row, part in self.parts.items()}
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        torch.ops.torchvq.reset_traffic()
        assert self.loss(batch).isfinite()
        assert torch.ops.torchvq.traffic() == (0, 0, 0, 0)
        self.validated += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Inputs(8 * BATCH), batch_size=BATCH)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Inputs(4 * BATCH), batch_size=BATCH)


def fit(precision: str, devices: int, seed: int) -> dict[str, Any]:
    """Trains a few steps, with sanity steps before and validation in between; returns the results."""
    warnings.simplefilter("ignore")
    module = Every(seed)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp_find_unused_parameters_true" if devices > 1 else "auto",
        precision=precision,  # type: ignore[arg-type]
        max_steps=STEPS,
        num_sanity_val_steps=1,
        val_check_interval=2,
        limit_val_batches=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
    assert verify_replicas(module) == []
    return {
        "state": module.parts.state_dict(),
        "losses": module.losses,
        "outputs": module.outputs,
        "validated": module.validated,
    }


def main() -> None:
    folder, precision, devices = sys.argv[1:]
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.save(fit(precision, int(devices), seed=rank), f"{folder}/{rank}.pt")


if __name__ == "__main__":
    main()
    # Lightning leaves the group, and an interpreter that ends beside Gloo's threads may abort ("When something goes
    # wrong" in docs/distributed.md).
    os._exit(0)
