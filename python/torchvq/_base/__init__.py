"""The base of all modules: buffers, options, layouts, random numbers, and access to private names of torch."""
