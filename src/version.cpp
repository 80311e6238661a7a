#include <torchvq/version.h>

#include <string>

#include <torch/library.h>

namespace {

std::string version() { return TORCHVQ_VERSION; }

}  // namespace

// The version the library was built as; the Python package compares it with its own.
TORCH_LIBRARY(torchvq, m) {
  m.def("version() -> str", version);
}
