// The Python dictionary literal in a .npy header: three keys in any order, nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::io {

struct NpyDictionary {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// `path` names the file in messages. Throws c10::ValueError for anything but the three keys, each
/// once, and c10::TypeError for a structured dtype.
NpyDictionary parse_npy_dictionary(const std::string& path, const std::string& text);

}  // namespace torchvq::io
