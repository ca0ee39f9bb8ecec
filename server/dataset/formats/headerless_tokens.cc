// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/headerless_tokens.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/quote.h"

namespace pinfeed {
namespace {

// What is looked at. Read once: each read of a remote file is a request.
Result<std::string> ReadStart(const RandomAccessFile& file) {
  constexpr size_t kMaxBytes = size_t{16} << 10;
  std::string start(std::min<uint64_t>(file.size(), kMaxBytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(start))));
  return start;
}

constexpr size_t kMinNumbers = 64;  // fewer numbers may be small by chance

template <typename Number>
std::vector<Number> NumbersOf(std::string_view start) {
  std::vector<Number> numbers(start.size() / sizeof(Number));
  start.copy(reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(Number));
  return numbers;
}

template <typename Number>
struct Largest {
  Number even = 0;  // of the first, third, ... number
  Number odd = 0;
};

// `with_ones`: whether those count whose bits are all ones.
template <typename Number>
Largest<Number> LargestOf(const std::vector<Number>& numbers, bool with_ones) {
  Largest<Number> largest;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!with_ones && numbers[i] == std::numeric_limits<Number>::max()) continue;
    Number& of = i % 2 == 0 ? largest.even : largest.odd;
    of = std::max(of, numbers[i]);
  }
  return largest;
}

// Whether these are the largest halves of integers twice as wide: the high halves of ids up to a million are
// at most 15. If all numbers are so small, they count only if they are 0.
template <typename Number>
bool AreHalves(Number low, Number high) {
  constexpr Number kMaxHighHalf = sizeof(Number) == 2 ? 15 : 0;
  return high <= kMaxHighHalf && (low > kMaxHighHalf || (low > 0 && high == 0));
}

Status CheckWidth(const std::string& object, std::string_view start, std::optional<DType> requested) {
  std::vector<uint16_t> halves = NumbersOf<uint16_t>(start);
  if (!requested) {
    if (halves.size() < kMinNumbers) return OkStatus();
    // Halves that are all ones are of -1, which marks what is no token.
    const auto largest = LargestOf(halves, false);
    if (AreHalves(largest.even, largest.odd)) {
      return InvalidArgument(
          object +
          ": read as uint16, every second number at its beginning is close to 0 (or 65535, as of -1), which "
          "suggests wider integers; set token_dtype to uint32, or to uint16 if that is correct; convert a "
          "file of 64-bit or negative integers to one of these");
    }
    for (uint16_t& half : halves) half = __builtin_bswap16(half);
    const auto swapped = LargestOf(halves, false);
    if (AreHalves(swapped.odd, swapped.even)) {
      return InvalidArgument(
          object +
          ": read as uint16, its numbers look like halves of big-endian integers; convert them "
          "(numpy.fromfile(PATH, \">u4\").astype(\"<u4\"), or \">i8\"), or set token_dtype to uint16 if that "
          "is correct");
    }
    return OkStatus();
  }
  if (*requested != DType::kUint32) return OkStatus();
  const std::vector<uint32_t> numbers = NumbersOf<uint32_t>(start);
  const auto largest = LargestOf(numbers, false);
  if (numbers.size() >= kMinNumbers && AreHalves(largest.even, largest.odd)) {
    return InvalidArgument(object +
                           ": read as uint32, every second number at its beginning is 0 (or 4294967295, as "
                           "of -1), which suggests 64-bit integers; save them with numpy.save as an array of "
                           "uint32, also if these are uint32");
  }
  // Two ids of 16 bits read as one, and an id whose bytes are in the other order, are as large. Not those of
  // an alphabet of bytes, but all their low halves are small.
  constexpr uint32_t kMaxId = (1 << 24) - 1;
  const auto too_large = std::ranges::find_if(numbers, [](uint32_t number) { return number > kMaxId; });
  const auto half = LargestOf(halves, true);
  const bool pairs = halves.size() >= kMinNumbers && half.odd > 0 && half.even < 256;
  if (too_large == numbers.end() && !pairs) return OkStatus();
  const uint32_t shown = too_large == numbers.end() ? *std::ranges::max_element(numbers) : *too_large;
  return InvalidArgument(
      object + ": read as uint32, it has the number " + std::to_string(shown) +
      " at its beginning, which is no tokenizer's id; if its integers are uint16, omit token_dtype; if "
      "big-endian, signed or of another width, convert them; save larger ids with numpy.save as an array of "
      "uint32");
}

// Other than tabs, and ends of lines and pages.
bool IsControl(uint16_t c) {
  return c < ' ' && (c < '\t' || c > '\r');
}

