"""Quantizers without a codebook: their operators, and the forwards that a single quantizer and a stack share."""
