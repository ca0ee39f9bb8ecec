// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/headerless_tokens.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

// The first numbers.
template <typename Number>
Result<std::vector<Number>> Start(const RandomAccessFile& file) {
  constexpr size_t kMaxNumbers = 4096;
  std::vector<Number> numbers(std::min<uint64_t>(file.size() / sizeof(Number), kMaxNumbers));
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(numbers))));
  return numbers;
}

// Whether numbers look like halves of integers twice as wide, whose high halves are every second number:
// those of ids up to a million are at most 15. If all numbers are so small, they count only if they are 0.
template <typename Number>
Result<bool> LooksWider(const RandomAccessFile& file) {
  constexpr Number kMaxHighHalf = sizeof(Number) == 2 ? 15 : 0;
  constexpr size_t kMinNumbers = 64;  // fewer numbers may be small by chance
  ASSIGN_OR_RETURN(const std::vector<Number> numbers, Start<Number>(file));
  if (numbers.size() < kMinNumbers) return false;
  Number low = 0;  // the largest
  Number high = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    Number& largest = i % 2 == 0 ? low : high;
    largest = std::max(largest, numbers[i]);
  }
  return high <= kMaxHighHalf && (low > kMaxHighHalf || (low > 0 && high == 0));
}

Status CheckWidth(const RandomAccessFile& file, std::optional<DType> requested) {
  const std::string object = "open " + QuotePath(file.path());
  if (!requested) {
    ASSIGN_OR_RETURN(const bool wider, LooksWider<uint16_t>(file));
    if (!wider) return OkStatus();
    return InvalidArgument(
        object +
        ": read as uint16, every second number at its beginning is close to 0, which suggests "
        "wider integers; set token_dtype to uint32, or to uint16 if that is correct; convert a "
        "file of 64-bit integers to one of these");
  }
  if (*requested != DType::kUint32) return OkStatus();
  ASSIGN_OR_RETURN(const bool wider, LooksWider<uint32_t>(file));
  if (wider) {
    return InvalidArgument(
        object +
        ": read as uint32, every second number at its beginning is 0, which suggests 64-bit "
        "integers; save them with numpy.save as an array of uint32, also if these are uint32");
  }
  // Two ids of 16 bits read as one, and an id whose bytes are in the other order, are as large.
  constexpr uint32_t kMaxId = (1 << 24) - 1;
  ASSIGN_OR_RETURN(const std::vector<uint32_t> numbers, Start<uint32_t>(file));
  const auto too_large = std::ranges::find_if(numbers, [](uint32_t number) { return number > kMaxId; });
  if (too_large == numbers.end()) return OkStatus();
  return InvalidArgument(
      object + ": read as uint32, it has the number " + std::to_string(*too_large) +
      " at its beginning, which is no tokenizer's id; if its integers are uint16, omit token_dtype; if "
      "big-endian, convert them; save larger ids with numpy.save as an array of uint32");
}

// Text would give ids that are all possible.
Status CheckContent(const RandomAccessFile& file) {
  static constexpr std::string_view kText =
      "text, not token ids; save the ids of your tokenizer with numpy.save as uint16 or uint32, and open "
      "that";
  static constexpr std::string_view kPickled =
      "a pickle, as Python writes; save the ids with numpy.save as uint16 or uint32";
  constexpr std::pair<std::string_view, std::string_view> kStarts[] = {
      {"version https://git-lfs.", "a pointer of Git LFS in place of the file; fetch it (git lfs pull)"},
      {"\x1f\x8b\x08", "compressed by gzip; uncompress it (gunzip), and open the result"},
      {"\x28\xb5\x2f\xfd", "compressed by zstd; uncompress it (unzstd), and open the result"},
      {"BZh91AY&SY", "compressed by bzip2; uncompress it (bunzip2), and open the result"},
      {"\xfd\x37zXZ", "compressed by xz; uncompress it (unxz), and open the result"},
      {"PK\x03\x04", "a zip archive, as torch.save writes; save the ids with numpy.save as uint16 or uint32"},
      {"\x80\x02\x8a\x0a", kPickled},  // of torch.save before 1.6
      {"\x80\x04\x95", kPickled},
      {"\x80\x05\x95", kPickled},
      {"PAR1", "a Parquet file; save its column of ids with numpy.save as uint16 or uint32"},
      {"ARROW1", "an Arrow file; save its column of ids with numpy.save as uint16 or uint32"},
      {"\x89HDF\r\n\x1a\n", "an HDF5 file; save its dataset of ids with numpy.save as uint16 or uint32"},
      {"\xff\xfe", kText},  // the mark of UTF-16
  };
  constexpr size_t kMinText = 64;  // fewer bytes may be text by chance
  ASSIGN_OR_RETURN(const std::vector<char> bytes, Start<char>(file));
  const std::string_view start(bytes.data(), bytes.size());
  const auto refuse = [&](std::string_view what) {
    return InvalidArgument("open " + QuotePath(file.path()) + ": it is " + std::string(what));
  };
  for (const auto& [magic, what] : kStarts)
    if (start.starts_with(magic)) return refuse(what);
  // Other than tabs, and ends of lines and pages.
  const bool has_controls =
      std::ranges::any_of(start, [](unsigned char c) { return c < ' ' && (c < '\t' || c > '\r'); });
  if (start.size() < kMinText || has_controls) return OkStatus();
  for (size_t cut = 0; cut < 4; ++cut) {  // the last character may be cut
    if (IsUtf8(start.substr(0, start.size() - cut))) return refuse(kText);
  }
  return OkStatus();
}

}  // namespace

Status CheckHeaderlessTokens(const RandomAccessFile& file, std::optional<DType> requested) {
  RETURN_IF_ERROR(CheckContent(file));
  return CheckWidth(file, requested);
}

}  // namespace pinfeed
