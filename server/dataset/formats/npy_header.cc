// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/npy_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <string_view>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kShortPreamble = 10;   // magic, version, 16-bit length (version 1)
constexpr size_t kLongPreamble = 12;    // magic, version, 32-bit length (versions 2 and 3)
constexpr size_t kMaxQuotedBytes = 80;  // of a string in messages

std::string QuoteStart(std::string_view text) {
  return QuotePath(text.substr(0, kMaxQuotedBytes));
}

uint8_t ByteAt(std::span<const std::byte> bytes, size_t i) {
  return std::to_integer<uint8_t>(bytes[i]);
}

struct Preamble {
  size_t bytes = 0;  // where the dictionary starts
  uint64_t dictionary_bytes = 0;
  bool python2 = false;  // Python 2 may have written a header of this version
};

// Precondition: start.size() >= min(file size, kLongPreamble).
Result<Preamble> ParsePreamble(std::span<const std::byte> start) {
  if (start.size() < kShortPreamble) {
    return InvalidArgument("not a .npy file: it has only " + std::to_string(start.size()) + " bytes");
  }
  if (std::string_view(reinterpret_cast<const char*>(start.data()), kMagic.size()) != kMagic)
    return InvalidArgument("not a .npy file: it does not start with \\x93NUMPY");
  const unsigned major = ByteAt(start, 6);
  const unsigned minor = ByteAt(start, 7);
  if (major < 1 || major > 3 || minor != 0) {
    return InvalidArgument(".npy format version " + std::to_string(major) + "." + std::to_string(minor) +
                           " is unknown; versions 1.0, 2.0 and 3.0 are read");
  }
  Preamble preamble;
  preamble.python2 = major <= 2;
  preamble.bytes = major == 1 ? kShortPreamble : kLongPreamble;
  if (start.size() < preamble.bytes) return InvalidArgument("the .npy file ends within its header's length");
  for (size_t i = preamble.bytes; i-- > 8;)
    preamble.dictionary_bytes = preamble.dictionary_bytes << 8 | ByteAt(start, i);
  if (preamble.dictionary_bytes > kMaxNpyHeaderBytes) {
    return InvalidArgument(".npy header of " + std::to_string(preamble.dictionary_bytes) +
                           " bytes; at most " + std::to_string(kMaxNpyHeaderBytes) + " are read");
  }
  return preamble;
}

// Purpose: a strict parser of the Python literals in a .npy header. Borrows the text. Errors say what was
// expected, and where. Not for concurrent use.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, bool python2) : text_(text), python2_(python2) {}

  void SkipSpace() {
    while (position_ < text_.size() &&
           std::string_view(" \t\n\r").find(text_[position_]) != std::string_view::npos)
      ++position_;
  }
  bool AtEnd() const { return position_ == text_.size(); }
  bool NextIs(char c) {
    SkipSpace();
    return !AtEnd() && text_[position_] == c;
  }
  bool Take(char c) {
    if (!NextIs(c)) return false;
    ++position_;
    return true;
  }
  Status Expect(char c) { return Take(c) ? OkStatus() : Malformed(std::string("'") + c + "'"); }

  Result<std::string_view> String() {
    SkipSpace();
    if ((NextIs('u') || NextIs('U')) && position_ + 1 < text_.size() &&
        (text_[position_ + 1] == '\'' || text_[position_ + 1] == '"'))
      ++position_;  // Python 2's prefix of text
    if (!NextIs('\'') && !NextIs('"')) return Malformed("a string");
    const char quote = text_[position_];
    const size_t begin = position_ + 1;
    const size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) return Malformed("a closing quote");
    const std::string_view value = text_.substr(begin, end - begin);
    if (value.find('\\') != std::string_view::npos) return Malformed("a string without backslashes");
    position_ = end + 1;
    return value;
  }

  Result<bool> Bool() {
    SkipSpace();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (!text_.substr(position_).starts_with(word)) continue;
      position_ += word.size();
      return value;
    }
    return Malformed("True or False");
  }

  // Reads a decimal number of at most 63 bits. Python 2 wrote an L after it.
  Result<int64_t> Dimension() {
    SkipSpace();
    int64_t value = 0;
    const size_t begin = position_;
    for (; !AtEnd() && text_[position_] >= '0' && text_[position_] <= '9'; ++position_) {
      if (__builtin_mul_overflow(value, 10, &value) ||
          __builtin_add_overflow(value, text_[position_] - '0', &value)) {
        return Malformed("a dimension below 2^63");
      }
    }
    if (position_ == begin) return Malformed("a dimension, an integer >= 0");
    if (value != 0 && text_[begin] == '0') return Malformed("a dimension without leading zeros");
    if (python2_ && !AtEnd() && text_[position_] == 'L') ++position_;
    return value;
  }

  Result<std::vector<int64_t>> Shape() {
    RETURN_IF_ERROR(Expect('('));
    std::vector<int64_t> shape;
    bool comma = true;
    while (!Take(')')) {
      if (!comma) return Malformed("',' or ')'");
      if (shape.size() == kMaxNpyRank)
        return Malformed("no more than " + std::to_string(kMaxNpyRank) + " dimensions");
      ASSIGN_OR_RETURN(const int64_t dimension, Dimension());
      shape.push_back(dimension);
      comma = Take(',');
    }
    if (shape.size() == 1 && !comma) return Malformed("a tuple: a single dimension needs a trailing ','");
    return shape;
  }

  Status Malformed(const std::string& expected) const {
    return InvalidArgument("malformed .npy header: expected " + expected + " at byte " +
                           std::to_string(position_) + " of " + QuoteStart(text_));
  }

 private:
  std::string_view text_;
  bool python2_;  // Python 2 may have written the text
  size_t position_ = 0;
};

