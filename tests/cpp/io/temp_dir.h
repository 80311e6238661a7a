// A directory that is removed after the test, and files as plain bytes.
#pragma once

#include <ftw.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace torchvq::testing {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "torchvq_test_XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~TempDir() {
    // CUDA builds of torch 2.11 export their own std::filesystem::remove_all, which crashes.
    const auto remove = [](const char* path, const struct stat*, int, FTW*) {
      return ::remove(path);
    };
    ::nftw(root_.c_str(), remove, 16, FTW_DEPTH | FTW_PHYS);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string operator/(const std::string& name) const { return (root_ / name).string(); }

  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(root_),
                                             std::filesystem::directory_iterator{}));
  }

 private:
  std::filesystem::path root_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace torchvq::testing
