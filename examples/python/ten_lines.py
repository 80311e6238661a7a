"""Vector quantization in ten lines: vectors in, tokens out, and back. README.md shows the same."""

import torch

import torchvq

waves = torch.sin(6.28 * (torch.rand(64, 256, 1) + torch.linspace(0, 1, 16)))
quantizer = torchvq.VectorQuantize(dim=16, codebook_size=128, kmeans_init=True)
for _ in range(20):
    quantizer(waves)  # in training, each call moves the codes towards the vectors
quantized, tokens, _ = quantizer.eval()(waves)
assert torch.equal(quantizer.get_output_from_indices(tokens), quantized)  # the tokens are enough
error = (quantized - waves).norm() / waves.norm()
print(f"{tokens.unique().numel()} codes used; 16 numbers become 7 bits, error {error:.0%}")
