#define TORCHVQ_LEVEL_NAME(name) name##_avx2
#include "kernels/cpu/latent_quantize-inl.h"
