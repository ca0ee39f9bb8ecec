// SPDX-License-Identifier: Apache-2.0
// Stage 2 against Pillow and torchvision: tests/python/make_image_golden.py asks them now, on this machine,
// and the bytes must be equal.
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "server/image/decode.h"
#include "server/image/resize.h"
#include "server/loading/sample_loader.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

std::vector<uint8_t> Unsigned(const std::vector<std::byte>& bytes) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

// Where two images differ, in words.
std::string Difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return std::to_string(a.size()) + " bytes, not " + std::to_string(b.size());
  size_t count = 0;
  int largest = 0;
  size_t first = a.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    first = std::min(first, i);
    ++count;
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  if (count == 0) return "";
  return std::to_string(count) + " of " + std::to_string(a.size()) + " bytes differ, by up to " +
         std::to_string(largest) + ", first at " + std::to_string(first);
}

class ImageGoldenTest : public ::testing::Test {
 protected:
  // Cases of the manifest, each split at blanks.
  std::vector<std::vector<std::string>> Cases(const std::string& part) {
    const std::string command =
        std::string("'" PINFEED_TEST_PYTHON "' -W ignore '" PINFEED_TEST_GOLDEN_SCRIPT "' '") +
        dir_.path().string() + "' " + part;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream manifest(dir_ / "manifest");
    std::vector<std::vector<std::string>> cases;
    for (std::string line; std::getline(manifest, line);) {
      std::istringstream words(line);
      cases.emplace_back();
      for (std::string word; words >> word;) cases.back().push_back(word);
    }
    return cases;
  }
  std::vector<std::byte> File(const std::string& name) const { return FileBytes(dir_ / name); }

  TempDir dir_;
};

TEST_F(ImageGoldenTest, DecodesWhatPillowDecodesAndRefusesTheRest) {
  ImageDecoder decoder;  // one for all: nothing of a file may stay for the next
  ImageDecoder of_region;
  size_t decoded = 0;
  size_t refused = 0;
  for (const auto& words : Cases("decode")) {
    SCOPED_TRACE(words[1]);
    const std::vector<std::byte> file = File(words[1]);
    const Result<ImageView> image = DecodeImage(file, decoder);
    // Whether a sample is bad must not depend on its random crop.
    const Result<ImageSize> opened = of_region.Open(file);
    EXPECT_EQ(opened.ok() && of_region.Decode({0, 0, 1, 1}).ok(), image.ok());
    if (words[0] == "reject") {
      ++refused;
      EXPECT_FALSE(image.ok());
      EXPECT_THAT(image.status().message(), HasSubstr(words[2]));
      continue;
    }
    ++decoded;
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    EXPECT_EQ(image->width, std::stoi(words[2]));
    EXPECT_EQ(image->height, std::stoi(words[3]));
    EXPECT_EQ(Difference(Pixels(image.value()), Unsigned(File(words[1] + ".rgb"))), "");
  }
  EXPECT_GT(decoded, 100U);
  EXPECT_GT(refused, 30U);
}

TEST_F(ImageGoldenTest, ResizesAsPillow) {
  ImageDecoder decoder;
  ResizeScratch scratch;
  size_t count = 0;
  for (const auto& words : Cases("resize")) {
    SCOPED_TRACE(words.back());
    const std::vector<std::byte> file = File(words[1]);
    ASSERT_OK_AND_ASSIGN(const ImageView image, DecodeImage(file, decoder));
    const Box box{std::stoi(words[2]), std::stoi(words[3]), std::stoi(words[4]), std::stoi(words[5])};
    const int32_t width = std::stoi(words[6]);
    const int32_t height = std::stoi(words[7]);
    ImageBuffer out;
    ASSERT_OK_AND_ASSIGN(uint8_t* const pixels, out.Reserve(width, height));
    const std::map<std::string, Interpolation> filters = {{"NEAREST", Interpolation::kNearest},
                                                          {"BILINEAR", Interpolation::kBilinear},
                                                          {"BICUBIC", Interpolation::kBicubic},
                                                          {"LANCZOS", Interpolation::kLanczos}};
    const Resampling resampling{filters.at(words[8])};
    const std::vector<uint8_t> golden = Unsigned(File(words[9]));
    for (const ResizeCode code : {ResizeCode::kBest, ResizeCode::kPortable}) {
      ASSERT_OK(ResizeImage(image.Crop(box), width, height, resampling, {0, 0, width, height}, scratch,
                            pixels, code));
      EXPECT_EQ(Difference(Pixels({pixels, width, height, 3 * static_cast<size_t>(width)}), golden), "");
    }
    ++count;
  }
  EXPECT_GT(count, 40U);
}

