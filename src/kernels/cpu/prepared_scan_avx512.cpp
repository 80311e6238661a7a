#define TORCHVQ_LEVEL_NAME(name) name##_avx512
#include "kernels/cpu/prepared_scan-inl.h"
