// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as what a producer hands over, with a table of encoded images. Every image of a
// table that is taken lies within the bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "server/loading/encoded_images.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {
namespace {

constexpr uint32_t kMostImages = 64;

std::unique_ptr<const EncodedImages> Images() {
  FeedSpec spec;
  spec.dataset.produced = ProducedDataset{"photos", 1, {{"batch", DType::kUint8, {1 << 16}}}, "", 0, 0};
  spec.encoded_images = kMostImages;
  spec.transforms = {CenterCrop{8, 8}};
  Result<std::unique_ptr<const EncodedImages>> images = EncodedImages::Create(spec, {});
  PF_CHECK(images.ok(), "the images of a feed: " + images.status().message());
  return std::move(images).value();
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  static const std::unique_ptr<const EncodedImages> images = Images();
  std::vector<std::byte> field(std::max(size, kImageTableAt + sizeof(uint64_t)));
  std::transform(data, data + size, field.begin(), [](uint8_t byte) { return std::byte{byte}; });
  const Result<std::vector<EncodedImageRow>> rows = images->ReadTable(field);
  if (!rows.ok()) return 0;
  PF_CHECK(rows->size() <= kMostImages, "no more images than places");
  for (const EncodedImageRow& row : *rows) {
    PF_CHECK(row.length > 0 && row.offset <= field.size() && row.length <= field.size() - row.offset,
             "an image lies within the field");
  }
  return 0;
}
