#include "distributed/agreement.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "distributed/fingerprint.h"

namespace torchvq::distributed {
namespace {

constexpr int64_t kWords = 3;
constexpr int64_t kWordBits = 16;
constexpr int64_t kNoteBytes = 1024;
constexpr int64_t kTextBytes = kNoteBytes - static_cast<int64_t>(sizeof(int64_t)) - 1;

bool is_printable(char byte) { return byte >= ' ' && byte <= '~'; }

/// The text with other bytes than printable ASCII as \xNN, so that any part of it is valid UTF-8.
std::string escaped(const std::string& text) {
  std::ostringstream result;
  for (const char byte : text) {
    if (is_printable(byte)) {
      result << byte;
    } else {
      result << "\\x" << std::hex << std::setw(2) << std::setfill('0')
             << int{static_cast<unsigned char>(byte)};
    }
  }
  return result.str();
}

/// The text, or its beginning and a hash of all of it: texts that differ only beyond the room of a
/// note still differ.
std::string shortened(const std::string& text) {
  if (static_cast<int64_t>(text.size()) <= kTextBytes) return text;
  std::ostringstream rest;
  rest << "... (hash " << std::hex << std::setw(16) << std::setfill('0') << fingerprint(text)
       << ")";
  return text.substr(0, static_cast<size_t>(kTextBytes) - rest.str().size()) + rest.str();
}

at::Tensor encode(const Note& note) {
  auto bytes = at::zeros({kNoteBytes}, at::kByte);
  auto* to = static_cast<char*>(bytes.mutable_data_ptr());
  std::memcpy(to, &note.number, sizeof(note.number));
  const auto text = shortened(escaped(note.text));
  std::memcpy(to + sizeof(note.number), text.data(), text.size());
  return bytes;
}

Note decode(const char* bytes) {
  Note note{};
  std::memcpy(&note.number, bytes, sizeof(note.number));
  const auto* begin = bytes + sizeof(note.number);
  const auto* end = std::find(begin, begin + kTextBytes, '\0');
  // A rank that is in a collective of its own sends bytes of any kind.
  const bool is_note = *end == '\0' && std::all_of(begin, end, is_printable);
  note.text = is_note ? std::string(begin, end) : "another collective than torchvq's";
  return note;
}

using Parts = std::vector<std::string>;

/// The parts of a text that commas and semicolons separate; those in brackets separate nothing.
Parts parts_of(const std::string& text) {
  Parts parts{{}};
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '(') ++depth;
    if (text[i] == ']' || text[i] == ')') --depth;
    if (depth <= 0 && (text[i] == ',' || text[i] == ';') && text[i + 1] == ' ') {
      parts.emplace_back();
      ++i;  // the space
    } else {
      parts.back() += text[i];
    }
  }
  return parts;
}

/// The text of each rank without the parts that all have: at the same place, or anywhere if they
/// have unlike numbers of parts.
std::vector<std::string> differences(const std::vector<Note>& notes) {
  std::vector<Parts> ranks;
  for (const auto& note : notes) ranks.push_back(parts_of(note.text));
  const bool in_places = std::all_of(
      ranks.begin(), ranks.end(), [&](const Parts& own) { return own.size() == ranks[0].size(); });
  const auto key = [&](size_t place, const std::string& part) {
    return std::pair(in_places ? place : 0, part);
  };
  std::map<std::pair<size_t, std::string>, std::set<size_t>> holders;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < ranks[rank].size(); ++i) holders[key(i, ranks[rank][i])].insert(rank);
  }
  std::vector<std::string> texts;
  for (const auto& own : ranks) {
    std::string text;
    for (size_t i = 0; i < own.size(); ++i) {
      if (holders[key(i, own[i])].size() == ranks.size()) continue;
      text += (text.empty() ? "" : ", ") + own[i];
    }
    texts.push_back(text.empty() ? "none of it" : text);
  }
  return texts;
}

}  // namespace

at::Tensor make_header(const at::Tensor& hash, const at::Tensor& news) {
  const auto shifts = at::arange(kWords, hash.options()).mul_(kWordBits);
  const auto words = hash.bitwise_right_shift(shifts).bitwise_and_((int64_t{1} << kWordBits) - 1);
  const auto last = news.to(at::kLong).reshape({1});
  return at::cat(
      {words, words.square(), last, at::zeros({kHeaderSize - 2 * kWords - 1}, hash.options())});
}

Verdict read_header(const at::Tensor& sum_, int64_t size) {
  const auto sum = sum_.narrow(0, 0, kHeaderSize).cpu().contiguous();
  const auto* value = sum.const_data_ptr<int64_t>();
  bool agree = true;
  for (int64_t i = 0; i < kWords; ++i)
    agree = agree && size * value[kWords + i] == value[i] * value[i];
  return {agree, value[2 * kWords]};
}

std::vector<Note> exchange_notes(const Group& group, const Note& note, at::Device device) {
  const auto all =
      group.all_gather(encode(note).to(device), "what it is about to do").cpu().contiguous();
  std::vector<Note> notes;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    notes.push_back(decode(static_cast<const char*>(all.const_data_ptr()) + rank * kNoteBytes));
  }
  return notes;
}

std::string list_differences(const std::vector<Note>& notes) {
  const auto texts = differences(notes);
  std::map<std::string, std::vector<size_t>> ranks;
  std::vector<std::string> order;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    auto& same = ranks[texts[rank]];
    if (same.empty()) order.push_back(texts[rank]);
    same.push_back(rank);
  }
  std::ostringstream list;
  for (const auto& text : order) {
    const auto& same = ranks[text];
    list << (&text == order.data() ? "" : "; ") << (same.size() == 1 ? "rank " : "ranks ");
    for (size_t i = 0; i < same.size(); ++i) list << (i == 0 ? "" : ", ") << same[i];
    list << ": " << text;
  }
  return list.str();
}

std::string describe_step(const std::string& signature, const at::Tensor& state_hash,
                          const at::Tensor& rng) {
  std::ostringstream text;
  if (rng.defined()) {
    const auto values = rng.cpu().contiguous();
    text << "step " << values[1].item<int64_t>() << ", seed " << values[0].item<int64_t>() << ", ";
  }
  text << "state " << std::hex << static_cast<uint64_t>(state_hash.item<int64_t>()) << ", "
       << signature;
  return text.str();
}

void throw_disagreement(const Group& group, const std::string& description, at::Device device) {
  const auto notes = exchange_notes(group, {0, description}, device);
  C10_THROW_ERROR(
      DistError,
      c10::str(
          group.subject(),
          ": expected all ranks to be in the same step of the same quantizer with the same state, "
          "but got on ",
          list_differences(notes),
          "\nLikely reasons: options, quantizers or their order differ between ranks; a rank "
          "skipped or repeated a "
          "step; or something wrote to the state on some ranks only. ",
          kChangedNothing, " torchvq's verify_replicas() tells which tensors differ."));
}

}  // namespace torchvq::distributed
