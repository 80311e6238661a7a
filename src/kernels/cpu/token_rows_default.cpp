#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/token_rows-inl.h"