TEST_F(ImageGoldenTest, TransformsAsTorchvision) {
  const TransformSpec normalize = Normalize{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
  const std::map<std::string, std::vector<TransformSpec>> chains = {
      {"val", {Resize{0, 256}, CenterCrop{224, 224}, normalize}},
      {"pad", {CenterCrop{401, 333}, normalize}},
      {"crop_then_larger_crop", {CenterCrop{51, 40}, CenterCrop{90, 91}, normalize}},
      {"larger_crop_then_crop", {CenterCrop{600, 611}, CenterCrop{90, 91}, normalize}},
      {"two_resizes", {Resize{50, 60}, Resize{90, 80}, normalize}},
      {"pad_then_resize", {CenterCrop{600, 611}, Resize{100, 90}, normalize}},
      {"bytes", {Resize{60, 71}}},
      {"pad_color", {Pad{{3, 5}, {10, 200, 30}}, CenterCrop{600, 611}, Resize{60, 71}}},
      {"pad_reflect", {Pad{{70, 30, 20, 9}, {0}, "reflect"}, CenterCrop{57, 130}}},
      {"pads",
       {Pad{{5}, {0}, "edge"}, Grayscale{3}, Pad{{4}, {9, 80, 7}}, Pad{{300}, {0}, "symmetric"},
        CenterCrop{30, 600}, normalize}},
      {"nearest", {RandomHorizontalFlip{1}, Interpolated(Resize{250, 250}, {"nearest"})}},
      {"upside_down_nearest", {RandomVerticalFlip{1}, Interpolated(Resize{50, 40}, {"nearest"})}},
      {"random_crops",
       {Resize{40, 50}, RandomCrop{44, 56, {3, 2}, false, {9}}, Resize{60, 60},
        Interpolated(RandomResizedCrop{30, 30, 1, 1, 1, 1}, {"bicubic"})}},
      {"gray", {Resize{60, 71}, Grayscale{}}},
      {"gray_then_resize", {CenterCrop{401, 333}, Grayscale{3}, Resize{60, 71}, Resize{50, 50}, normalize}},
      {"upside_down", {RandomVerticalFlip{1}, CenterCrop{51, 40}, Resize{30, 33}}},
      {"half", {Resize{60, 71}, normalize, ToDtype{DType::kFloat16, false}}},
      {"bfloat",
       {Resize{60, 71}, ToDtype{DType::kFloat32, true}, normalize, ToDtype{DType::kBfloat16, false}}}};
  SampleScratch scratch;
  size_t count = 0;
  for (const auto& words : Cases("chain")) {
    SCOPED_TRACE(words[1] + " of " + words[2]);
    const auto dataset =
        std::make_shared<MemoryDataset>(std::vector<Field>{EncodedField("image")},
                                        std::vector<std::vector<std::vector<std::byte>>>{{File(words[2])}});
    FeedSpec spec;
    spec.transforms = chains.at(words[1]);
    ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, spec));
    ASSERT_OK_AND_ASSIGN(const uint64_t bytes, loader->outputs()[0].SampleBytes());
    std::vector<std::byte> tensor(bytes);
    const std::span<std::byte> place(tensor);
    SampleTimes times;
    ASSERT_OK(loader->Load({0, 0}, std::vector{place}, scratch, times));
    EXPECT_EQ(Difference(Unsigned(tensor), Unsigned(File(words[3]))), "");
    ++count;
  }
  EXPECT_EQ(count, 3 * chains.size());
}

// "flip", "vflip", "resize:8:10", "crop:8:10", "pad:8:10", or the same with a mode of padding.
TransformSpec TransformOf(const std::string& text) {
  std::istringstream words(text);
  std::string name;
  std::getline(words, name, ':');
  uint32_t height = 0;
  uint32_t width = 0;
  char colon = 0;
  words >> height >> colon >> width;
  if (name == "resize") return Resize{height, width};
  if (name == "crop") return CenterCrop{height, width};
  if (name == "vflip") return RandomVerticalFlip{1};
  if (name == "pad") return Pad{{double(width), double(height)}};
  if (name == "edge" || name == "reflect" || name == "symmetric")
    return Pad{{double(width), double(height)}, {0}, name};
  return RandomHorizontalFlip{1};
}

TEST_F(ImageGoldenTest, MasksFollowAsTorchvisionsMasks) {
  SampleScratch scratch;
  size_t count = 0;
  for (const auto& words : Cases("mask")) {
    SCOPED_TRACE(words[1] + " " + words[5]);
    const int64_t height = std::stoi(words[3]);
    const int64_t width = std::stoi(words[4]);
    ASSERT_OK_AND_ASSIGN(const DType dtype, DTypeFromName(words[1]));
    const std::vector<std::byte> image(static_cast<size_t>(height * width));
    const auto dataset = std::make_shared<MemoryDataset>(
        std::vector<Field>{TensorField("image", DType::kUint8, {height, width, 1}),
                           TensorField("mask", dtype, {2, height, width})},
        std::vector<std::vector<std::vector<std::byte>>>{{image, File(words[2])}});
    FeedSpec spec;
    spec.masks = {"mask"};
    std::istringstream chain(words[5]);
    for (std::string step; std::getline(chain, step, ',');) spec.transforms.push_back(TransformOf(step));
    ASSERT_OK_AND_ASSIGN(const auto loader, SampleLoader::Create(dataset, spec));
    std::vector<std::vector<std::byte>> tensors;
    for (const TensorSpec& output : loader->outputs()) tensors.emplace_back(output.SampleBytes().value());
    const std::vector<std::span<std::byte>> places(tensors.begin(), tensors.end());
    SampleTimes times;
    ASSERT_OK(loader->Load({0, 0}, places, scratch, times));
    EXPECT_EQ(Difference(Unsigned(tensors[1]), Unsigned(File(words[6]))), "");
    ++count;
  }
  EXPECT_EQ(count, 7U * 18U);
}

}  // namespace
}  // namespace pinfeed
