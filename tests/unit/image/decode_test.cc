// SPDX-License-Identifier: Apache-2.0
#include "server/image/decode.h"

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/image/exif.h"
#include "server/image/png_chunks.h"
#include "server/image/png_orientation.h"
#include "tests/support/testing.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

// Decodes random regions of a file and compares each with the same region of the whole image.
void ExpectRegionsAsWhole(const std::vector<std::byte>& file, uint32_t seed, int regions) {
  ImageDecoder decoder;
  ImageDecoder other;
  ASSERT_OK_AND_ASSIGN(const ImageView whole, DecodeImage(file, decoder));
  std::minstd_rand random(seed + 1);
  const auto below = [&](int32_t count) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(count));
  };
  for (int i = 0; i < regions; ++i) {
    Box box{.x = below(whole.width), .y = below(whole.height)};
    box.width = 1 + below(whole.width - box.x);
    box.height = 1 + below(whole.height - box.y);
    ASSERT_OK(other.Open(file));
    ASSERT_OK_AND_ASSIGN(const ImageView part, other.Decode(box));
    ASSERT_EQ(Pixels(part), Pixels(whole.Crop(box)))
        << box.width << " x " << box.height << " at " << box.x << ", " << box.y << " of " << whole.width
        << " x " << whole.height;
  }
}

TEST(DecodeTest, RegionEqualsTheSameRegionOfTheWholeForEverySampling) {
  const int sizes[][2] = {{500, 375}, {131, 77}, {64, 48}, {17, 33}, {1, 1}, {9, 100}, {301, 5}};
  const int samplings[][2] = {{2, 2}, {2, 1}, {1, 2}, {1, 1}, {4, 1}, {4, 2}, {1, 4}, {0, 0}};
  uint32_t seed = 0;
  for (const auto& size : sizes) {
    for (const auto& sampling : samplings) {
      SCOPED_TRACE(std::to_string(sampling[0]) + " x " + std::to_string(sampling[1]));
      JpegOptions options{
          .width = size[0], .height = size[1], .horizontal = sampling[0], .vertical = sampling[1]};
      ++seed;
      ASSERT_NO_FATAL_FAILURE(ExpectRegionsAsWhole(MakeJpeg(options, seed), seed, 40));
    }
  }
}

TEST(DecodeTest, RegionEqualsTheSameRegionOfTheWholeForEveryScanLayout) {
  for (int layout = 0; layout < 4; ++layout) {
    SCOPED_TRACE(layout);
    JpegOptions options{
        .width = 203, .height = 151, .progressive = layout == 0, .separate_scans = layout == 1};
    options.restart_interval = layout == 2 ? 3 : 0;
    options.quality = layout == 3 ? 15 : 90;
    ASSERT_NO_FATAL_FAILURE(ExpectRegionsAsWhole(MakeJpeg(options, 5), 5, 40));
  }
}

TEST(DecodeTest, RegionOfATurnedImageEqualsTheSameRegionOfTheWhole) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const std::vector<std::byte> file = Turned(MakeJpeg({.width = 120, .height = 81}, 3), orientation);
    ImageDecoder decoder;
    ASSERT_OK_AND_ASSIGN(const ImageSize size, decoder.Open(file));
    EXPECT_EQ(size.width, orientation >= 5 ? 81 : 120);
    EXPECT_EQ(size.height, orientation >= 5 ? 120 : 81);
    ASSERT_NO_FATAL_FAILURE(ExpectRegionsAsWhole(file, 7, 40));
  }
}

// Whether a sample is bad must not depend on its random crop.
TEST(DecodeTest, RefusesATruncatedFileForARegionThatItHolds) {
  const std::vector<std::byte> file = MakeJpeg({.width = 300, .height = 200}, 1);
  ImageDecoder decoder;
  for (const size_t missing : {size_t{1}, size_t{2}, size_t{3}, file.size() / 4, file.size() / 2}) {
    const std::vector<std::byte> cut(file.begin(), file.end() - static_cast<ptrdiff_t>(missing));
    ASSERT_OK(decoder.Open(cut));
    EXPECT_THAT(decoder.Decode({0, 0, 8, 8}), StatusIs(Code::kDataLoss, HasSubstr("truncated"))) << missing;
  }
}

TEST(DecodeTest, AcceptsBytesBehindTheEnd) {
  std::vector<std::byte> file = MakeJpeg({.width = 30, .height = 20}, 1);
  file.insert(file.end(), 1 << 20, std::byte{0x55});
  ImageDecoder decoder;
  EXPECT_OK(DecodeImage(file, decoder));
}

