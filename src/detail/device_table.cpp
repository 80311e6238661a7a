#include "detail/device_table.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

namespace torchvq::detail {
namespace {

using Key = std::tuple<std::string, at::ScalarType, at::ScalarType, std::string>;

template <typename T>
at::Tensor table_of(at::ArrayRef<T> values, const at::TensorOptions& options) {
  if (options.device().is_cpu()) return at::tensor(values, options);
  // Never destroyed: at exit the device may be shut down before static objects are destroyed.
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<Key, at::Tensor>;
  const Key key{
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)),
      c10::CppTypeToScalarType<T>::value, c10::typeMetaToScalarType(options.dtype()),
      options.device().str()};
  const std::scoped_lock lock(mutex);
  auto& table = known[key];
  if (!table.defined()) {
    // An inference tensor could not be used by later calls outside inference mode.
    const c10::InferenceMode guard(false);
    table = at::tensor(values, options.device(at::kCPU)).to(options.device());
  }
  return table;
}

}  // namespace

at::Tensor device_table(const std::vector<double>& values, const at::TensorOptions& options) {
  return table_of(at::ArrayRef<double>(values), options);
}

at::Tensor device_table(const std::vector<float>& values, const at::TensorOptions& options) {
  return table_of(at::ArrayRef<float>(values), options);
}

at::Tensor device_table(at::IntArrayRef values, const at::TensorOptions& options) {
  return table_of(values, options);
}

}  // namespace torchvq::detail
