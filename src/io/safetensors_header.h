// The header of a safetensors file: eight bytes of length, then JSON.
#pragma once

#include <torchvq/io/safetensors.h>

#include <map>
#include <string>

#include "io/input_file.h"

namespace torchvq::io {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Whether the file could be a safetensors file: a plausible length followed by an opening brace.
bool looks_like_safetensors(const InputFile& file);

SafetensorsHeader read_safetensors_header(const InputFile& file);

}  // namespace torchvq::io
