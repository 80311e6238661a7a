#include <torchvq/register.h>
#include <torchvq/version.h>

#include <string>

#include <torch/library.h>
#include <torch/version.h>

void torchvq_register_operators() {}

namespace {

std::string version() { return TORCHVQ_VERSION; }

std::string torch_version() { return TORCH_VERSION; }

}  // namespace

// The versions that the library was built as and against; the Python package
// compares them with its own.
TORCH_LIBRARY(torchvq, m) {
  m.def("version() -> str", version);
  m.def("torch_version() -> str", torch_version);
}
