"""From ``vector_quantize_pytorch`` to torchvq: ``python -m torchvq.migrate --help``."""
