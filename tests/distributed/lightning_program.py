"""Trains a model with Lightning under torchrun; each rank writes its state and inputs to `FOLDER/RANK.pt`.

`lightning_program.py FOLDER VALIDATE MODEL`: VALIDATE is `both` (Lightning's own loop, sanity steps included) or
`rank0` (a hook on rank 0); MODEL is `codebooks` (wrapped.Model) or `scalar` (wrapped_scalar.ScalarModel).
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from wrapped import Inputs, Model, data, state_of
from wrapped_scalar import ScalarModel

from torchvq import verify_replicas


class Lit(pl.LightningModule):
    def __init__(self, validate: str, model: str) -> None:
        super().__init__()
        # Built before the process group exists, with a different seed on each rank.
        self.model = Model() if model == "codebooks" else ScalarModel()
        self.validate = validate
        self.validated = 0
        self.sent_in_validation: set[tuple[int, ...]] = set()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.model(batch[0])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        torch.ops.torchvq.reset_traffic()
        self.log("validation_loss", self.model(batch[0]), sync_dist=True)
        self.validated += 1
        self.sent_in_validation.add(torch.ops.torchvq.traffic())

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        if self.validate == "rank0" and self.global_rank == 0:
            # Also before the first step, when nothing is initialised.
            self.eval()
            torch.ops.torchvq.reset_traffic()
            with torch.no_grad():
                self.model(batch[0])
            self.sent_in_validation.add(torch.ops.torchvq.traffic())
            self.validated += 1
            self.train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)

    def train_dataloader(self) -> DataLoader[Any]:
        tokens = torch.cat([data(step, self.global_rank) for step in range(6)])
        return DataLoader(TensorDataset(tokens), batch_size=4 + self.global_rank)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(data(100, 0)), batch_size=2)


def main() -> None:
    folder, validate, model = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    module = Lit(validate, model)
    inputs = Inputs(module.model) if model == "codebooks" else None
    both = validate == "both"
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=12,
        num_sanity_val_steps=2 if both else 0,
        val_check_interval=2 if both else None,
        limit_val_batches=2 if both else 0,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module)
    assert verify_replicas(module) == []
    result = {
        "state": module.model.state_dict() if inputs is None else state_of(module.model),
        "inputs": module.model.depths if inputs is None else inputs.given,
        "validated": module.validated,
        "sent": module.sent_in_validation,
        "steps": trainer.global_step,
    }
    torch.save(result, f"{folder}/{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
    # Lightning leaves the group, and an interpreter that ends beside Gloo's threads may abort ("When something goes
    # wrong" in docs/distributed.md).
    os._exit(0)
