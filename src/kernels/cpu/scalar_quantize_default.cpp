#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/scalar_quantize-inl.h"
