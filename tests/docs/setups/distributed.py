import os

import torch

import torchvq

torch.distributed.init_process_group(
    "gloo", init_method=f"file://{os.path.abspath('group')}", rank=0, world_size=1
)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torchvq.VectorQuantize(4, 8))