struct ElementType {
  std::string_view code;        // numpy's kind and size in bytes
  std::string_view characters;  // numpy's one-character codes
  std::string_view name;        // numpy's name, which has no byte order
  DType dtype;
};
constexpr std::array<ElementType, 14> kElementTypes = {{{"b1", "?", "bool", DType::kBool},
                                                        {"u1", "B", "uint8", DType::kUint8},
                                                        {"i1", "b", "int8", DType::kInt8},
                                                        {"u2", "H", "uint16", DType::kUint16},
                                                        {"i2", "h", "int16", DType::kInt16},
                                                        {"u4", "I", "uint32", DType::kUint32},
                                                        {"i4", "i", "int32", DType::kInt32},
                                                        {"u8", "LQ", "uint64", DType::kUint64},
                                                        {"i8", "lq", "int64", DType::kInt64},
                                                        {"f2", "e", "float16", DType::kFloat16},
                                                        {"f4", "f", "float32", DType::kFloat32},
                                                        {"f8", "d", "float64", DType::kFloat64},
                                                        {"c8", "F", "complex64", DType::kComplex64},
                                                        {"c16", "D", "complex128", DType::kComplex128}}};

std::string_view UnsupportedKind(char kind) {
  switch (kind) {
    case 'O':
      return "Python objects, which would require unpickling";
    case 'S':
    case 'a':
    case 'U':
      return "text";
    case 'V':
      return "raw records";
    case 'M':
    case 'm':
      return "dates or time spans";
    default:
      return "";
  }
}

Status ParseElementType(std::string_view descr, NpyHeader& header) {
  const std::string object = ".npy dtype " + QuoteStart(descr);
  const char order = descr.empty() ? '\0' : descr[0];
  const bool has_order = order == '<' || order == '>' || order == '=' || order == '|';
  const std::string_view code = descr.substr(has_order ? 1 : 0);
  const auto* const known = std::ranges::find_if(kElementTypes, [&](const ElementType& type) {
    return code == type.code ||
           (code.size() == 1 && type.characters.find(code[0]) != std::string_view::npos) ||
           (!has_order && code == type.name);
  });
  if (known == kElementTypes.end()) {
    if (const std::string_view refused = UnsupportedKind(code.empty() ? '\0' : code[0]); !refused.empty()) {
      return InvalidArgument(object + " holds " + std::string(refused) +
                             "; save numbers or booleans instead");
    }
    return InvalidArgument(object +
                           " is not supported; save booleans, integers, floats of 2 to 8 bytes or complex "
                           "numbers of 8 or 16 bytes");
  }
  header.dtype = known->dtype;
  // Without '<' or '>' the byte order is the host's, as in NumPy.
  constexpr bool kBigHost = std::endian::native == std::endian::big;
  header.big_endian = DTypeSize(known->dtype) > 1 && (order == '>' || (order != '<' && kBigHost));
  return OkStatus();
}

