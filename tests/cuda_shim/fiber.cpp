#include "fiber.h"

#if defined(__x86_64__)
// Saves the callee-saved registers, switches the stack, and returns into the other context.
asm(R"(
.text
.hidden torchvq_cuda_shim_switch
.globl torchvq_cuda_shim_switch
.type torchvq_cuda_shim_switch, @function
torchvq_cuda_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size torchvq_cuda_shim_switch, .-torchvq_cuda_shim_switch
)");
extern "C" void torchvq_cuda_shim_switch(void** save, void** load);
#endif

namespace torchvq::cuda_shim {
namespace {

void change(Context& from, Context& to) {
#if defined(__x86_64__)
  torchvq_cuda_shim_switch(&from.stack_pointer, &to.stack_pointer);
#else
  swapcontext(&from.state, &to.state);
#endif
}

#if defined(__SANITIZE_ADDRESS__)
/// The context left by the switch; `arrived` records the stack of the thread that runs fibers.
Context* left = nullptr;

void arrived(void* fake) {
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake, &bottom, &size);
  if (left->bottom == nullptr) {
    left->bottom = bottom;
    left->size = size;
  }
}
#endif

void (*entry_of_next)() = nullptr;

void begin() {
#if defined(__SANITIZE_ADDRESS__)
  arrived(nullptr);
#endif
  entry_of_next();
}

}  // namespace

void switch_context(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  left = &from;
  __sanitizer_start_switch_fiber(&fake, to.bottom, to.size);
  change(from, to);
  arrived(fake);
#else
  change(from, to);
#endif
}

void leave_context(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__)
  left = &from;
  __sanitizer_start_switch_fiber(nullptr, to.bottom, to.size);
#endif
  change(from, to);
}

void Fiber::start(void (*entry)()) {
  if (!stack_) stack_ = std::make_unique_for_overwrite<unsigned char[]>(kStackBytes);
#if defined(__SANITIZE_ADDRESS__)
  // The functions that the last use of the stack did not return from have left red zones.
  ASAN_UNPOISON_MEMORY_REGION(stack_.get(), kStackBytes);
#endif
  entry_of_next = entry;
  context.bottom = stack_.get();
  context.size = kStackBytes;
#if defined(__x86_64__)
  // As after a call: the stack is aligned to 16 bytes except for the return address.
  unsigned char* top = stack_.get() + kStackBytes;
  top -= reinterpret_cast<uintptr_t>(top) % 16;
  auto* words = reinterpret_cast<void**>(top) - 2;
  words[0] = reinterpret_cast<void*>(begin);
  words[1] = nullptr;
  for (int i = 0; i < 6; ++i) *--words = nullptr;
  context.stack_pointer = static_cast<void*>(words);
#else
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack_.get();
  context.state.uc_stack.ss_size = kStackBytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, begin, 0);
#endif
}

}  // namespace torchvq::cuda_shim
