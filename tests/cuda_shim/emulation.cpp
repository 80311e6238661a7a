#include "emulation.h"

#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "ops/cuda/kernel.h"

namespace torchvq {

namespace detail::emulated {
namespace {

std::vector<void (*)(torch::Library&)>& emulated_kernels() {
  static std::vector<void (*)(torch::Library&)> kernels;
  return kernels;
}

}  // namespace

EmulatedKernel::EmulatedKernel(void (*add)(torch::Library&)) { emulated_kernels().push_back(add); }

int fault_of_test() { return cuda_shim::settings().fault; }

}  // namespace detail::emulated

namespace cuda_shim {
namespace {

/// Suppresses torch's warning for each replaced kernel; replacing kernels is the purpose here.
class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::unique_ptr<torch::Library> replaced;
int users = 0;

}  // namespace

Emulation::Emulation() {
  if (users++ > 0) return;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  replaced = std::make_unique<torch::Library>(torch::Library::IMPL, "torchvq",
                                              c10::DispatchKey::CPU, __FILE__, __LINE__);
  for (const auto add : detail::emulated::emulated_kernels()) add(*replaced);
}

Emulation::~Emulation() {
  if (--users == 0) replaced.reset();
}

}  // namespace cuda_shim
}  // namespace torchvq

void torchvq_emulate_cuda(int on) {
  static std::unique_ptr<torchvq::cuda_shim::Emulation> emulation;
  if (!on) {
    emulation.reset();
  } else if (!emulation) {
    emulation = std::make_unique<torchvq::cuda_shim::Emulation>();
  }
}

void torchvq_set_emulation(int accumulation, int order, int capability, int shared) {
  using namespace torchvq::cuda_shim;
  settings().accumulation = static_cast<Accumulation>(accumulation);
  settings().order = static_cast<Order>(order);
  settings().capability = capability;
  settings().shared = shared;
}

long long torchvq_emulated_launches() { return torchvq::cuda_shim::launches(); }
