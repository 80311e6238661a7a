#define TORCHVQ_LEVEL_NAME(name) name##_avx512
#include "kernels/cpu/resample_rows-inl.h"
