#include "io/python_literal.h"

#include <c10/util/Exception.h>

#include <string_view>

#include "io/array_layout.h"

namespace torchvq::io {
namespace {

class Parser {
 public:
  Parser(const std::string& path, const std::string& text) : path_(path), rest_(text) {}

  NpyDictionary parse() {
    expect('{');
    while (!take('}')) {
      entry();
      if (take(',')) continue;
      expect('}');
      break;
    }
    skip_space();
    require(rest_.empty());
    require(has_descr_ && has_order_ && has_shape_);
    return std::move(result_);
  }

 private:
  void entry() {
    const auto key = string();
    expect(':');
    if (key == "descr") {
      once(has_descr_);
      TORCH_CHECK_TYPE(!next_is('['), path_,
                       ": expected an array of plain numbers, but got the structured dtype ",
                       list());
      result_.descr = string();
    } else if (key == "fortran_order") {
      once(has_order_);
      result_.fortran_order = boolean();
    } else {
      require(key == "shape");
      once(has_shape_);
      result_.shape = tuple();
    }
  }

  std::string string() {
    skip_space();
    require(!rest_.empty() && (rest_[0] == '\'' || rest_[0] == '"'));
    const auto end = rest_.find(rest_[0], 1);
    require(end != std::string_view::npos);
    std::string value(rest_.substr(1, end - 1));
    // No legal value needs an escape, and messages repeat the text.
    for (const char c : value) require(c >= ' ' && c <= '~' && c != '\\');
    rest_.remove_prefix(end + 1);
    return value;
  }

  // The text of a list, for a message: of bounded length, in printable characters.
  std::string list() const {
    constexpr size_t kMost = 80;
    std::string text;
    int open = 0;
    for (const char c : rest_) {
      text += c >= ' ' && c <= '~' ? c : '?';
      open += c == '[' ? 1 : c == ']' ? -1 : 0;
      if (open == 0) return text;
      if (text.size() == kMost) break;
    }
    return text + "...";
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return value;
    }
    require(false);
    return false;
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!take(')')) {
      values.push_back(integer());
      require(values.size() <= kMostAxes);
      if (take(',')) continue;
      // Python writes a tuple of one element with a comma; (3) alone would be a number.
      require(values.size() > 1);
      expect(')');
      break;
    }
    return values;
  }

  int64_t integer() {
    skip_space();
    require(!rest_.empty() && is_digit(rest_[0]));
    int64_t value = 0;
    while (!rest_.empty() && is_digit(rest_[0])) {
      require(!__builtin_mul_overflow(value, 10, &value) &&
              !__builtin_add_overflow(value, rest_[0] - '0', &value));
      rest_.remove_prefix(1);
    }
    // Suffix of long integers in Python 2.
    if (!rest_.empty() && rest_[0] == 'L') rest_.remove_prefix(1);
    return value;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void skip_space() {
    while (!rest_.empty() &&
           (rest_[0] == ' ' || rest_[0] == '\n' || rest_[0] == '\t' || rest_[0] == '\r')) {
      rest_.remove_prefix(1);
    }
  }

  bool next_is(char c) {
    skip_space();
    return !rest_.empty() && rest_[0] == c;
  }

  bool take(char c) {
    if (!next_is(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) { require(take(c)); }

  void once(bool& seen) {
    require(!seen);
    seen = true;
  }

  void require(bool condition) const {
    TORCH_CHECK_VALUE(
        condition, path_,
        ": expected a .npy header with descr, fortran_order and shape, but it is damaged");
  }

  const std::string& path_;
  std::string_view rest_;
  NpyDictionary result_;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

}  // namespace

NpyDictionary parse_npy_dictionary(const std::string& path, const std::string& text) {
  return Parser(path, text).parse();
}

}  // namespace torchvq::io
