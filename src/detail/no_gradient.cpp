#include "detail/no_gradient.h"

#include <vector>

namespace torchvq::detail {
namespace {

std::vector<at::Tensor> written_arguments(const c10::OperatorHandle& op,
                                          const torch::jit::Stack& stack) {
  std::vector<at::Tensor> written;
  const auto& arguments = op.schema().arguments();
  const auto first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const auto& value = stack[first + i];
    if (alias == nullptr || !alias->isWrite()) continue;
    if (value.isTensor()) written.push_back(value.toTensor());
    if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      written.insert(written.end(), list.begin(), list.end());
    }
  }
  return written;
}

}  // namespace

void run_without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack) {
  const auto written = written_arguments(op, *stack);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const auto& tensor : written) mark_written(tensor);
}

void mark_written(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace torchvq::detail
