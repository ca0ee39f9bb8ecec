// SPDX-License-Identifier: Apache-2.0
#include "server/loading/encoded_images.h"

#include <sys/stat.h>

#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr uint64_t kTable = 128;  // where the tests put it
constexpr uint32_t kMost = 4;     // images of a batch

std::vector<std::byte> Jpeg(uint32_t seed) {
  return MakeJpeg({.width = 90, .height = 60}, seed);
}

FeedSpec ImagesSpec() {
  FeedSpec spec;
  spec.batch_size = 1;
  spec.seed = 7;
  spec.encoded_images = kMost;
  spec.transforms = {RandomResizedCrop{24, 32}, RandomHorizontalFlip{}, ToDtype{DType::kFloat32, true}};
  spec.dataset.produced = ProducedDataset{"photos", 10, {{"batch", DType::kUint8, {1 << 16}}}, "", 0, 0};
  return spec;
}

// What a producer fills.
class PlayedField {
 public:
  explicit PlayedField(size_t bytes = 1 << 16) : bytes_(bytes) {}

  EncodedImageRow Put(uint64_t sample, uint32_t kind, std::span<const std::byte> data, uint32_t draw = 0) {
    std::ranges::copy(data, bytes_.begin() + static_cast<std::ptrdiff_t>(end_));
    return {sample, draw, kind, std::exchange(end_, end_ + data.size()), data.size()};
  }
  EncodedImageRow PutPath(uint64_t sample, const std::string& path) {
    return Put(sample, EncodedImageRow::kPath, std::as_bytes(std::span(path)));
  }
  void Write(const std::vector<EncodedImageRow>& rows, uint64_t at = kTable) {
    SetTable(at);
    EncodedImageRow head;
    head.sample = rows.size();
    std::memcpy(bytes_.data() + at, &head, sizeof head);
    if (!rows.empty())
      std::memcpy(bytes_.data() + at + sizeof head, rows.data(), rows.size() * sizeof(EncodedImageRow));
  }
  void SetTable(uint64_t at) { std::memcpy(bytes_.data() + kImageTableAt, &at, sizeof at); }
  void SetCount(uint64_t count) { std::memcpy(bytes_.data() + kTable, &count, sizeof count); }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte>& raw() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  size_t end_ = 1024;
};

std::unique_ptr<const EncodedImages> MakeImages(std::vector<std::string> roots = {"/"}) {
  return EncodedImages::Create(ImagesSpec(), std::move(roots)).value();
}

struct LoadedImage {
  Status status;
  std::vector<std::byte> pixels;
};
LoadedImage LoadRow(const EncodedImages& images, const EncodedImageRow& row, const PlayedField& field) {
  SampleScratch scratch;
  SampleTimes times;
  LoadedImage out;
  out.pixels.resize(images.image_bytes());
  out.status = images.Load(row, field.bytes(), out.pixels, scratch, times);
  return out;
}

// The pixels of the same file in a dataset that the daemon reads itself.
std::vector<std::byte> Native(const std::vector<std::byte>& file, uint64_t id, uint64_t epoch) {
  FeedSpec spec = ImagesSpec();
  spec.dataset.produced.reset();
  std::vector<std::vector<std::vector<std::byte>>> contents(id + 1, {file});
  auto dataset = std::make_shared<MemoryDataset>(std::vector<Field>{EncodedField("image")}, contents);
  const auto loader = SampleLoader::Create(std::move(dataset), spec).value();
  std::vector<std::byte> pixels(loader->outputs()[0].SampleBytes().value());
  SampleScratch scratch;
  SampleTimes times;
  const std::vector<std::span<std::byte>> places{pixels};
  EXPECT_OK(loader->Load({id, epoch}, SamplePlaces(places), scratch, times));
  return pixels;
}