Status ParseDictionary(std::string_view text, bool python2, NpyHeader& header) {
  LiteralReader reader(text, python2);
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
  RETURN_IF_ERROR(reader.Expect('{'));
  bool comma = true;
  while (!reader.Take('}')) {
    if (!comma) return reader.Malformed("',' or '}'");
    ASSIGN_OR_RETURN(const std::string_view key, reader.String());
    RETURN_IF_ERROR(reader.Expect(':'));
    if (key == "descr" && !descr) {
      if (reader.NextIs('[') || reader.NextIs('(')) {
        return InvalidArgument(
            ".npy dtype is a structured record; save each of its columns in a separate file");
      }
      ASSIGN_OR_RETURN(descr, reader.String());
    } else if (key == "fortran_order" && !fortran_order) {
      ASSIGN_OR_RETURN(fortran_order, reader.Bool());
    } else if (key == "shape" && !shape) {
      ASSIGN_OR_RETURN(shape, reader.Shape());
    } else {
      return InvalidArgument(
          "malformed .npy header: key " + QuoteStart(key) +
          " is unknown or repeated; it has 'descr', 'fortran_order' and 'shape' once each");
    }
    comma = reader.Take(',');
  }
  reader.SkipSpace();
  if (!reader.AtEnd()) return reader.Malformed("the end");
  if (!descr || !fortran_order || !shape) {
    return InvalidArgument("malformed .npy header: it lacks '" +
                           std::string(!descr           ? "descr"
                                       : !fortran_order ? "fortran_order"
                                                        : "shape") +
                           "'");
  }
  RETURN_IF_ERROR(ParseElementType(*descr, header));
  header.fortran_order = *fortran_order && shape->size() > 1;
  header.shape = *std::move(shape);
  return OkStatus();
}

Status CheckShape(NpyHeader& header) {
  uint64_t bytes = DTypeSize(header.dtype);
  for (size_t i = 0; i < header.shape.size(); ++i) {
    const int64_t dimension = header.shape[i];
    if (dimension == 0)
      return InvalidArgument(".npy array is empty: dimension " + std::to_string(i) + " of its shape is 0");
    if (!CheckedMul(bytes, static_cast<uint64_t>(dimension), &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return InvalidArgument(".npy shape is too large: its size in bytes exceeds 63 bits");
    }
  }
  header.data_bytes = bytes;
  return OkStatus();
}

}  // namespace

Result<NpyHeader> ParseNpyHeader(std::span<const std::byte> start) {
  ASSIGN_OR_RETURN(const Preamble preamble, ParsePreamble(start));
  const uint64_t end = preamble.bytes + preamble.dictionary_bytes;
  if (end > start.size()) {
    return DataLoss("the .npy header needs " + std::to_string(end) + " bytes but the file has " +
                    std::to_string(start.size()));
  }
  NpyHeader header;
  header.data_offset = end;
  const auto* const text = reinterpret_cast<const char*>(start.data() + preamble.bytes);
  RETURN_IF_ERROR(ParseDictionary({text, preamble.dictionary_bytes}, preamble.python2, header));
  RETURN_IF_ERROR(CheckShape(header));
  return header;
}

Result<bool> StartsAsNpy(const RandomAccessFile& file) {
  std::string start(kMagic.size(), '\0');
  if (file.size() < start.size()) return false;
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(start))));
  return start == kMagic;
}

Result<NpyHeader> ReadNpyHeader(const RandomAccessFile& file) {
  const std::string object = "open " + QuotePath(file.path());
  std::vector<std::byte> start(std::min<uint64_t>(file.size(), kLongPreamble));
  RETURN_IF_ERROR(file.ReadAt(0, start));
  ASSIGN_OR_RETURN(const Preamble preamble, ParsePreamble(start).WithContext(object));
  start.resize(std::min(file.size(), preamble.bytes + preamble.dictionary_bytes));
  RETURN_IF_ERROR(file.ReadAt(0, start));
  ASSIGN_OR_RETURN(NpyHeader header, ParseNpyHeader(start).WithContext(object));
  uint64_t expected = 0;
  const bool longer = !CheckedAdd(header.data_offset, header.data_bytes, &expected) || expected > file.size();
  if (longer || expected != file.size()) {
    return DataLoss(object + ": its .npy header needs " + std::to_string(header.data_offset) + " + " +
                    std::to_string(header.data_bytes) + " bytes, but the file has " +
                    std::to_string(file.size()) +
                    (longer ? "; it was truncated, or is still being written"
                            : "; something was written behind its array"));
  }
  return header;
}

}  // namespace pinfeed