// A progressive file whose last scan comes a thousand times more, before the end marker.
std::vector<std::byte> FileOfAThousandScans() {
  std::vector<std::byte> file = MakeJpeg({.width = 16, .height = 16, .progressive = true}, 1);
  size_t last = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) last = i;
  }
  const std::vector<std::byte> scan(file.begin() + static_cast<ptrdiff_t>(last), file.end() - 2);
  file.erase(file.end() - 2, file.end());
  for (int i = 0; i < 1000; ++i) file.insert(file.end(), scan.begin(), scan.end());
  file.push_back(std::byte{0xFF});
  file.push_back(std::byte{0xD9});
  return file;
}

TEST(DecodeTest, RefusesAProgressiveFileOfThousandsOfScans) {
  ImageDecoder decoder;
  EXPECT_THAT(DecodeImage(FileOfAThousandScans(), decoder),
              StatusIs(Code::kResourceExhausted, HasSubstr("500 scans")));
}

TEST(DecodeTest, RefusesFewerScansOfALargeImage) {
  std::vector<std::byte> file = FileOfAThousandScans();
  size_t frame = 0;  // the header that says how large the image is
  while (file[frame] != std::byte{0xFF} || file[frame + 1] != std::byte{0xC2}) ++frame;
  file[frame + 5] = std::byte{4096 >> 8};
  file[frame + 7] = std::byte{8192 >> 8};
  file[frame + 6] = file[frame + 8] = std::byte{0};
  ImageDecoder decoder;
  EXPECT_THAT(DecodeImage(file, decoder),
              StatusIs(Code::kResourceExhausted, HasSubstr("128 scans of 8192 x 4096 pixels")));
}

// A file without its own tables must not be decoded with those of the file before.
TEST(DecodeTest, TablesDoNotStayForTheNextFile) {
  const std::vector<std::byte> good = MakeJpeg({.width = 40, .height = 30}, 1);
  std::vector<std::byte> without = good;
  for (size_t i = 0; i + 1 < without.size(); ++i) {
    if (without[i] != std::byte{0xFF} || without[i + 1] != std::byte{0xDB}) continue;
    const auto length = static_cast<ptrdiff_t>(std::to_integer<int>(without[i + 2]) << 8 |
                                               std::to_integer<int>(without[i + 3]));
    without.erase(without.begin() + static_cast<ptrdiff_t>(i),
                  without.begin() + static_cast<ptrdiff_t>(i) + 2 + length);
    --i;
  }
  ASSERT_LT(without.size(), good.size());
  ImageDecoder decoder;
  ASSERT_OK(DecodeImage(good, decoder));
  EXPECT_THAT(DecodeImage(without, decoder), StatusIs(Code::kDataLoss, HasSubstr("Quantization table")));
}

TEST(DecodeTest, GoesOnAfterABadFile) {
  JpegOptions options{.width = 40, .height = 30};
  const std::vector<std::byte> good = MakeJpeg(options, 1);
  ImageDecoder fresh;
  ASSERT_OK_AND_ASSIGN(const ImageView expected, DecodeImage(good, fresh));
  ImageDecoder decoder;
  options.progressive = true;
  std::vector<std::byte> bad = MakeJpeg(options, 2);
  bad[170] ^= std::byte{0xFF};
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(DecodeImage(bad, decoder).ok());
    ASSERT_OK(decoder.Open(good));  // opened and never decoded
    ASSERT_OK_AND_ASSIGN(const ImageView image, DecodeImage(good, decoder));
    EXPECT_EQ(Pixels(image), Pixels(expected));
  }
}

// libjpeg holds the coefficients of a progressive file's whole image, here 3 MB.
TEST(DecodeTest, ProgressiveFileThatBreaksLeavesNoCoefficients) {
  const std::vector<std::byte> whole = MakeJpeg({.width = 1000, .height = 1000, .progressive = true}, 1);
  std::vector<std::byte> file = whole;
  size_t last = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) last = i;
  }
  const auto components = std::to_integer<size_t>(file[last + 4]);
  file[last + 5 + 2 * components] = std::byte{64};  // the scan's first coefficient; there are 64, from 0 on
  ImageDecoder decoder;
  ASSERT_OK(decoder.Open(whole));
  ASSERT_OK(decoder.Decode({0, 0, 1000, 1000}));  // the memory of the pixels is kept
  ASSERT_OK(decoder.Open(file));
  const size_t before = AllocatedBytes();
  ASSERT_THAT(decoder.Decode({0, 0, 1000, 1000}), StatusIs(Code::kDataLoss, HasSubstr("rogressive")));
  EXPECT_LT(AllocatedBytes(), before + (size_t{1} << 20));
}