// Whether it is UTF-16 with its mark, which may be an id as well. The halves of a surrogate pair are
// neighbours.
bool IsWideText(std::string_view start) {
  std::vector<uint16_t> units = NumbersOf<uint16_t>(start);
  if (units.size() < kMinNumbers) return false;
  if (units.front() == 0xfffe)
    for (uint16_t& unit : units) unit = __builtin_bswap16(unit);
  if (units.front() != 0xfeff) return false;
  for (size_t i = 0; i + 1 < units.size(); ++i) {
    const bool begins_pair = (units[i] & 0xfc00) == 0xd800;
    const bool pair_ends = (units[i + 1] & 0xfc00) == 0xdc00;
    if (IsControl(units[i]) || begins_pair != pair_ends) return false;
  }
  return true;
}

// Text would give ids that are all possible.
Status CheckContent(const std::string& object, std::string_view start) {
  static constexpr std::string_view kText =
      "text, not token ids; save the ids of your tokenizer with numpy.save as uint16 or uint32, and open "
      "that";
  static constexpr std::string_view kPickled =
      "a pickle, as Python writes; save the ids with numpy.save as uint16 or uint32";
  constexpr std::pair<std::string_view, std::string_view> kStarts[] = {
      {"version https://git-lfs.", "a pointer of Git LFS in place of the file; fetch it (git lfs pull)"},
      {"\x1f\x8b\x08", "compressed by gzip; uncompress it (gunzip), and open the result"},
      {"\x28\xb5\x2f\xfd", "compressed by zstd; uncompress it (unzstd), and open the result"},
      {"\xfd\x37zXZ", "compressed by xz; uncompress it (unxz), and open the result"},
      {"PK\x03\x04", "a zip archive, as torch.save writes; save the ids with numpy.save as uint16 or uint32"},
      {"\x80\2\x8a\n", kPickled},  // of torch.save before 1.6
      {"\x80\2]q", kPickled},      // a list; by protocol 2, and by 3, the default before Python 3.8
      {"\x80\3]q", kPickled},
      {"\x80\2}q", kPickled},  // a dict
      {"\x80\3}q", kPickled},
      {"\x80\2(", kPickled},  // a tuple
      {"\x80\3(", kPickled},
      {"\x80\2c", kPickled},  // an object, such as an array
      {"\x80\3c", kPickled},
      {"\x80\4\x95", kPickled},
      {"\x80\5\x95", kPickled},
      {"PAR1", "a Parquet file; save its column of ids with numpy.save as uint16 or uint32"},
      {"ARROW1", "an Arrow file; save its column of ids with numpy.save as uint16 or uint32"},
      {"\x89HDF\r\n\x1a\n", "an HDF5 file; save its dataset of ids with numpy.save as uint16 or uint32"},
      {"LITPKDS", "a packed dataset of lit-gpt; save its ids without its header, with numpy.save"},
  };
  constexpr size_t kMinText = 64;  // fewer bytes may be text by chance
  const auto refuse = [&](std::string_view what) {
    return InvalidArgument(object + ": it is " + std::string(what));
  };
  for (const auto& [magic, what] : kStarts)
    if (start.starts_with(magic)) return refuse(what);
  const auto has = [&](size_t at, std::string_view bytes) {
    return start.size() >= at && start.substr(at).starts_with(bytes);
  };
  if (has(0, "BZh") && has(4, "1AY&SY"))  // between them, the level
    return refuse("compressed by bzip2; uncompress it (bunzip2), and open the result");
  // As Hugging Face's datasets writes: a mark, the length of the schema, and its first offset.
  if (has(0, "\xff\xff\xff\xff") && has(7, std::string_view("\0\x10\0\0\0", 5)))
    return refuse("an Arrow stream; save its column of ids with numpy.save as uint16 or uint32");
  if (has(3, std::string_view("\0\0\0\0\0{\"", 7)))
    return refuse("a file of safetensors; save its tensor of ids with numpy.save as uint16 or uint32");
  if (IsWideText(start)) return refuse(kText);
  const auto controls = std::ranges::count_if(start, [](unsigned char c) { return IsControl(c); });
  if (start.size() < kMinText) return OkStatus();
  // In another encoding. Few different bytes may be of an id that is repeated.
  constexpr size_t kMinOtherText = 1024;
  constexpr size_t kMinDifferent = 16;
  if (controls == 0 && start.size() >= kMinOtherText &&
      std::set<char>(start.begin(), start.end()).size() >= kMinDifferent)
    return refuse(kText);
  // Some separate documents by a control character.
  if (static_cast<size_t>(controls) * 16 > start.size()) return OkStatus();
  for (size_t cut = 0; cut < 4; ++cut) {  // the last character may be cut
    if (IsUtf8(start.substr(0, start.size() - cut))) return refuse(kText);
  }
  return OkStatus();
}

}  // namespace

Status CheckHeaderlessTokens(const RandomAccessFile& file, std::optional<DType> requested) {
  ASSIGN_OR_RETURN(const std::string start, ReadStart(file));
  const std::string object = "open " + QuotePath(file.path());
  RETURN_IF_ERROR(CheckContent(object, std::string_view(start).substr(0, 4096)));
  return CheckWidth(object, start, requested);
}

}  // namespace pinfeed
