// SPDX-License-Identifier: Apache-2.0
// Which JPEG files hardware may decode, and that it gets none that libjpeg-turbo rejects.
#include <algorithm>
#include <random>
#include <vector>

#include "server/image/decode.h"
#include "tests/support/testing.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

size_t PlainBytes(const std::vector<std::byte>& file) {
  ImageDecoder decoder;
  EXPECT_OK(decoder.Open(file));
  return decoder.PlainBytes();
}

// The place of the first 0xFF `code` behind `from`.
size_t FindMarker(const std::vector<std::byte>& file, int code, size_t from = 0) {
  for (size_t i = from; i + 1 < file.size(); ++i)
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte(code)) return i;
  ADD_FAILURE() << "no marker " << code;
  return 0;
}

JpegOptions Photo() {
  return {.width = 120, .height = 90};
}

TEST(PlainJpegTest, BaselineFilesOfUsualSamplingsArePlain) {
  const int samplings[][2] = {{2, 2}, {2, 1}, {1, 1}, {0, 0}};
  for (const auto& sampling : samplings) {
    for (const int restart_interval : {0, 1, 5, 1000}) {
      JpegOptions options = Photo();
      options.horizontal = sampling[0];
      options.vertical = sampling[1];
      options.restart_interval = restart_interval;
      std::vector<std::byte> file = MakeJpeg(options, 1);
      EXPECT_EQ(PlainBytes(file), file.size()) << sampling[0] << sampling[1] << " " << restart_interval;
      const size_t bytes = file.size();
      file.resize(bytes + 100);  // behind the end
      EXPECT_EQ(PlainBytes(file), bytes);
    }
  }
}

TEST(PlainJpegTest, OthersAreNot) {
  JpegOptions options = Photo();
  options.progressive = true;
  EXPECT_EQ(PlainBytes(MakeJpeg(options, 1)), 0U);
  options = Photo();
  options.separate_scans = true;
  EXPECT_EQ(PlainBytes(MakeJpeg(options, 1)), 0U);
  const int samplings[][2] = {{1, 2}, {4, 1}, {4, 2}, {1, 4}};
  for (const auto& sampling : samplings) {
    options = Photo();
    options.horizontal = sampling[0];
    options.vertical = sampling[1];
    EXPECT_EQ(PlainBytes(MakeJpeg(options, 1)), 0U) << sampling[0] << sampling[1];
  }
  std::vector<std::byte> file = MakeJpeg(Photo(), 1);
  file.resize(file.size() - 2);  // no end marker
  EXPECT_EQ(PlainBytes(file), 0U);
}

// What decoders repair in ways of their own is for libjpeg.
TEST(PlainJpegTest, DamageThatOnlyCausesWarningsIsNotPlain) {
  JpegOptions options = Photo();
  options.restart_interval = 5;
  const std::vector<std::byte> good = MakeJpeg(options, 1);
  std::vector<std::byte> file = good;
  file[FindMarker(file, 0xD1) + 1] = std::byte{0xD5};  // a restart marker out of turn
  EXPECT_EQ(PlainBytes(file), 0U);
  file = good;
  const auto second = static_cast<std::ptrdiff_t>(FindMarker(file, 0xD1));
  file.erase(file.begin() + second, file.end() - 2);  // intervals are missing
  EXPECT_EQ(PlainBytes(file), 0U);
  file = good;
  const size_t scan = FindMarker(file, 0xDA);
  const std::vector<std::byte> comment = {std::byte{0xFF}, std::byte{0xFE}, std::byte{0}, std::byte{2}};
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(FindMarker(file, 0xD0, scan)), comment.begin(),
              comment.end());
  EXPECT_EQ(PlainBytes(file), 0U);
}

// The data is scanned in steps: a marker may lie at the end of one, or across two.
TEST(PlainJpegTest, MarkersAreFoundAnywhereInTheData) {
  const std::vector<std::byte> file = MakeJpeg(Photo(), 1);
  const std::vector<std::byte> comment = {std::byte{0xFF}, std::byte{0xFE}, std::byte{0}, std::byte{2}};
  const std::vector<std::byte> stuffed = {std::byte{0xFF}, std::byte{0}};
  const size_t scan = FindMarker(file, 0xDA);
  const size_t data = scan + 2 + std::to_integer<size_t>(file[scan + 3]);
  ASSERT_GT(file.size(), data + 1500);
  for (size_t at = data; at <= data + 1100; ++at) {
    const auto with = [&](const std::vector<std::byte>& bytes) {
      std::vector<std::byte> other = file;
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin(), bytes.end());
      return PlainBytes(other);
    };
    ASSERT_EQ(with(comment), 0U) << at;
    const bool within = file[at - 1] == std::byte{0xFF};
    ASSERT_EQ(with(stuffed), within ? 0U : file.size() + 2) << at;
  }
}

// Of thousands of damaged files: one that goes to the GPU is one that libjpeg decodes; and the bytes that go
// there are decoded as the whole file is.
TEST(PlainJpegTest, GpuGetsNoFileThatLibjpegRejects) {
  const uint32_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 1U;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  const auto below = [&random](size_t count) { return static_cast<size_t>(random()) % count; };
  std::vector<std::vector<std::byte>> files;
  for (const int horizontal : {2, 1, 0}) {
    for (const int restart_interval : {0, 4}) {
      JpegOptions options{.width = 40, .height = 33, .restart_interval = restart_interval};
      options.horizontal = options.vertical = horizontal;
      files.push_back(MakeJpeg(options, seed));
    }
  }
  ImageDecoder decoder;
  ImageDecoder reference;
  int plain = 0;
  int refused = 0;
  int rejected = 0;
  for (int i = 0; i < 10000; ++i) {
    std::vector<std::byte> file = files[below(files.size())];
    if (i % 5 == 0) {
      file.resize(below(file.size()));
    } else {
      // Half of the damage is in the tables and headers.
      const size_t range = i % 2 == 0 ? std::min<size_t>(file.size(), 640) : file.size();
      for (size_t flips = 1 + below(3); flips > 0; --flips) {
        std::byte& byte = file[below(range)];
        byte ^= static_cast<std::byte>(1U << below(8));
      }
    }
    const bool good = DecodeImage(file, reference).ok();
    rejected += good ? 0 : 1;
    const Result<ImageSize> opened = decoder.Open(file);
    if (!opened.ok()) {
      EXPECT_FALSE(good) << i;
      continue;
    }
    const size_t bytes = decoder.PlainBytes();
    if (bytes == 0) continue;
    ++plain;
    const bool passes = decoder.CheckPlain().ok();
    refused += passes ? 0 : 1;
    ASSERT_EQ(passes, good) << "file " << i;
    if (!good) continue;
    ASSERT_OK_AND_ASSIGN(const ImageView whole, DecodeImage(file, reference));
    const std::vector<uint8_t> pixels = Pixels(whole);
    file.resize(bytes);
    ASSERT_OK_AND_ASSIGN(const ImageView part, DecodeImage(file, reference));
    ASSERT_EQ(Pixels(part), pixels) << "file " << i;
  }
  EXPECT_GT(plain, 2000);
  EXPECT_GT(refused, 10) << "no file was rejected by its tables alone";
  EXPECT_GT(rejected, 2000);
}

}  // namespace
}  // namespace pinfeed
