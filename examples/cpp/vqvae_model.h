// The autoencoder of both examples: convolutions down to a quarter of the size,
// torchvq::VectorQuantize, convolutions up again. examples/python/demo/model.py builds the same one
// in Python, with the same names for all its parameters, so that one safetensors file serves both.
#pragma once

#include <torch/torch.h>
#include <torchvq/modules/vector_quantize.h>

#include <cstdint>

struct AutoencoderOptions {
  int64_t channels = 1;
  int64_t codebook_size = 512;
  int64_t dim = 32;     // features of a code
  int64_t width = 64;   // channels of the convolutions
  int64_t hidden = 32;  // and inside the residual blocks
};

/// x + a small network of x.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t width, int64_t hidden)
      : block(torch::nn::ReLU(),
              torch::nn::Conv2d(torch::nn::Conv2dOptions(width, hidden, 3).padding(1)),
              torch::nn::ReLU(), torch::nn::Conv2d(hidden, width, 1)) {
    register_module("block", block);
  }

  torch::Tensor forward(const torch::Tensor& x) { return x + block->forward(x); }

  torch::nn::Sequential block;
};
TORCH_MODULE(ResidualBlock);

inline torch::nn::Sequential make_encoder(const AutoencoderOptions& options) {
  using torch::nn::Conv2d;
  using torch::nn::Conv2dOptions;
  const auto halve = [](int64_t from, int64_t to) {
    return Conv2dOptions(from, to, 4).stride(2).padding(1);
  };
  const int64_t width = options.width;
  return torch::nn::Sequential(
      Conv2d(halve(options.channels, width / 2)), torch::nn::ReLU(),
      Conv2d(halve(width / 2, width)), ResidualBlock(width, options.hidden),
      ResidualBlock(width, options.hidden), torch::nn::ReLU(), Conv2d(width, options.dim, 1));
}

inline torch::nn::Sequential make_decoder(const AutoencoderOptions& options) {
  using torch::nn::ConvTranspose2d;
  using torch::nn::ConvTranspose2dOptions;
  const auto twice = [](int64_t from, int64_t to) {
    return ConvTranspose2dOptions(from, to, 4).stride(2).padding(1);
  };
  const int64_t width = options.width;
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(options.dim, width, 3).padding(1)),
      ResidualBlock(width, options.hidden), ResidualBlock(width, options.hidden), torch::nn::ReLU(),
      ConvTranspose2d(twice(width, width / 2)), torch::nn::ReLU(),
      ConvTranspose2d(twice(width / 2, options.channels)));
}

inline torchvq::VectorQuantize make_quantizer(const AutoencoderOptions& options) {
  return torchvq::VectorQuantize(torchvq::VectorQuantizeOptions(options.dim)
                                     .codebook_size(options.codebook_size)
                                     .accept_image_fmap(true)
                                     .kmeans_init(true)           // start where the data is
                                     .threshold_ema_dead_code(2)  // bring back codes out of use
                                     .commitment_weight(0.25));
}

struct Reconstruction {
  torch::Tensor pictures;  // (B, C, H, W)
  torch::Tensor tokens;    // (B, H / 4, W / 4), int64
  torch::Tensor loss;      // scalar: the quantizer's
};

/// A VQ-VAE (van den Oord et al. 2017, arXiv:1711.00937).
struct VQAutoencoderImpl : torch::nn::Module {
  explicit VQAutoencoderImpl(const AutoencoderOptions& options)
      : encoder(register_module("encoder", make_encoder(options))),
        quantizer(register_module("quantizer", make_quantizer(options))),
        decoder(register_module("decoder", make_decoder(options))) {}

  Reconstruction forward(const torch::Tensor& pictures) {
    const auto output = quantizer(encoder->forward(pictures));
    return {decoder->forward(output.quantized), output.indices, output.loss};
  }

  torch::nn::Sequential encoder;
  torchvq::VectorQuantize quantizer;
  torch::nn::Sequential decoder;
};
TORCH_MODULE(VQAutoencoder);
