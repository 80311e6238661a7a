// Keeps libtorchvq in a program that uses it through operator names alone.
//
// Operators register themselves when the library is loaded. A linker told `--as-needed` (the
// default of some distributions) drops a library whose functions are not called, and the operators
// would be missing at run time. The CMake target torchvq::torchvq therefore tells the linker to
// keep it. A program linked by other means calls `torchvq_register_operators` once, from anywhere.
#pragma once

#include <torchvq/export.h>

extern "C" {

/// Does nothing but be referenced; calling it any number of times is harmless.
TORCHVQ_API void torchvq_register_operators();
}
