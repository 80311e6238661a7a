// The temporary files that a signal handler must remove, in memory that it may read.
#pragma once

#include <string>

namespace torchvq::io {

/// Enters a path in the list; returns its slot, or -1 if the list is full or the path too long
/// (only the owner then removes the file).
int enter_unfinished_file(const std::string& path) noexcept;
void leave_unfinished_file(int slot) noexcept;

}  // namespace torchvq::io
