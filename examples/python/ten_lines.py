"""Vector quantization in ten lines: vectors in, tokens out, and back."""

import torch

import torchvq

vectors = torch.randn(64, 256, 16)  # 64 sequences of 256 vectors
quantizer = torchvq.VectorQuantize(
    dim=16, codebook_size=128, kmeans_init=True, threshold_ema_dead_code=2
)

for _ in range(20):  # each training forward moves the codes towards the vectors
    quantized, tokens, loss = quantizer(vectors)

quantizer.eval()
quantized, tokens, _ = quantizer(vectors)
assert torch.equal(quantizer.get_output_from_indices(tokens), quantized)  # tokens are all one needs

error = (quantized - vectors).square().mean() / vectors.var()
print(f"tokens {tuple(tokens.shape)}, {tokens.unique().numel()} of 128 codes used")
print(f"relative error {error:.3f}")
