// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/tar_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/parse_number.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

// The fields of a header: offset and bytes.
struct HeaderField {
  size_t offset;
  size_t bytes;
};
constexpr HeaderField kNameField{0, 100};
constexpr HeaderField kSizeField{124, 12};
constexpr HeaderField kChecksumField{148, 8};
constexpr size_t kTypeOffset = 156;
constexpr HeaderField kMagicField{257, 6};
constexpr HeaderField kPrefixField{345, 155};
// Behind the mark of the end. Programs fill up to records of 10 KiB, or of what the user says.
constexpr uint64_t kMaxPaddingBytes = uint64_t{64} << 20;

std::string_view FieldText(std::span<const std::byte> block, HeaderField field) {
  return {reinterpret_cast<const char*>(block.data()) + field.offset, field.bytes};
}
std::string_view UntilNul(std::string_view text) {
  return text.substr(0, text.find('\0'));
}

// A number is octal, between blanks and NULs; or, if the first bit is set, binary and big-endian (GNU).
std::optional<uint64_t> FieldNumber(std::string_view field) {
  const auto first = static_cast<uint8_t>(field.front());
  if ((first & 0x80) == 0) {
    const size_t begin = std::min(field.find_first_not_of(' '), field.size());
    const std::string_view digits = field.substr(begin);
    return ParseNumber<uint64_t>(digits.substr(0, digits.find_first_of(std::string_view(" \0", 2))), 8);
  }
  if (first != 0x80) return std::nullopt;  // negative, or too large
  uint64_t number = 0;
  for (const char byte : field.substr(1)) {
    if (number >> 56 != 0) return std::nullopt;
    number = number << 8 | static_cast<uint8_t>(byte);
  }
  return number;
}

// The sum of a header's bytes, those of the sum itself as blanks.
template <typename Byte, size_t kBytes>
int32_t ChecksumOf(std::span<const std::byte, kBytes> block) {
  int32_t sum = kChecksumField.bytes * ' ';
  for (const std::byte byte : block) sum += static_cast<Byte>(byte);
  for (const std::byte byte : block.subspan(kChecksumField.offset, kChecksumField.bytes))
    sum -= static_cast<Byte>(byte);
  return sum;
}
template <size_t kBytes>
bool HasChecksum(std::span<const std::byte, kBytes> block) {
  const std::optional<uint64_t> stored = FieldNumber(FieldText(block, kChecksumField));
  return stored && (std::cmp_equal(*stored, ChecksumOf<uint8_t>(block)) ||
                    std::cmp_equal(*stored, ChecksumOf<int8_t>(block)));  // of old programs
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

Result<std::optional<TarMember>> TarReader::Next() {
  Extended extended;
  while (true) {
    header_ = next_;
    ASSIGN_OR_RETURN(const Block block, ReadBlock());
    if (IsZero(block)) {
      if (extended.name || extended.size) return Damaged("a header of long names has no file behind it");
      RETURN_IF_ERROR(CheckNothingFollows());
      return std::nullopt;
    }
    if (!HasChecksum(block))
      return Damaged("the checksum of a header is wrong" +
                     std::string(header_ == 0 ? "; is it a tar archive, and not compressed?" : ""));
    std::optional<uint64_t> size = FieldNumber(FieldText(block, kSizeField));
    const char type = static_cast<char>(block[kTypeOffset]);
    const std::string_view magic = FieldText(block, kMagicField);
    std::string name(UntilNul(FieldText(block, kNameField)));
    if (const std::string_view prefix = UntilNul(FieldText(block, kPrefixField));
        magic == std::string_view("ustar\0", 6) && !prefix.empty())
      name = std::string(prefix) + "/" + name;
    next_ += kBlockBytes;
    if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
      if (!size) return Damaged("a header has no valid size");
      const bool is_pax = type == 'x' || type == 'g';
      ASSIGN_OR_RETURN(const std::string text, ReadText(*size, is_pax ? kMaxPaxBytes : kMaxNameBytes + 1));
      if (type == 'L') extended.name = std::string(UntilNul(text));
      Extended of_all;
      if (is_pax) RETURN_IF_ERROR(ReadPax(text, type == 'x' ? extended : of_all));
      if (of_all.name || of_all.size) return Refused("a global header gives all files one name or size");
      continue;
    }
    if (extended.size) size = extended.size;
    if (extended.name) name = *std::move(extended.name);
    extended = {};
    const bool is_directory = type == '5' || ((type == '0' || type == '\0') && name.ends_with('/'));
    if (is_directory) {
      if (type != '5') RETURN_IF_ERROR(Skip(size.value_or(0)));  // POSIX: no data follow a directory
      continue;
    }
    if (type == '1' || type == '2')
      return Refused(QuotePath(name) +
                     " is a link; pack the files themselves (tar --dereference --hard-dereference)");
    if (type != '0' && type != '\0' && type != '7')
      return Refused(QuotePath(name) +
                     " is no regular file; pack regular files only, and not as sparse ones");
    if (name.empty() || name.size() > kMaxNameBytes || name.find('\0') != std::string::npos)
      return Damaged("a file has no valid name");
    if (!size) return Damaged(QuotePath(name) + " has no valid size");
    TarMember member{std::move(name), next_, *size};
    RETURN_IF_ERROR(Skip(*size));
    return std::optional(std::move(member));
  }
}