TEST(EncodedImagesTest, PixelsAreThoseOfADatasetThatTheDaemonReads) {
  const TempDir directory;
  const auto images = MakeImages();
  EXPECT_EQ(images->tensor().shape, (std::vector<int64_t>{kMost, 3, 24, 32}));
  EXPECT_EQ(images->tensor().dtype, DType::kFloat32);
  PlayedField field;
  const std::vector<std::byte> file = Jpeg(1);
  field.Write({field.Put(3, EncodedImageRow::kFile, file),
               field.PutPath(3, directory.Write("a.jpg", file).string()),
               field.Put(3, EncodedImageRow::kFile, file, 1)});
  const auto rows = images->ReadTable(field.bytes());
  ASSERT_OK(rows.status());
  ASSERT_EQ(rows->size(), 3U);
  for (const EncodedImageRow& row : *rows) {
    const LoadedImage loaded = LoadRow(*images, row, field);
    ASSERT_OK(loaded.status);
    EXPECT_EQ(loaded.pixels, Native(file, 3, row.draw));
  }
  EXPECT_NE(Native(file, 3, 0), Native(file, 3, 1));
}

TEST(EncodedImagesTest, ABatchMayHaveNoImages) {
  const auto images = MakeImages();
  PlayedField field;
  EXPECT_THAT(*images->ReadTable(field.bytes()), IsEmpty());
  field.Write({});
  EXPECT_THAT(*images->ReadTable(field.bytes()), IsEmpty());
}

TEST(EncodedImagesTest, TransformsMustGiveOneShape) {
  FeedSpec spec = ImagesSpec();
  spec.transforms = {ToDtype{DType::kFloat32, true}};
  EXPECT_THAT(EncodedImages::Create(spec, {}),
              StatusIs(Code::kInvalidArgument, HasSubstr("transforms: image sizes vary")));
}

TEST(EncodedImagesTest, HostileTablesAreRefused) {
  const auto images = MakeImages();
  const std::vector<std::byte> file = Jpeg(1);
  const auto expect = [&](PlayedField& field, const std::string& why) {
    const auto rows = images->ReadTable(field.bytes());
    EXPECT_THAT(rows, StatusIs(Code::kInternal, HasSubstr(why)));
  };
  for (const uint64_t at : {uint64_t{1} << 16, (uint64_t{1} << 16) - 31, UINT64_MAX, UINT64_MAX - 31}) {
    PlayedField field;
    field.SetTable(at);
    expect(field, "it begins at " + std::to_string(at));
  }
  PlayedField small(256);
  small.Write({}, 224);
  const uint64_t count = 1;
  std::memcpy(small.raw().data() + 224, &count, sizeof count);
  expect(small, "1 rows at 224 do not fit");

  struct Case {
    EncodedImageRow row;
    std::string why;
  };
  const uint64_t all = uint64_t{1} << 16;
  const std::vector<Case> cases = {
      {{5, 0, EncodedImageRow::kFile, all, 1}, "the image of sample 5 has 1 bytes at 65536, outside"},
      {{5, 0, EncodedImageRow::kFile, all - 1, 2}, "outside"},
      {{5, 0, EncodedImageRow::kFile, UINT64_MAX, 2}, "outside"},
      {{5, 0, EncodedImageRow::kFile, 2, UINT64_MAX}, "outside"},
      {{5, 0, EncodedImageRow::kFile, 2, UINT64_MAX - 1}, "outside"},
      {{5, 0, EncodedImageRow::kFile, 2, 0}, "has 0 bytes"},
      {{kNoIndex | 9, 0, EncodedImageRow::kFile, 2, 0}, "the image of a sample without an index"},
      {{5, 0, EncodedImageRow::kPath, 2, 0}, "has a path of 0 bytes"},
      {{5, 0, EncodedImageRow::kPath, 2, PATH_MAX}, "has a path of 4096 bytes"},
      {{5, 0, 0, 2, 3}, "unknown kind 0"},
      {{5, 0, 7, 2, 3}, "unknown kind 7"},
  };
  for (const Case& one : cases) {
    PlayedField field;
    field.Write({field.Put(1, EncodedImageRow::kFile, file), one.row});
    expect(field, one.why);
  }
}

