// Fuzzer of files that `torchvq fit` writes: one codebook, a stack of them, scalar levels or signs.
#include <torchvq/io/codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/io/scalar_codec.h>

#include "read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using torchvq::fuzz::read_file;
  using torchvq::fuzz::touch;
  read_file(data, size, [](const std::string& path) {
    const torchvq::io::SafetensorsFile file(path);
    (void)torchvq::io::holds_codec(file);
    (void)torchvq::io::holds_scalar_codec(file);
  });
  read_file(data, size,
            [](const std::string& path) { touch(torchvq::io::load_codec(path).codebook); });
  read_file(data, size, [](const std::string& path) {
    for (const auto& group : torchvq::io::load_codec_stack(path).groups)
      for (const auto& codec : group) touch(codec.codebook);
  });
  return read_file(data, size, [](const std::string& path) {
    const auto codec = torchvq::io::load_scalar_codec(path);
    for (const auto& tensor : {codec.in_weight, codec.in_bias, codec.out_weight, codec.out_bias})
      if (tensor.defined()) touch(tensor);
  });
}
