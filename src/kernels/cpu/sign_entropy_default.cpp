#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/sign_entropy-inl.h"
