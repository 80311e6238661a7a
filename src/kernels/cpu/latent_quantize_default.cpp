#define TORCHVQ_LEVEL_NAME(name) name##_default
#include "kernels/cpu/latent_quantize-inl.h"
