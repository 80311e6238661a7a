#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/code_rows-inl.h"
