// What the program does on errors: prints one line, returns an exit code, and
// leaves no unfinished file.
#pragma once

#include <exception>
#include <string>

namespace torchvq::cli {

// Documented in docs/cli.md and in --help.
constexpr int kExitOk = 0;
constexpr int kExitInternal = 1;
constexpr int kExitBadInput = 2;

/// The text with a space for each control character: names may come from files, and must neither
/// break a line nor command the terminal.
std::string in_one_line(const std::string& text);

/// Prints `torchvq: message` on standard error, as a single line for any bytes in the message.
void print_failure(const std::string& message);

/// Prints the error and returns its exit code.
int report_failure(const std::exception& error);

/// On SIGINT, SIGTERM, SIGHUP, other signals that ask a program to end and, in a single process,
/// SIGPIPE removes unfinished files and exits as the signal would.
void install_signal_handlers();

}  // namespace torchvq::cli
