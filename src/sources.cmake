# Every translation unit of libtorchvq by name (no globs: a forgotten file should fail the review, not hide).
set(TORCHVQ_SOURCES
  version.cpp
  functional/layout.cpp
  ops/lookup_codes.cpp
  ops/unit_vectors.cpp
  ops/any/lookup_codes.cpp
  ops/any/unit_vectors.cpp
  ops/autograd/lookup_codes.cpp
  ops/autograd/unit_vectors.cpp
  ops/cpu/lookup_codes.cpp
  ops/cpu/unit_vectors.cpp
  ops/meta/lookup_codes.cpp
  ops/meta/unit_vectors.cpp
)
