// safetensors files: named tensors behind a JSON header, shared with Python's `safetensors`
// package. Format: github.com/huggingface/safetensors, section "Format".
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/io/output_file.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torchvq::io {

/// The header's entry for one tensor. Offsets count bytes from the start of the file.
struct SafetensorsEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin;
  int64_t end;
};

class InputFile;

/// An open safetensors file. The constructor reads and checks only the header; tensor() reads a
/// tensor.
///
/// Dtypes       F64 F32 F16 BF16, F8_E4M3 F8_E5M2, I64 I32 I16 I8, U64 U32 U16 U8, BOOL.
/// Throws       IoError when the file cannot be read; c10::ValueError when it is truncated or its
///              header is damaged: too long, not JSON, duplicate names, offsets that overlap, leave
///              gaps or exceed the file.
/// Example      SafetensorsFile file("codec.safetensors"); auto embed =
///              file.tensor("_codebook.embed");
class TORCHVQ_API SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();

  /// In the order of their names.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }

  /// Throws c10::ValueError with a list of all names if there is no `name`.
  const SafetensorsEntry& entry(const std::string& name) const;

  /// The tensor, read at each call: it outlives this object, and later changes of the file do not
  /// affect it. Throws c10::ValueError if the file was truncated after it was opened.
  at::Tensor tensor(const std::string& name) const;

 private:
  std::unique_ptr<InputFile> file_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes tensors (any strides and device) atomically (see OutputFile), aligned to 8 bytes. The
/// bytes depend only on the arguments.
///
/// Throws       IoError when the file cannot be written; c10::TypeError for dtypes that the format
///              lacks; c10::ValueError for a tensor named `__metadata__`.
TORCHVQ_API void save_safetensors(const std::string& path,
                                  const std::map<std::string, at::Tensor>& tensors,
                                  const std::map<std::string, std::string>& metadata = {});

/// The same into an open file, which is committed.
TORCHVQ_API void save_safetensors(OutputFile& file,
                                  const std::map<std::string, at::Tensor>& tensors,
                                  const std::map<std::string, std::string>& metadata = {});

}  // namespace torchvq::io
