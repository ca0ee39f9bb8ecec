// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/open_local.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

class ImageFolderTest : public ::testing::Test {
 protected:
  std::string Path(std::string_view below) const { return dir_ / below; }
  void Add(std::string_view name) const {
    dir_.Write("set/" + std::string(name), std::string("bytes of ") + std::string(name));
  }
  Result<std::shared_ptr<const Dataset>> Open() const { return OpenLocal(dir_, "set", "image_folder"); }
  // The files in sample order, as "label path".
  std::vector<std::string> Listing(const Dataset& dataset) const {
    std::vector<std::string> lines;
    for (uint64_t id = 0; id < dataset.info().samples; ++id) {
      std::vector<std::byte> label(8);
      EXPECT_OK(dataset.ReadTensor(id, 1, label));
      lines.push_back(std::to_string(ValuesOf<int64_t>(label)[0]) + " " +
                      dataset.Describe(id).substr(Path("set/").size()));
    }
    return lines;
  }
  std::string Fingerprint() const {
    const auto dataset = Open();
    EXPECT_OK(dataset);
    return dataset.ok() ? (*dataset)->info().fingerprint : "";
  }

  TempDir dir_;
};

TEST_F(ImageFolderTest, ListsClassesAndImagesInOrder) {
  for (const char* name :
       {"dog/b.JPG", "dog/a.png", "cat/10.jpeg", "cat/9.jpg", "Zebra/x.jpg", "cat/notes.txt", "README"})
    Add(name);
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  const DatasetInfo& info = dataset->info();
  EXPECT_EQ(info.format, "image_folder");
  EXPECT_EQ(info.path, "as named");
  EXPECT_EQ(info.samples, 5U);
  EXPECT_THAT(info.classes, ElementsAre("Zebra", "cat", "dog"));
  ASSERT_EQ(info.fields.size(), 3U);
  EXPECT_EQ(info.fields[0].spec.name, "image");
  EXPECT_EQ(info.fields[0].kind, FieldKind::kEncodedImage);
  EXPECT_EQ(info.fields[1].spec, (TensorSpec{"label", DType::kInt64, {}}));
  EXPECT_EQ(info.fields[1].kind, FieldKind::kTensor);
  EXPECT_EQ(info.fields[2].spec, (TensorSpec{"sample_path", DType::kUint8, {11}}));  // "cat/10.jpeg"
  EXPECT_EQ(info.fields[2].kind, FieldKind::kRagged);
  EXPECT_TRUE(info.fields[2].on_request);
  std::vector<std::byte> path;
  ASSERT_OK(dataset->ReadBytes(1, 2, path));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(path.data()), path.size()), "cat/10.jpeg");
  EXPECT_THAT(Listing(*dataset),
              ElementsAre("0 Zebra/x.jpg", "1 cat/10.jpeg", "1 cat/9.jpg", "2 dog/a.png", "2 dog/b.JPG"));
}

TEST_F(ImageFolderTest, APartWithATableOfItsImagesIsNoClass) {
  for (const char* name : {"train/a.jpg", "train/metadata.csv"}) Add(name);
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("holds the splits of a dataset"), HasSubstr("'train'"))));
}

TEST_F(ImageFolderTest, NestedFoldersBelongToTheirClassInTorchvisionsOrder) {
  // os.walk order: directories compared as whole strings, then the names of their files.
  for (const char* name :
       {"c/z.jpg", "c/a/2.jpg", "c/a/1.jpg", "c/a-b/3.jpg", "c/a/deep/er/4.jpg", "c/B/5.jpg"})
    Add(name);
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_THAT(Listing(*dataset), ElementsAre("0 c/z.jpg", "0 c/B/5.jpg", "0 c/a/1.jpg", "0 c/a/2.jpg",
                                             "0 c/a-b/3.jpg", "0 c/a/deep/er/4.jpg"));
}

