#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/residual_beam_scan-inl.h"
