// Decodes the tokens of EnCodec, Mimi, DAC and others to the latents that their decoders take, without
// Python and without the packages.
//
//   python -m torchvq.convert MODEL_OR_CHECKPOINT -o codec.safetensors
//   decode_codec codec.safetensors tokens.npy latents.npy
//
// Tokens (..., columns), any integer dtype, the levels of a vector last; latents (..., dim), float32.
#include <torchvq/io/array_source.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/projected_codec.h>

#include <cstdio>
#include <iostream>
#include <string>

namespace {

void decode(const std::string& file, const std::string& input, const std::string& output) {
  const auto codec = torchvq::io::load_projected_codec(file);
  const torchvq::io::IndexSource tokens(input);
  auto shape = tokens.array().shape();
  TORCH_CHECK_VALUE(shape.back() == codec.columns(), input, ": expected ", codec.columns(),
                    " tokens of a vector on the last axis, but got ", shape.back());
  const auto latents = torchvq::fit::decode_projected(tokens.read(0, tokens.rows()), codec);
  shape.back() = codec.dim;
  torchvq::io::save_npy(output, latents.view(shape));
  std::printf("decoded %lld vectors of %lld features from %lld tokens each\n",
              static_cast<long long>(tokens.rows()), static_cast<long long>(codec.dim),
              static_cast<long long>(codec.columns()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("usage: decode_codec codec.safetensors tokens.npy latents.npy\n", stderr);
    return 2;
  }
  try {
    decode(arguments[1], arguments[2], arguments[3]);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "decode_codec: " << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << "decode_codec: " << error.what() << '\n';
  }
  return 1;
}
