// Keeps libtorchvq linked to a program that calls its operators only by name.
//
// Operators register themselves when the library is loaded. A linker told `--as-needed` (the
// default of some distributions) drops a library whose functions are not called, and the operators
// would be missing at run time. The CMake target torchvq::torchvq therefore tells the linker to
// keep it. A program that is linked in another way calls `torchvq_register_operators` once,
// anywhere.
#pragma once

#include <torchvq/export.h>

extern "C" {

/// Does nothing; a call is a reference to the library. Repeated calls are harmless.
TORCHVQ_API void torchvq_register_operators();
}