Result<TarReader::Block> TarReader::ReadBlock() {
  if (next_ == archive_.size())
    return Damaged(
        "it ends without the mark of its end, two blocks of zeros; it was cut off, or is being written");
  if (archive_.size() - next_ < kBlockBytes) return Damaged("it ends within a block; it was cut off");
  if (next_ < window_offset_ || next_ + kBlockBytes > window_offset_ + window_bytes_) {
    const uint64_t bytes = std::min<uint64_t>(window_.size(), archive_.size() - next_);
    window_bytes_ = 0;
    RETURN_IF_ERROR(archive_.ReadAt(next_, std::span(window_).first(bytes)));
    window_offset_ = next_;
    window_bytes_ = bytes;
  }
  return Block(window_.data() + (next_ - window_offset_), kBlockBytes);
}

Result<std::string> TarReader::ReadText(uint64_t bytes, uint64_t max_bytes) {
  if (bytes > max_bytes)
    return Refused("a header of long names has " + std::to_string(bytes) + " bytes, and at most " +
                   std::to_string(max_bytes) + " are read");
  const uint64_t offset = next_;
  RETURN_IF_ERROR(Skip(bytes));
  std::string text(bytes, '\0');
  RETURN_IF_ERROR(ReadAt(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

Status TarReader::ReadAt(uint64_t offset, std::span<std::byte> out) {
  if (offset + out.size() > window_offset_ + window_bytes_) return archive_.ReadAt(offset, out);
  std::copy_n(window_.data() + (offset - window_offset_), out.size(), out.data());  // it has the block before
  return OkStatus();
}

// Records are "LENGTH KEY=VALUE\n"; the length counts all of that.
Status TarReader::ReadPax(const std::string& text, Extended& extended) const {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t blank = std::min(rest.find(' '), rest.size());
    const std::optional<uint64_t> length = ParseNumber<uint64_t>(rest.substr(0, blank));
    if (!length || *length > rest.size() || *length < blank + 3 || rest[*length - 1] != '\n')
      return Damaged("a pax header is not made of records");
    const std::string_view record = rest.substr(blank + 1, *length - blank - 2);
    rest.remove_prefix(*length);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) return Damaged("a pax header is not made of records");
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path") extended.name = std::string(value);
    if (key.starts_with("GNU.sparse.")) return Refused("it has a sparse file; pack without --sparse");
    if (key != "size") continue;
    extended.size = ParseNumber<uint64_t>(value);
    if (!extended.size) return Damaged("a pax header has no valid size");
  }
  return OkStatus();
}

Status TarReader::Skip(uint64_t bytes) {
  const uint64_t left = archive_.size() - next_;
  if (bytes > left) return Damaged("it ends within a file; it was cut off");
  // The padding of the last file may be lacking: ReadBlock says so.
  const uint64_t padding = (kBlockBytes - bytes % kBlockBytes) % kBlockBytes;
  next_ += std::min(bytes + padding, left);
  return OkStatus();
}

// Readers stop at the first block of zeros. What followed would be missing without a word.
Status TarReader::CheckNothingFollows() {
  if (archive_.size() - next_ > kMaxPaddingBytes) {
    return Refused("its end is marked there, but the file goes on for " +
                   std::to_string(archive_.size() - next_) + " bytes; write it anew, without what follows");
  }
  for (; next_ < archive_.size(); next_ += window_bytes_) {
    window_offset_ = next_;
    window_bytes_ = std::min<uint64_t>(window_.size(), archive_.size() - next_);
    const auto window = std::span(window_).first(window_bytes_);
    RETURN_IF_ERROR(archive_.ReadAt(next_, window));
    if (!IsZero(window))
      return Refused(
          "more follows behind the mark of its end; join archives with tar --concatenate, not with cat, or "
          "keep them apart");
  }
  return OkStatus();
}

Status TarReader::Damaged(const std::string& what) const {
  return DataLoss("read tar archive " + QuotePath(archive_.path()) + " at offset " + std::to_string(header_) +
                  ": " + what);
}

Status TarReader::Refused(const std::string& what) const {
  return InvalidArgument("read tar archive " + QuotePath(archive_.path()) + " at offset " +
                         std::to_string(header_) + ": " + what);
}

}  // namespace pinfeed
