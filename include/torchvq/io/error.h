// What reading and writing files throws beyond c10::ValueError (malformed content) and
// c10::TypeError.
#pragma once

#include <c10/util/Exception.h>
#include <torchvq/export.h>

namespace torchvq::io {

/// The operating system refused: no such file, no space, no permission. The message names the file.
class TORCHVQ_API IoError : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace torchvq::io
