import torch
import torchvq
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo", init_method="file:///" + __import__("os").path.abspath("group"), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torchvq.Sequential(torchvq.VectorQuantize(4, 8)))
