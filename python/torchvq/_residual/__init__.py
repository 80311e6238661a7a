"""Stacks of levels: the way in, the loop, the way out, groups."""
