// Contexts that give way to each other. On x86-64 a switch is ten instructions; elsewhere it is
// ucontext, which asks the kernel each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace torchvq::cuda_shim {

struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t state;
#endif
  // What AddressSanitizer wants to know; null is the stack of the thread itself.
  const void* bottom = nullptr;
  size_t size = 0;
};

void switch_context(Context& from, Context& to);

class Fiber {
 public:
  /// The next switch to `context` calls `entry`, which does not return.
  void start(void (*entry)());

  Context context;

 private:
  static constexpr size_t kStackBytes = 128 * 1024;
  std::unique_ptr<unsigned char[]> stack_;
};

}  // namespace torchvq::cuda_shim
