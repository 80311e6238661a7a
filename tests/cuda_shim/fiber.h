// Cooperative contexts. On x86-64 a switch takes ten instructions; elsewhere it uses ucontext, with
// a system call per switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace torchvq::cuda_shim {

struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
  // The stack, for AddressSanitizer; null is the stack of the thread itself.
  const void* bottom = nullptr;
  size_t size = 0;
};

void switch_context(Context& from, Context& to);

/// The last switch of a fiber: AddressSanitizer frees what it keeps for it, which is megabytes.
void leave_context(Context& from, Context& to);

class Fiber {
 public:
  /// The next switch to `context` calls `entry`, which does not return.
  void start(void (*entry)());

  Context context;

 private:
  static constexpr size_t kStackBytes = size_t{128} * 1024;
  std::unique_ptr<unsigned char[]> stack_;
};

}  // namespace torchvq::cuda_shim
