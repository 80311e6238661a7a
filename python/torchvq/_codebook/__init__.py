"""The parts of a forward of VectorQuantize, and of the levels of stacks: ranks, search, losses, learning."""
