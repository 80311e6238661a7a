#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/nearest_code_exact-inl.h"
