// Fuzzer of files that `torchvq.convert` writes: codebooks with linear maps, level by level.
#include <torchvq/io/projected_codec.h>
#include <torchvq/io/safetensors.h>

#include "read_file.h"

namespace {

void touch(const torchvq::fit::Projection& map) {
  for (const auto& tensor : {map.weight, map.bias})
    if (tensor.defined()) torchvq::fuzz::touch(tensor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using torchvq::fuzz::read_file;
  read_file(data, size, [](const std::string& path) {
    (void)torchvq::io::holds_projected_codec(torchvq::io::SafetensorsFile(path));
  });
  return read_file(data, size, [](const std::string& path) {
    for (const auto& stack : torchvq::io::load_projected_codec(path).stacks) {
      touch(stack.in);
      touch(stack.out);
      for (const auto& level : stack.levels) {
        touch(level.in);
        touch(level.out);
        torchvq::fuzz::touch(level.codebook);
      }
    }
  });
}
