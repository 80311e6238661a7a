# The minor versions of torch that torchvq compiles against and is tested with (docs/versions.md). A test compares
# pyproject.toml, the Python package and the documents with this line.
set(TORCHVQ_TORCH_VERSIONS 2.11 2.12 2.13 2.14 2.15)
