#define TORCHVQ_LEVEL_NAME(name) name##_avx512
#include "kernels/cpu/residual_beam_scan-inl.h"
