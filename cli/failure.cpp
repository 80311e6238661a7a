#include "failure.h"

#include <c10/util/Exception.h>
#include <torchvq/io/error.h>
#include <torchvq/io/output_file.h>

#include <csignal>
#include <cstdio>
#include <new>

#include "processes.h"

namespace torchvq::cli {
namespace {

void end_as_signal(int signal) {
  io::remove_unfinished_files();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  // The raise in the handler must end the program immediately.
  action.sa_flags = SA_NODEFER;
  ::sigaction(signal, &action, nullptr);
}

bool has_default_action(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_DFL;
}

bool is_bad_input(const c10::Error& error) {
  return dynamic_cast<const io::IoError*>(&error) != nullptr ||
         dynamic_cast<const c10::ValueError*>(&error) != nullptr ||
         dynamic_cast<const c10::TypeError*>(&error) != nullptr ||
         dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
         dynamic_cast<const c10::DistError*>(&error) != nullptr;
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string(error.what()).find("can't allocate memory") != std::string::npos;
}

}  // namespace

std::string in_one_line(const std::string& text) {
  const auto byte_at = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = byte_at(i), next = byte_at(i + 1);
    // U+0080 to U+009F, which some terminals obey as well, are two bytes.
    const bool of_two = byte == 0xc2 && next >= 0x80 && next < 0xa0;
    line += byte < 0x20 || byte == 0x7f || of_two ? ' ' : text[i];
    if (of_two) ++i;
  }
  return line;
}

void print_failure(const std::string& message) {
  auto line = "torchvq: " + in_one_line(message);
  while (line.back() == ' ') line.pop_back();
  std::fprintf(stderr, "%s\n", line.c_str());
}

int report_failure(const std::exception& error) {
  if (dynamic_cast<const FailedElsewhere*>(&error) != nullptr) return kExitBadInput;
  if (is_out_of_memory(error)) {
    print_failure("not enough memory; a smaller --memory, or fewer --threads, needs less");
    return kExitInternal;
  }
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  if (known != nullptr && is_bad_input(*known)) {
    print_failure(known->what_without_backtrace());
    return kExitBadInput;
  }
  print_failure(std::string("internal error, please report it: ") +
                (known != nullptr ? known->what_without_backtrace() : error.what()));
  return kExitInternal;
}

void install_signal_handlers() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGXCPU, SIGALRM, SIGVTALRM,
                           SIGPROF, SIGUSR1, SIGUSR2}) {
    // A parent that ignores a signal (nohup) does so deliberately, and a profiler that is loaded
    // before the program has a handler of its own.
    if (has_default_action(signal)) handle(signal, end_as_signal);
  }
  // Exceeding the user's file size limit then fails the write, with a message,
  // instead of raising a signal.
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace torchvq::cli