// os.fsdecode makes U+DC80 + x of a byte that is not UTF-8: behind U+D7FF, before U+E000 and U+10000.
TEST_F(ImageFolderTest, NamesThatAreNotUtf8StandWherePythonPutsThem) {
  for (const char* name : {"\xF0\x90\x80\x80/1.jpg", "\xEE\x80\x80/1.jpg", "\xFF/1.jpg", "\x80/1.jpg",
                           "\xED\x9F\xBF/1.jpg", "\xED\xA0\x80/1.jpg", "z/1.jpg"})
    Add(name);
  for (const char* name : {"z/\xEE\x80\x80.jpg", "z/\xE9.jpg", "z/\xED\x9F\xBF.jpg", "z/\xEE\x80\x80/1.jpg",
                           "z/\xE9/1.jpg", "z/\xC3\xA9/1.jpg"})
    Add(name);
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_THAT(dataset->info().classes, ElementsAre("z", "\xED\x9F\xBF", "\x80", "\xED\xA0\x80", "\xFF",
                                                   "\xEE\x80\x80", "\xF0\x90\x80\x80"));
  std::vector<std::string> in_z = Listing(*dataset);
  in_z.resize(7);
  EXPECT_THAT(in_z,
              ElementsAre("0 z/1.jpg", "0 z/\\xed\\x9f\\xbf.jpg", "0 z/\\xe9.jpg", "0 z/\\xee\\x80\\x80.jpg",
                          "0 z/\xC3\xA9/1.jpg", "0 z/\\xe9/1.jpg", "0 z/\\xee\\x80\\x80/1.jpg"));
}

TEST_F(ImageFolderTest, ReadsTheBytesOfEachFile) {
  Add("cat/1.jpg");
  Add("dog/1.png");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  std::vector<std::byte> out;
  ASSERT_OK(dataset->ReadBytes(1, 0, out));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), "bytes of dog/1.png");
  ASSERT_OK(dataset->ReadBytes(0, 0, out));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), "bytes of cat/1.jpg");
}

TEST_F(ImageFolderTest, RefusesAFolderWithoutClasses) {
  fs::create_directory(Path("set"));
  EXPECT_THAT(Open(),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("set")), HasSubstr("<class>/<image>"))));
  Add("stray.jpg");
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("'stray.jpg'"), HasSubstr("no class folders"))));
}

TEST_F(ImageFolderTest, RefusesTheRootOfTheParts) {
  const auto refused = [&](const char* parts, const char* part) {
    EXPECT_THAT(Open(),
                StatusIs(Code::kInvalidArgument,
                         AllOf(HasSubstr("holds the splits of a dataset (" + std::string(parts) + ")"),
                               HasSubstr("name one split, such as '" + Path(part) + "'"))));
  };
  Add("train/cat/1.jpg");
  refused("'train'", "set/train");
  Add("Val/cat/1.jpg");
  refused("'Val', 'train'", "set/train");
  Add("test/1.jpg");  // without labels
  refused("'Val', 'test', 'train'", "set/train");
  Add("unlabelled/1.jpg");
  refused("'Val', 'test', 'train'", "set/train");
  fs::remove_all(Path("set"));
  Add("test/1.jpg");
  Add("train/1.jpg");
  refused("'test', 'train'", "set/train");
  fs::remove_all(Path("set"));
  Add("Train2017/1.jpg");
  Add("val_set/1.jpg");
  refused("'Train2017', 'val_set'", "set/Train2017");
  fs::remove_all(Path("set"));
  Add("test-tube/1.jpg");
  Add("train_station/1.jpg");
  ASSERT_OK(Open());
}

TEST_F(ImageFolderTest, RefusesImagesBesideTheirMasks) {
  for (const char* name : {"images/1.jpg", "Masks/1.png"}) Add(name);
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("'images', 'Masks'"), HasSubstr("image.npy and mask.npy"))));
  Add("cat/1.jpg");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_THAT(dataset->info().classes, ElementsAre("Masks", "cat", "images"));
}

