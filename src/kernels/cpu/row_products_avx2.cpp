#define TORCHVQ_LEVEL_NAME(name) name##_avx2
#include "kernels/cpu/row_products-inl.h"
