// The error of file access; malformed content is a c10::ValueError or c10::TypeError.
#pragma once

#include <c10/util/Exception.h>
#include <torchvq/export.h>

namespace torchvq::io {

/// An error of the operating system: no such file, no space, no permission. The message names the
/// file.
class TORCHVQ_API IoError : public c10::Error {
 public:
  using c10::Error::Error;
};

}  // namespace torchvq::io