TEST_F(ImageFolderTest, RefusesPascalVoc) {
  for (const char* name : {"Annotations/1.xml", "JPEGImages/1.jpg", "SegmentationClass/1.png"}) Add(name);
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("'JPEGImages', 'Annotations'"),
                                                             HasSubstr("list the images in a table"))));
}

TEST_F(ImageFolderTest, TakesClassesThatAreOnlyNamedAsParts) {
  const auto classes = [&] {
    const auto dataset = Open();
    EXPECT_OK(dataset);
    return dataset.ok() ? (*dataset)->info().classes : std::vector<std::string>();
  };
  Add("train/0.jpg");
  Add("train/steam/1.jpg");
  EXPECT_THAT(classes(), ElementsAre("train"));
  Add("car/1.jpg");
  EXPECT_THAT(classes(), ElementsAre("car", "train"));
  fs::remove(Path("set/train/0.jpg"));
  EXPECT_THAT(classes(), ElementsAre("car", "train"));
  Add("test/1.jpg");
  EXPECT_THAT(classes(), ElementsAre("car", "test", "train"));
}

TEST_F(ImageFolderTest, RefusesAClassWithoutImages) {
  Add("cat/1.jpg");
  Add("emp\nty/notes.txt");
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("'emp\\nty' holds no image"), Not(HasSubstr("\n")))));
}

TEST_F(ImageFolderTest, RefusesImagesItWouldHaveToPassOver) {
  Add("cat/1.jpg");
  Add("cat/2.WebP");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(dataset->info().samples, 2U);
  Add("cat/3.TiFF");
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, HasSubstr(Path("set/cat/3.TiFF"))));
}

TEST_F(ImageFolderTest, RefusesImageNamesThatAreNoFiles) {
  Add("cat/1.jpg");
  ASSERT_EQ(::mkfifo(Path("set/cat/2.jpg").c_str(), 0600), 0);
  EXPECT_THAT(Open(),
              StatusIs(Code::kInvalidArgument, HasSubstr(Path("set/cat/2.jpg") + "' is not a regular file")));
  fs::remove(Path("set/cat/2.jpg"));
  fs::create_symlink("gone", Path("set/cat/3.jpg"));
  EXPECT_THAT(Open(), StatusIs(Code::kNotFound, HasSubstr(Path("set/cat/3.jpg"))));
  fs::remove(Path("set/cat/3.jpg"));
  fs::create_symlink("gone", Path("set/cat/notes"));
  EXPECT_OK(Open());
}

TEST_F(ImageFolderTest, LinksToFilesAndFoldersBelowTheRootAreFollowed) {
  dir_.Write("store/1.jpg", "one");
  dir_.Write("store/2.jpg", "two");
  Add("cat/0.jpg");
  fs::create_symlink("../../store/2.jpg", Path("set/cat/linked.jpg"));
  fs::create_symlink("../store", Path("set/dog"));
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_THAT(Listing(*dataset),
              ElementsAre("0 cat/0.jpg", "0 cat/linked.jpg", "1 dog/1.jpg", "1 dog/2.jpg"));
  std::vector<std::byte> out;
  EXPECT_OK(dataset->ReadBytes(1, 0, out));
  EXPECT_EQ(out.size(), 3U);
}

TEST_F(ImageFolderTest, LinksThatLeaveTheRootAreRefusedByName) {
  Add("cat/1.jpg");
  fs::create_symlink("/etc", Path("set/cat/etc"));
  EXPECT_THAT(Open(), StatusIs(Code::kPermissionDenied, HasSubstr(Path("set/cat/etc"))));
}

