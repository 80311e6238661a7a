// Runs all tests, or those of one source: `torchvq_tests --source=ops/lookup_codes_test.cpp`. Other
// arguments are passed to GoogleTest (--gtest_filter, --gtest_repeat, ...).
#include <iostream>
#include <string>

#include <gtest/gtest.h>

namespace {

/// GoogleTest's filter for the tests of a source given by the end of its path; empty if none match.
std::string filter_of(const std::string& source) {
  std::string filter;
  const auto& tests = *::testing::UnitTest::GetInstance();
  for (int suite = 0; suite < tests.total_test_suite_count(); ++suite) {
    const auto& of_suite = *tests.GetTestSuite(suite);
    for (int index = 0; index < of_suite.total_test_count(); ++index) {
      const auto& test = *of_suite.GetTestInfo(index);
      if (!std::string(test.file()).ends_with("/" + source)) continue;
      filter += (filter.empty() ? "" : ":") + std::string(of_suite.name()) + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index], option = "--source=";
    const auto filter =
        argument.starts_with(option) ? filter_of(argument.substr(option.size())) : std::string();
    if (filter.empty()) {
      std::cerr << "torchvq_tests: expected --source=NAME of a source with tests, but got "
                << argument << "\n";
      return 2;
    }
    ::testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
