#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/resample_rows-inl.h"
