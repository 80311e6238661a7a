// Copies arrays from file to file through the library's readers and writers, for
// tests/python/test_io.py.
//
//   torchvq_run convert IN OUT [IN OUT ...]
//
// The format of IN is detected, that of OUT is given by its extension. A .npy array becomes the
// tensor "array" in .safetensors. Prints one line per pair: "ok", or "error: " and the message.
#include <torchvq/io/array_source.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/safetensors.h>

#include <iostream>
#include <map>
#include <string>

#include "run.h"

namespace torchvq::testing {
namespace {

using namespace torchvq::io;

struct Content {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

Content load(const std::string& path) {
  if (file_format(path) == FileFormat::kNpy) return {{{"array", load_npy(path)}}, {}};
  const SafetensorsFile file(path);
  Content content{{}, file.metadata()};
  for (const auto& [name, entry] : file.entries()) content.tensors[name] = file.tensor(name);
  return content;
}

void convert(const std::string& from, const std::string& to) {
  const auto content = load(from);
  if (to.ends_with(".npy")) {
    save_npy(to, content.tensors.at("array"));
  } else {
    save_safetensors(to, content.tensors, content.metadata);
  }
}

}  // namespace

void convert_files(const std::vector<std::string>& paths) {
  for (size_t index = 0; index + 1 < paths.size(); index += 2) {
    try {
      convert(paths[index], paths[index + 1]);
      std::cout << "ok\n";
    } catch (const c10::Error& error) {
      std::cout << "error: " << error.what_without_backtrace() << "\n";
    }
  }
}

}  // namespace torchvq::testing
