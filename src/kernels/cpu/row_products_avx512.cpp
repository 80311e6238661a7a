#define TORCHVQ_LEVEL_NAME(name) name##_avx512
#include "kernels/cpu/row_products-inl.h"
