#define TORCHVQ_LEVEL_NAME(name) name##_avx512
#include "kernels/cpu/nearest_code_exact-inl.h"
