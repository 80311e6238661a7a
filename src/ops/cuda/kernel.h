// Common start of all CUDA operators: makes the device of the tensors current and provides torch's
// current stream. CUDA headers are included only in src/kernels/cuda.
//
// With TORCHVQ_CUDA_SHIM, the same sources are compiled for the emulation
// (tests/cuda_shim), on CPU tensors.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include "kernels/cuda/namespace.h"
#include "kernels/cuda/support.h"

namespace torchvq::detail::TORCHVQ_CUDA_NAMESPACE {

/// Kernels launched during its lifetime run on the device of `x`, ordered with torch's own.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& x) : guard_(x.device()) {
#if !defined(TORCHVQ_CUDA_SHIM)
    const c10::impl::VirtualGuardImpl device(x.device().type());
    queue_.device = x.get_device();
    queue_.stream = device.getStream(x.device()).native_handle();
#endif
  }

  const kernels::TORCHVQ_CUDA_NAMESPACE::Queue& queue() const { return queue_; }

 private:
  c10::DeviceGuard guard_;
  kernels::TORCHVQ_CUDA_NAMESPACE::Queue queue_;
};

/// Throws if a launch has returned an error.
inline void check_launch(const char* op, kernels::TORCHVQ_CUDA_NAMESPACE::Error error) {
  TORCH_CHECK(error == nullptr, op, ": CUDA reports: ", error ? error : "");
}

inline std::string boxable(std::string_view text) { return std::string(text); }
/// For arguments that outlive the call.
template <typename T>
const T& boxable(const T& value) {
  return value;  // NOLINT(bugprone-return-const-ref-from-parameter)
}

/// The any-device kernel of an operator, as fallback for arguments that the CUDA kernel does not
/// support. Arguments are in the order of the schema.
template <typename Result, typename... Arguments>
Result any_device_kernel(const char* op, const Arguments&... arguments) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, "");
  torch::jit::Stack stack;
  torch::jit::push(stack, boxable(arguments)...);
  handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
  if constexpr (std::is_void_v<Result>) {
    return;
  } else if constexpr (requires { typename std::tuple_size<Result>::type; }) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return Result(std::move(stack[i]).template to<std::tuple_element_t<i, Result>>()...);
    }(std::make_index_sequence<std::tuple_size_v<Result>>());
  } else {
    return std::move(stack[0]).to<Result>();
  }
}

/// The device of the first tensor argument.
template <typename... Rest>
int first_device(const at::Tensor& first, const Rest&... /*rest*/) {
  return first.is_cpu() ? 0 : first.get_device();
}
template <typename... Rest>
int first_device(at::TensorList first, const Rest&... /*rest*/) {
  return first.empty() ? 0 : first_device(first[0]);
}
template <typename First, typename... Rest>
  requires(!std::is_convertible_v<First, at::Tensor> &&
           !std::is_convertible_v<First, at::TensorList>)
int first_device(const First& /*first*/, const Rest&... rest) {
  return first_device(rest...);
}

/// A kernel that falls back to the any-device kernel on devices that cannot run it.
template <typename Op, auto function>
struct Guarded;
template <typename Op, typename Result, typename... Arguments, Result (*function)(Arguments...)>
struct Guarded<Op, function> {
  static Result call(Arguments... arguments) {
    if (kernels::TORCHVQ_CUDA_NAMESPACE::supports_device(first_device(arguments...)))
      return function(arguments...);
    return any_device_kernel<Result>(Op::name, arguments...);
  }
};

/// A deliberate fault that a test of the emulation has requested; always 0 (none) on a GPU.
#if defined(TORCHVQ_CUDA_SHIM)
int fault_of_test();
#else
constexpr int fault_of_test() { return 0; }
#endif

#if defined(TORCHVQ_CUDA_SHIM)
/// Adds a kernel that replaces the CPU kernel in the emulation.
struct EmulatedKernel {
  explicit EmulatedKernel(void (*add)(torch::Library&));
};
#endif

}  // namespace torchvq::detail::TORCHVQ_CUDA_NAMESPACE

/// Registers `function` as the CUDA kernel of torchvq::`op`; once per source, at its
/// end, in namespace torchvq.
#define TORCHVQ_CUDA_KERNEL(op, function)         \
  namespace {                                     \
  struct CudaOperator_##op {                      \
    static constexpr auto name = "torchvq::" #op; \
  };                                              \
  }                                               \
  TORCHVQ_REGISTER_CUDA_KERNEL(                   \
      op, (&detail::TORCHVQ_CUDA_NAMESPACE::Guarded<CudaOperator_##op, function>::call))
#if defined(TORCHVQ_CUDA_SHIM)
#define TORCHVQ_REGISTER_CUDA_KERNEL(op, ...)                           \
  static const torchvq::detail::emulated::EmulatedKernel emulated_##op( \
      +[](torch::Library& library) { library.impl(#op, __VA_ARGS__); });
#else
#define TORCHVQ_REGISTER_CUDA_KERNEL(op, ...) \
  TORCH_LIBRARY_IMPL(torchvq, CUDA, library) { library.impl(#op, __VA_ARGS__); }
#endif
