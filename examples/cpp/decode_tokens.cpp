// Decodes tokens to pictures: the half of a VQ autoencoder that a player needs, without Python.
//
//   decode_tokens tokens.safetensors FOLDER
//
// The file holds `tokens` (B, h, w), int64, and the state of decoder and quantizer (`decoder.*`,
// `quantizer.*`), as examples/python/demo writes it. FOLDER receives picture_0000.pgm (or .ppm in
// colour) and so on, and decoded.safetensors with the values behind them: `codes` (B, D, h, w) and
// `pictures` (B, C, H, W).
#include <torch/torch.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/modules/vector_quantize.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "state.h"
#include "vqvae_model.h"

namespace {

/// The sizes of the model, which the shapes of its parameters tell.
AutoencoderOptions options_of(const torchvq::io::SafetensorsFile& file) {
  AutoencoderOptions options;
  options.codebook_size = file.entry("quantizer._codebook.embed").shape.at(1);
  options.dim = file.entry("quantizer._codebook.embed").shape.at(2);
  options.width = file.entry("decoder.0.weight").shape.at(0);
  options.hidden = file.entry("decoder.1.block.1.weight").shape.at(0);
  options.channels = file.entry("decoder.6.weight").shape.at(1);
  return options;
}

struct TokenDecoder : torch::nn::Module {
  explicit TokenDecoder(const AutoencoderOptions& options)
      : quantizer(register_module("quantizer", make_quantizer(options))),
        decoder(register_module("decoder", make_decoder(options))) {}

  torchvq::VectorQuantize quantizer;
  torch::nn::Sequential decoder;
};

/// A picture (C, H, W) in [0, 1], grey or colour, in the plainest of formats.
void write_netpbm(const std::filesystem::path& stem, const torch::Tensor& picture) {
  const bool colour = picture.size(0) == 3;
  const auto pixels = (picture * 255).round().to(torch::kUInt8).permute({1, 2, 0}).contiguous();
  const auto path = std::filesystem::path(stem).concat(colour ? ".ppm" : ".pgm");
  std::ofstream file(path, std::ios::binary);
  file << (colour ? "P6\n" : "P5\n") << picture.size(2) << ' ' << picture.size(1) << "\n255\n";
  file.write(reinterpret_cast<const char*>(pixels.data_ptr<uint8_t>()), pixels.numel());
  file.close();
  TORCH_CHECK(file, "cannot write ", path.string());
}

void decode(const std::string& input, const std::filesystem::path& folder) {
  const torch::NoGradGuard no_grad;
  const torchvq::io::SafetensorsFile file(input);
  TokenDecoder model(options_of(file));
  load_state(model, file);
  model.eval();
  const auto tokens = file.tensor("tokens");

  const auto start = std::chrono::steady_clock::now();
  const auto codes = model.quantizer->get_codes_from_indices(tokens);
  const auto quantized = model.quantizer->get_output_from_indices(tokens);
  const auto pictures = model.decoder->forward(quantized).clamp(0, 1);
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;

  std::filesystem::create_directories(folder);
  for (int64_t index = 0; index < pictures.size(0); ++index) {
    char name[32];
    std::snprintf(name, sizeof name, "picture_%04lld", static_cast<long long>(index));
    write_netpbm(folder / name, pictures[index]);
  }
  torchvq::io::save_safetensors((folder / "decoded.safetensors").string(),
                                {{"codes", codes}, {"pictures", pictures}});
  std::printf("decoded %lld pictures of %lld x %lld pixels from %lld tokens each, in %.1f ms\n",
              static_cast<long long>(pictures.size(0)), static_cast<long long>(pictures.size(3)),
              static_cast<long long>(pictures.size(2)), static_cast<long long>(tokens[0].numel()),
              time.count());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: decode_tokens tokens.safetensors FOLDER\n", stderr);
    return 2;
  }
  try {
    decode(arguments[1], arguments[2]);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "decode_tokens: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "decode_tokens: " << error.what() << '\n';
  }
  return 1;
}