TEST(DecodeTest, SideThatIsTooLongIsNamed) {
  EXPECT_OK(CheckDecodedSize("PNG", 65500, 4098));
  EXPECT_OK(CheckDecodedSize("PNG", 4098, 65500));
  EXPECT_THAT(CheckDecodedSize("PNG", 268435456, 1),
              StatusIs(Code::kResourceExhausted,
                       "PNG of 268435456 x 1 pixels: its width is over the limit of 65500 pixels a side"));
  EXPECT_THAT(CheckDecodedSize("PNG", 1, 65501),
              StatusIs(Code::kResourceExhausted,
                       "PNG of 1 x 65501 pixels: its height is over the limit of 65500 pixels a side"));
  EXPECT_THAT(CheckDecodedSize("JPEG", 65500, 4099),
              StatusIs(Code::kResourceExhausted,
                       "JPEG of 65500 x 4099 pixels is over the limit of 268435456 pixels"));
}

std::vector<std::byte> BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Some collections of photographs name them .jpg.
TEST(DecodeTest, GifIsNamed) {
  ImageDecoder decoder;
  EXPECT_THAT(decoder.Open(BytesOf(std::string("\0\5\x16\7\0\2\0\0", 8))),
              StatusIs(Code::kDataLoss, HasSubstr("what macOS stores beside one")));
  EXPECT_THAT(decoder.Open(BytesOf("version https://git-lfs.github.com/spec/v1\n")),
              StatusIs(Code::kDataLoss, HasSubstr("git lfs pull")));
  EXPECT_THAT(decoder.Open(BytesOf("GIF89a...")),
              StatusIs(Code::kDataLoss, HasSubstr("starts with 47 49 46 38 39 61 2e 2e (GIF); convert it")));
}

TEST(DecodeTest, PngWithTooFewBytesForItsPixelsIsRefusedBeforeMemoryIsTaken) {
  using std::string_view_literals::operator""sv;
  const std::vector<std::byte> file = BytesOf(
      "\x89PNG\r\n\x1A\n\0\0\0\x0DIHDR\0\0\x3E\x80\0\0\x3E\x80\x08\x02\0\0\0\xCE\x1C\x48\x89"
      "\0\0\0\0IDAT\x35\xAF\x06\x1E\0\0\0\0IEND\xAE\x42\x60\x82"sv);
  ImageDecoder decoder;
  EXPECT_THAT(decoder.Open(file), StatusIs(Code::kDataLoss, HasSubstr("too few for 16000 x 16000 pixels")));
}

TEST(DecodeTest, PngWithTwoHeadersIsRefused) {
  using std::string_view_literals::operator""sv;
  const std::string header("\0\0\0\x0DIHDR\0\0\x3E\x80\0\0\x3E\x80\x08\x02\0\0\0\xCE\x1C\x48\x89"sv);
  PngChunks chunks;
  EXPECT_OK(chunks.Scan(BytesOf("\x89PNG\r\n\x1A\n" + header)));
  EXPECT_THAT(chunks.Scan(BytesOf("\x89PNG\r\n\x1A\n" + header + header)),
              StatusIs(Code::kDataLoss, HasSubstr("two headers")));
}

TEST(DecodeTest, PngOfMillionsOfEmptyChunksIsRefused) {
  using std::string_view_literals::operator""sv;
  std::vector<std::byte> file = BytesOf("\x89PNG\r\n\x1A\n"sv);
  const std::vector<std::byte> chunk = BytesOf("\0\0\0\0prVt\0\0\0\0"sv);
  for (size_t i = 0; i <= size_t{1} << 20; ++i) file.insert(file.end(), chunk.begin(), chunk.end());
  PngChunks chunks;
  EXPECT_THAT(chunks.Scan(file), StatusIs(Code::kResourceExhausted, HasSubstr("chunks")));
  EXPECT_OK(chunks.Scan(std::span(file).first(file.size() - chunk.size())));
}

