#include <torchvq/options/vqp_compat.h>

#include <cstdlib>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/library.h>

namespace torchvq {

bool vqp_compat_by_default() {
  // Safe, because the environment is not modified while modules are built.
  const char* given = std::getenv("TORCHVQ_COMPAT");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view text = given == nullptr ? "" : given;
  TORCH_CHECK_VALUE(text.empty() || text == "0" || text == "1",
                    "TORCHVQ_COMPAT: expected the environment variable to be 0 or 1, but got ",
                    text);
  return text == "1";
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("vqp_compat_by_default() -> bool", [] { return torchvq::vqp_compat_by_default(); });
}
