// The temporary files that a signal handler must remove, in memory that a signal handler may read.
#pragma once

#include <string>

namespace torchvq::io {

/// Enters a path in the list; returns its slot, or -1 when the list is full or the path too long
/// (the file is then removed by its owner alone).
int enter_unfinished_file(const std::string& path) noexcept;
void leave_unfinished_file(int slot) noexcept;

}  // namespace torchvq::io
