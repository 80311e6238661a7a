import copy
import os

import lightning
import safetensors.torch
import torch
from torch import nn

import torchvq

torch.distributed.init_process_group(
    "gloo", init_method=f"file://{os.path.abspath('group')}", rank=0, world_size=1
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 8)
        self.quantizer = torchvq.VectorQuantize(8, 16)

    def forward(self, x):
        return self.quantizer(self.encoder(x))


model = Model()

# %% FSDP2
model = Model()

# %% Lightning


def Trainer(**options):
    """Lightning's Trainer on the CPU, in place of two GPUs."""
    return lightning.Trainer(**{**options, "accelerator": "cpu", "devices": 1}, logger=False)


# %% Accelerate


class accelerator:
    """Stands in for an Accelerator, whose package this environment does not have."""

    @staticmethod
    def prepare(*parts):
        return parts


model = Model()
optimizer, loader = torch.optim.SGD(model.parameters(), 0.1), [torch.randn(2, 4, 8)]

# %% Activation checkpointing
quantizer, encoder = model.quantizer, model.encoder
x = torch.randn(2, 4, 8, requires_grad=True)

# %% Accumulation of gradients
batch = torch.randn(8, 4, 8)


def objective(quantized):
    return quantized.square().mean()


# %% torch.func
x = torch.randn(3, 4, 8)
parameters = dict(model.quantizer.named_parameters())
quantizer = torchvq.VectorQuantize(8, 16, codebook_dim=4)
parameters = dict(quantizer.named_parameters())
buffers = {name: buffer.clone() for name, buffer in quantizer.named_buffers()}
quantizers = [torchvq.VectorQuantize(8, 16, codebook_dim=4) for _ in range(3)]
base = copy.deepcopy(quantizers[0])

# %% The meta device
torch.save(model.state_dict(), "model.pt")
