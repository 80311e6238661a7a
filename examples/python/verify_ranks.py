"""Shows that ranks share one entropy loss: `torchrun --nproc-per-node 2 examples/python/verify_ranks.py`.

Each rank has tokens of its own, of another number and another distribution. The entropy that every rank reports, and
the gradient that DistributedDataParallel gives the encoder, are those of one process that has all the tokens.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # a first import while there is a group would keep the group alive
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torchvq

FEATURES, BITS = 16, 10


def tokens_of(rank: int) -> Tensor:
    """(1, N, FEATURES): ragged, and each rank's around a centre of its own."""
    generator = torch.Generator().manual_seed(rank)
    centre = 2 * torch.randn(FEATURES, generator=generator)
    return centre + torch.randn(1, 200 + 100 * rank, FEATURES, generator=generator)


class Model(nn.Module):
    """An encoder and the entropies of its tokens."""

    def __init__(self, sync: bool | None = None) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, BITS)
        self.lfq = torchvq.LFQ(codebook_size=2**BITS, spherical=True, sync_codebook=sync)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (_, _, loss), terms = self.lfq(
            self.encoder(x), inv_temperature=4.0, return_loss_breakdown=True
        )
        return loss, terms.batch_entropy


def step(model: nn.Module, x: Tensor) -> tuple[float, Tensor]:
    """The batch entropy in bits, and the gradient of the encoder."""
    loss, entropy = model(x)
    loss.backward()
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return entropy.item() / torch.tensor(2.0).log().item(), torch.cat(gradients)


def compare() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    together = DistributedDataParallel(Model())
    alone = Model(sync=False)
    alone.load_state_dict(together.module.state_dict())

    own, _ = step(alone, tokens_of(rank))
    alone.zero_grad()
    shared, averaged = step(together, tokens_of(rank))
    whole, wanted = step(alone, torch.cat([tokens_of(other) for other in range(ranks)], 1))

    print(
        f"rank {rank}: {tokens_of(rank).shape[1]} tokens, entropy of its own {own:.4f} bits, reported {shared:.4f}"
    )
    differing = torchvq.verify_replicas(together)
    if rank == 0:
        print(f"one process with all tokens: {whole:.4f} bits")
        error = (averaged - wanted).abs().max() / wanted.abs().max()
        print(f"gradient under DistributedDataParallel: {error:.1e} from that of one process")
        print(
            "replicas differ in " + ", ".join(differing) if differing else "replicas are identical"
        )
        assert error < 1e-6
        assert abs(shared - whole) < 1e-5
        assert not differing


def main() -> None:
    if "RANK" not in os.environ:
        sys.exit(
            "verify_ranks: start it by torchrun --nproc-per-node 2 examples/python/verify_ranks.py"
        )
    dist.init_process_group("gloo")
    compare()
    # Ends Gloo's threads, because DistributedDataParallel, which refers to the group, is gone.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
