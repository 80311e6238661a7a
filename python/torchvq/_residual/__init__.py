"""Residual stacks: input, loop over levels, output, groups."""
