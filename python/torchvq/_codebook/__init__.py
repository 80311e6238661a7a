"""What a forward of VectorQuantize is made of, and the levels of stacks with it: ranks, search, losses, learning."""
