#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/score_rows-inl.h"
