"""What every module stands on: buffers, options, layouts, random numbers, and torch where it has no public name."""
