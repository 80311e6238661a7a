// How the program ends when something goes wrong: one line, an exit code, and no file left behind.
#pragma once

#include <exception>
#include <string>

namespace torchvq::cli {

// Documented in docs/cli.md and in --help.
constexpr int kExitOk = 0;
constexpr int kExitInternal = 1;
constexpr int kExitBadInput = 2;

/// Prints `torchvq: message` on standard error, as one line whatever bytes the message holds.
void print_failure(const std::string& message);

/// Prints what went wrong and returns the exit code for it.
int report_failure(const std::exception& error);

/// On SIGINT, SIGTERM, SIGHUP and, in a single process, SIGPIPE removes unfinished files and exits
/// as the signal would.
void install_signal_handlers();

}  // namespace torchvq::cli
