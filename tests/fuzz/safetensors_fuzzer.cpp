// Fuzzer of the safetensors reader: header, metadata, and every tensor.
#include <torchvq/io/safetensors.h>

#include "read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return torchvq::fuzz::read_file(data, size, [](const std::string& path) {
    const torchvq::io::SafetensorsFile file(path);
    for (const auto& [name, entry] : file.entries()) torchvq::fuzz::touch(file.tensor(name));
  });
}
