"""What is called by name and is no module: k-means, refinement, reports."""
