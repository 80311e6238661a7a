#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/row_products-inl.h"
