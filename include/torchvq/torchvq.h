// Everything a program needs to quantize: modules, their options, operators, k-means, files.
// Including less compiles faster; see the folders.
#pragma once

#include <torchvq/distributed/ranks.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/kmeans.h>
#include <torchvq/modules/binary_mapper.h>
#include <torchvq/modules/fsp.h>
#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/latent_quantize.h>
#include <torchvq/modules/residual_vq.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>
#include <torchvq/ops/binary_codes.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/latent_quantize.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_decode.h>
#include <torchvq/ops/residual_encode.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/scalar_perturb.h>
#include <torchvq/ops/scalar_quantize.h>
#include <torchvq/ops/token_moments.h>
#include <torchvq/options/binary_mapper.h>
#include <torchvq/options/fsp.h>
#include <torchvq/options/latent_quantize.h>
#include <torchvq/options/residual_vq.h>
#include <torchvq/options/vector_quantize.h>
#include <torchvq/version.h>
