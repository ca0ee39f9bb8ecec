// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the start of a .npy file. What is accepted must keep its promises and mean the
// same when written again.
//
// The unit tests run the same function over a set of seeds and their mutations.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "server/dataset/formats/npy_header.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

std::string Descr(const NpyHeader& header) {
  static constexpr const char* kCodes[] = {"",   "b1", "u1", "i1", "u2", "i2", "u4", "i4",
                                           "u8", "i8", "f2", "",   "f4", "f8", "c8", "c16"};
  const char order = DTypeSize(header.dtype) == 1 ? '|' : header.big_endian ? '>' : '<';
  return order + std::string(kCodes[static_cast<size_t>(header.dtype)]);
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  const std::span<const std::byte> start(reinterpret_cast<const std::byte*>(data), size);
  const Result<NpyHeader> parsed = ParseNpyHeader(start);
  if (!parsed.ok()) {
    PF_CHECK(!parsed.status().message().empty(), "an error says why");
    PF_CHECK(parsed.status().message().find('\n') == std::string::npos, "an error is one line");
    return 0;
  }
  const NpyHeader& header = *parsed;
  PF_CHECK(header.data_offset <= size, "the data start behind the header that was given");
  PF_CHECK(header.shape.size() <= kMaxNpyRank, "the rank is in bounds");
  uint64_t bytes = DTypeSize(header.dtype);
  PF_CHECK(bytes > 0, "the dtype is known");
  std::string shape = "(";
  for (const int64_t dimension : header.shape) {
    PF_CHECK(dimension >= 1, "no dimension is empty");
    PF_CHECK(CheckedMul(bytes, static_cast<uint64_t>(dimension), &bytes) && bytes <= INT64_MAX,
             "the size fits a file");
    shape += std::to_string(dimension) + ", ";
  }
  PF_CHECK(bytes == header.data_bytes, "the size is the product of the shape");
  const std::string again = NpyHeaderBytes(Descr(header), shape + ")", header.fortran_order, 3);
  Result<NpyHeader> reparsed = ParseNpyHeader(std::as_bytes(std::span(again)));
  PF_CHECK(reparsed.ok(), "what was accepted is accepted when written again");
  reparsed->data_offset = header.data_offset;
  PF_CHECK(*reparsed == header, "what was accepted means the same when written again");
  return 0;
}