TEST(EncodedImagesTest, MoreImagesThanPlacesAreRefused) {
  const auto images = MakeImages();
  for (const uint64_t count : {uint64_t{kMost} + 1, UINT64_MAX, uint64_t{1} << 59}) {
    PlayedField field;
    field.Write({});
    field.SetCount(count);
    EXPECT_THAT(images->ReadTable(field.bytes()),
                StatusIs(Code::kOutOfRange, HasSubstr(std::to_string(count) + " encoded images, and the feed "
                                                                              "has places for 4")));
  }
}

// Whatever bytes a producer leaves, a row that is accepted lies within the field.
TEST(EncodedImagesTest, RandomTablesStayWithinTheField) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto images = MakeImages({});
  const std::vector<std::byte> file = Jpeg(2);
  for (int round = 0; round < 2000; ++round) {
    PlayedField field(4096);
    std::vector<EncodedImageRow> rows(random() % (kMost + 1));
    for (EncodedImageRow& row : rows)
      row = {random(), 0, 1 + static_cast<uint32_t>(random() % 2), random() % 4096, random() % 4096};
    field.Write(rows);
    for (uint32_t i = random() % 8; i > 0; --i)
      field.raw()[kImageTableAt + random() % 200] = static_cast<std::byte>(random());
    const auto read = images->ReadTable(field.bytes());
    if (!read.ok()) continue;
    for (const EncodedImageRow& row : *read) EXPECT_FALSE(LoadRow(*images, row, field).status.ok());
  }
}

TEST(EncodedImagesTest, PathsLeadBelowTheRootsOnly) {
  const TempDir inside;
  const TempDir outside;
  const std::string secret = outside.Write("secret.jpg", Jpeg(1)).string();
  std::filesystem::create_symlink(secret, inside / "link.jpg");
  std::filesystem::create_directory(inside / "folder");
  ASSERT_EQ(::mkfifo((inside / "pipe").c_str(), 0600), 0);
  const auto images = MakeImages({inside.path().string()});
  const auto load = [&](const std::string& path) {
    PlayedField field;
    return LoadRow(*images, field.PutPath(9, path), field).status;
  };
  EXPECT_THAT(load(secret), StatusIs(Code::kPermissionDenied,
                                     AllOf(HasSubstr(secret), HasSubstr("none of the allowed roots"))));
  EXPECT_THAT(load((inside / "link.jpg").string()),
              StatusIs(Code::kPermissionDenied, HasSubstr("leaves the allowed root")));
  EXPECT_THAT(load((inside / "../x.jpg").string()), StatusIs(Code::kInvalidArgument, HasSubstr("sample 9")));
  EXPECT_FALSE(load("relative.jpg").ok());
  EXPECT_FALSE(load((inside / "a").string() + '\0' + "b").ok());
  EXPECT_FALSE(load((inside / "folder").string()).ok());
  EXPECT_FALSE(load((inside / "pipe").string()).ok());
  const std::string missing = (inside / "missing.jpg").string();
  EXPECT_THAT(load(missing), StatusIs(Code::kNotFound, AllOf(HasSubstr("sample 9"), HasSubstr(missing))));
  EXPECT_OK(load(inside.Write("good.jpg", Jpeg(2)).string()));
}

TEST(EncodedImagesTest, ABrokenImageNamesItsSampleAndPath) {
  const TempDir directory;
  const auto images = MakeImages();
  std::vector<std::byte> file = Jpeg(3);
  file.resize(file.size() / 2);
  PlayedField field;
  EXPECT_THAT(LoadRow(*images, field.Put(4, EncodedImageRow::kFile, file), field).status,
              StatusIs(Code::kDataLoss, HasSubstr("sample 4")));
  const std::string path = directory.Write("cut.jpg", file).string();
  EXPECT_THAT(LoadRow(*images, field.PutPath(4, path), field).status,
              StatusIs(Code::kDataLoss, AllOf(HasSubstr("sample 4"), HasSubstr(path))));
  const std::string empty = directory.Write("empty.jpg", "").string();
  EXPECT_THAT(LoadRow(*images, field.PutPath(4, empty), field).status,
              StatusIs(Code::kDataLoss, HasSubstr(empty)));
}

}  // namespace
}  // namespace pinfeed