// As in Pillow. A file of such text would need the memory of several.
TEST(DecodeTest, TextAboutTheOrientationOfAPngIsBounded) {
  using std::string_view_literals::operator""sv;
  const auto orientation = [](uint32_t bytes) -> Result<int> {
    std::string text("XML:com.adobe.xmp\0tiff:Orientation=\"6\""sv);
    text.resize(bytes, ' ');
    std::string file("\x89PNG\r\n\x1A\n"sv);
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(bytes >> shift);
    file += "tEXt" + text + std::string("\0\0\0\0\0\0\0\0IDAT\0\0\0\0"sv);
    const std::vector<std::byte> held = BytesOf(file);
    PngChunks chunks;
    RETURN_IF_ERROR(chunks.Scan(held));
    return PngOrientation(chunks);
  };
  ASSERT_OK_AND_ASSIGN(const int found, orientation(1 << 20));
  EXPECT_EQ(found, 6);
  EXPECT_THAT(orientation((64 << 20) + 100), StatusIs(Code::kResourceExhausted, HasSubstr("64 MiB")));
}

// Pillow decodes such a file, also when it was copied into a larger block of zeros.
TEST(DecodeTest, EndMarkerMayBeMissingWhereThePixelsAreThere) {
  JpegOptions options{.width = 300, .height = 200};
  const std::vector<std::byte> file = MakeJpeg(options, 1);
  ImageDecoder decoder;
  ASSERT_OK_AND_ASSIGN(const ImageView whole, DecodeImage(file, decoder));
  const std::vector<uint8_t> expected = Pixels(whole);
  std::vector<std::byte> padded(file.begin(), file.end() - 2);
  padded.resize(padded.size() + 100);
  ASSERT_OK_AND_ASSIGN(const ImageView got, DecodeImage(padded, decoder));
  EXPECT_EQ(Pixels(got), expected);
  ExpectRegionsAsWhole(padded, 1, 20);
  options.progressive = true;
  padded = MakeJpeg(options, 1);
  padded.resize(padded.size() - 2);
  padded.resize(padded.size() + 100);
  EXPECT_THAT(DecodeImage(padded, decoder), StatusIs(Code::kDataLoss, HasSubstr("no end marker")));
}

TEST(DecodeTest, SegmentsThatAreTooShortForTheirLengthAreEmpty) {
  const std::vector<std::byte> file = Turned(MakeJpeg({.width = 30, .height = 20}, 1), 6);
  for (const char length : {'\0', '\1'}) {
    const std::string segment = {'\xFF', '\xE5', '\0', length};
    std::vector<std::byte> with(file.begin(), file.begin() + 2);
    for (const char c : segment) with.push_back(static_cast<std::byte>(c));
    with.insert(with.end(), file.begin() + 2, file.end());
    ImageDecoder decoder;
    ASSERT_OK_AND_ASSIGN(const ImageSize size, decoder.Open(with));
    EXPECT_EQ(size.width, 20);
    ASSERT_OK_AND_ASSIGN(const ImageSize stored, decoder.Open(with, false));
    EXPECT_EQ(stored.width, 30);
    EXPECT_OK(decoder.Decode({0, 0, 30, 20}));
  }
}

TEST(DecodeTest, MalformedExifMeansUpright) {
  const auto orientation = [](const std::string& tiff) {
    return TiffOrientation(std::as_bytes(std::span(tiff)));
  };
  const std::string fine("II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0", 22);
  EXPECT_EQ(orientation(fine), 6);
  for (size_t length = 0; length < fine.size(); ++length) {
    EXPECT_EQ(orientation(fine.substr(0, length)), std::nullopt) << length;
  }
  std::string far = fine;
  far[4] = far[5] = far[6] = far[7] = '\xFF';
  EXPECT_EQ(orientation(far), std::nullopt);
  std::string many = fine;
  many[8] = many[9] = '\xFF';
  EXPECT_EQ(orientation(many), 6);  // what could be read counts
  std::string other = many;
  other[10] = 0;
  EXPECT_EQ(orientation(other), std::nullopt);
  std::string behind = fine;  // values where the block has ended
  behind[14] = 4;
  behind[18] = '\xFF';
  EXPECT_EQ(orientation(behind), std::nullopt);
  std::string most = fine;
  most[14] = most[15] = most[16] = most[17] = '\xFF';
  EXPECT_EQ(orientation(most), std::nullopt);
  std::string zero = fine;
  zero[18] = 0;
  EXPECT_EQ(orientation(zero), 1);
}

}  // namespace
}  // namespace pinfeed
