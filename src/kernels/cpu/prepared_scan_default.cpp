#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/prepared_scan-inl.h"
