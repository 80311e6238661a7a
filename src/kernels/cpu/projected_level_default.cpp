#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/projected_level-inl.h"
