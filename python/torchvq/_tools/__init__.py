"""Functions of the package that are not modules: k-means, refinement, reports."""
