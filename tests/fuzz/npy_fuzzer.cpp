// Fuzzer of the .npy readers: the whole array at once, and blocks of rows.
#include <torchvq/io/array_source.h>
#include <torchvq/io/npy.h>

#include <algorithm>

#include "read_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using torchvq::fuzz::read_file;
  using torchvq::fuzz::touch;
  read_file(data, size, [](const std::string& path) { touch(torchvq::io::load_npy(path)); });
  return read_file(data, size, [](const std::string& path) {
    const torchvq::io::ArraySource source(path);
    touch(source.read(0, std::min<int64_t>(source.rows(), 3)));
    touch(source.read(0, source.rows()));
  });
}
