"""The scales of HierarchicalVQ."""
