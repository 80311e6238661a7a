// Calls operators by name, as a scripted or exported program does: checks that the linker has kept
// the library.
#include <cstdio>

#include <ATen/core/dispatch/Dispatcher.h>

int main() {
  for (const char* name : {"torchvq::version", "torchvq::lookup_codes"}) {
    if (!c10::Dispatcher::singleton().findSchema({name, ""})) {
      std::printf("knows_names_only: the linker dropped libtorchvq, %s is not registered\n", name);
      return 1;
    }
  }
  std::puts("knows_names_only: the operators are registered");
}