TEST_F(ImageFolderTest, LinksInACircleAreRefused) {
  Add("cat/a/1.jpg");
  fs::create_symlink("..", Path("set/cat/a/loop"));
  EXPECT_THAT(Open(),
              StatusIs(Code::kInvalidArgument, HasSubstr("'cat' and 'cat/a/loop' are the same directory")));
  fs::remove(Path("set/cat/a/loop"));
  fs::create_symlink("../..", Path("set/cat/a/up"));
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("'cat/a/up'"), HasSubstr("the dataset itself"))));
  fs::remove(Path("set/cat/a/up"));
  fs::create_symlink("self", Path("set/cat/self"));
  EXPECT_OK(Open());  // it is no image, and leads nowhere
  fs::create_symlink("self.jpg", Path("set/cat/self.jpg"));
  EXPECT_THAT(Open(), StatusIs(Code::kNotFound, HasSubstr(Path("set/cat/self.jpg"))));
}

TEST_F(ImageFolderTest, FilesThatVanishLaterAreNamed) {
  Add("cat/1.jpg");
  Add("cat/2.jpg");
  Add("cat/3.jpg");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  fs::remove(Path("set/cat/1.jpg"));
  fs::resize_file(Path("set/cat/2.jpg"), 0);
  fs::resize_file(Path("set/cat/3.jpg"), kMaxImageFileBytes + 1);  // sparse
  std::vector<std::byte> out;
  EXPECT_THAT(dataset->ReadBytes(0, 0, out), StatusIs(Code::kNotFound, HasSubstr(Path("set/cat/1.jpg"))));
  EXPECT_THAT(dataset->ReadBytes(1, 0, out),
              StatusIs(Code::kDataLoss, HasSubstr(Path("set/cat/2.jpg") + "': the file is empty")));
  EXPECT_THAT(dataset->ReadBytes(2, 0, out),
              StatusIs(Code::kDataLoss, HasSubstr("1073741825 bytes exceed the limit of 1073741824")));
  fs::remove(Path("set/cat/1.jpg"));
  fs::create_symlink("/etc/passwd", Path("set/cat/1.jpg"));
  EXPECT_THAT(dataset->ReadBytes(0, 0, out),
              StatusIs(Code::kPermissionDenied, HasSubstr(Path("set/cat/1.jpg"))));
}

TEST_F(ImageFolderTest, StrangeNamesAreKeptAndDescribedAsText) {
  Add("caf\xE9/new\nline.jpg");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_THAT(dataset->info().classes, ElementsAre("caf\xE9"));
  EXPECT_THAT(dataset->Describe(0), EndsWith("caf\\xe9/new\\nline.jpg"));
  std::vector<std::byte> out;
  EXPECT_OK(dataset->ReadBytes(0, 0, out));
}

TEST_F(ImageFolderTest, FingerprintFollowsNamesButNotContents) {
  Add("cat/1.jpg");
  Add("dog/2.jpg");
  const std::string before = Fingerprint();
  EXPECT_EQ(before.size(), 16U);
  dir_.Write("set/cat/1.jpg", "other bytes");
  Add("cat/notes.txt");
  EXPECT_EQ(Fingerprint(), before);
  fs::rename(Path("set/cat/1.jpg"), Path("set/cat/3.jpg"));
  EXPECT_NE(Fingerprint(), before);
  fs::rename(Path("set/cat/3.jpg"), Path("set/cat/1.jpg"));
  EXPECT_EQ(Fingerprint(), before);
  Add("dog/3.jpg");
  EXPECT_NE(Fingerprint(), before);
}

TEST_F(ImageFolderTest, ManyFilesKeepTheirPlaces) {
  for (int i = 0; i < 3000; ++i) Add("c" + std::to_string(i % 7) + "/f" + std::to_string(i) + ".jpg");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  ASSERT_EQ(dataset->info().samples, 3000U);
  const std::vector<std::string> listing = Listing(*dataset);
  EXPECT_TRUE(std::is_sorted(listing.begin(), listing.end()));
  for (const std::string& line : listing) EXPECT_EQ(line[0], line[3]);  // "3 c3/f10.jpg"
}

}  // namespace
}  // namespace pinfeed
