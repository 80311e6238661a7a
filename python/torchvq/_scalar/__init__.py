"""Quantizers without a codebook: their operators, and the steps that one of them and a stack share."""
