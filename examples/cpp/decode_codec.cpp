// Decodes the tokens of EnCodec, Mimi, DAC and others to the latents that their decoders take, without
// Python and without the packages.
//
//   python -m torchvq.convert MODEL_OR_CHECKPOINT -o codec.safetensors
//   decode_codec codec.safetensors tokens.npy latents.npy
//
// Tokens as `torchvq encode` writes them, of any integer dtype: (..., columns), the levels of a vector last, and (...)
// if the codec has a single codebook; latents (..., dim), float32.
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
  const auto columns = codec.columns();
  if (columns > 1) {
    TORCH_CHECK_VALUE(shape.size() >= 2 && shape.back() == columns, input,
                      ": expected tokens of shape (..., ", columns, "), but got shape ",
                      c10::IntArrayRef(shape));
    shape.pop_back();
  }
  shape.push_back(codec.dim);
  const auto codes = tokens.read(0, tokens.rows()).view({-1, columns});
  torchvq::io::save_npy(output, torchvq::fit::decode_projected(codes, codec).view(shape));
  std::printf("decoded %lld vectors of %lld features from %lld tokens each\n",
              static_cast<long long>(codes.size(0)), static_cast<long long>(codec.dim),
              static_cast<long long>(columns));
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
