// Errors of system calls, from errno.
#pragma once

#include <c10/util/StringUtil.h>
#include <torchvq/io/error.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace torchvq::io {

/// "vectors.npy: cannot open: No such file or directory"
[[noreturn]] inline void throw_system_error(const std::string& path, const char* action, int code) {
  throw IoError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                c10::str(path, ": cannot ", action, ": ", std::strerror(code)));
}

}  // namespace torchvq::io
