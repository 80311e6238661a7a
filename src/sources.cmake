# Every translation unit of libtorchvq by name (no globs: a forgotten file should fail the review, not hide).
set(TORCHVQ_SOURCES
  version.cpp
  functional/layout.cpp
  ops/lookup_codes.cpp
  ops/nearest_code.cpp
  ops/any/lookup_codes.cpp
  ops/any/nearest_code.cpp
  ops/autograd/lookup_codes.cpp
  ops/autograd/nearest_code.cpp
  ops/cpu/lookup_codes.cpp
  ops/meta/lookup_codes.cpp
  ops/meta/nearest_code.cpp
)
