"""Projections and networks of users compute in the dtype of their parameters."""

import torch
from torch import Tensor, nn

from torchvq import LFQ, ResidualLFQ
from torchvq._base.projection import decoding_dtype, in_dtype_of


class Scaled(nn.Module):
    """A network with a constant that is neither parameter nor buffer, and so keeps its dtype in casts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones((), dtype=torch.float64)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale.to(x.dtype)


def test_a_constant_of_a_network_does_not_choose_its_dtype() -> None:
    network = Scaled().bfloat16()
    assert in_dtype_of(network, torch.zeros(2, 4)).dtype == torch.bfloat16
    assert decoding_dtype(network) == torch.float32


def test_a_rotation_in_float64_decodes_in_float64() -> None:
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    lfq = LFQ(dim=4, codebook_size=16, orthogonal_rotation=True).double().eval()
    quantized, indices, _ = lfq(x)
    torch.testing.assert_close(lfq.indices_to_codes(indices), quantized)
    stack = ResidualLFQ(dim=4, codebook_size=16, num_quantizers=2, orthogonal_rotation=True)
    quantized, indices, _ = stack.double().eval()(x)
    torch.testing.assert_close(stack.get_output_from_indices(indices), quantized)
