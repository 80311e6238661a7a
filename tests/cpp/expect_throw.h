// Error messages are part of the interface: tests check the type and a fragment of the text
// together.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include <c10/util/Exception.h>

namespace torchvq::testing {

/// Runs `call`, and expects it to throw `Error` with `fragment` in its message.
template <typename Error, typename Call>
void expect_throw_with(const Call& call, const std::string& fragment) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_NE(message.find(fragment), std::string::npos)
        << "expected \"" << fragment << "\", but got: " << message;
    return;
  } catch (const std::exception& error) {
    FAIL() << "expected another type of error with \"" << fragment
           << "\", but got: " << error.what();
  }
  FAIL() << "expected an error with \"" << fragment << "\", but nothing was thrown";
}

}  // namespace torchvq::testing
