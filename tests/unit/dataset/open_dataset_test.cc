// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/open_dataset.h"

#include <sys/stat.h>

#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

class OpenDatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("images/cat/1.jpg", "x");
    dir_.Write("arrays/a.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab");
    dir_.Write("stream.npy", NpyHeaderBytes("<u2", "(4,)", false) + "abcdefgh");
    dir_.Write("stream.bin", "abcdefgh");
  }
  std::string Path(std::string_view below) const { return dir_ / below; }
  Result<std::shared_ptr<const Dataset>> Open(const DatasetSpec& spec) const {
    ASSIGN_OR_RETURN(auto location, ResolveLocation(spec.path, {dir_.path()}));
    return OpenDataset(std::move(location), spec);
  }
  Result<std::shared_ptr<const Dataset>> Open(std::string_view below, std::string format = "",
                                              uint32_t length = 0, uint32_t stride = 0) const {
    DatasetSpec spec{.path = Path(below), .format = std::move(format)};
    if (length != 0) spec.options["sequence_length"] = Number(length);
    if (stride != 0) spec.options["stride"] = Number(stride);
    return Open(spec);
  }
  // The format that was opened, or the error.
  std::string Format(std::string_view below, std::string format = "", uint32_t length = 0) const {
    const auto dataset = Open(below, std::move(format), length);
    return dataset.ok() ? (*dataset)->info().format : dataset.status().ToString();
  }

  TempDir dir_;
};

TEST_F(OpenDatasetTest, DetectsTheFormat) {
  EXPECT_EQ(Format("images"), "image_folder");
  EXPECT_EQ(Format("arrays"), "npy");
  EXPECT_EQ(Format("stream.npy"), "npy");
  EXPECT_EQ(Format("stream.npy", "", 2), "tokens");
  EXPECT_EQ(Format("stream.bin", "", 2), "tokens");
}

TEST_F(OpenDatasetTest, OpensTheFormatThatWasNamed) {
  dir_.Write("tokens.dat", "abcdefgh");
  EXPECT_EQ(Format("images", "image_folder"), "image_folder");
  EXPECT_EQ(Format("arrays", "npy"), "npy");
  EXPECT_EQ(Format("stream.npy", "npy"), "npy");
  EXPECT_EQ(Format("tokens.dat", "tokens", 2), "tokens");
}

TEST_F(OpenDatasetTest, KeepsThePathAsTheUserNamedIt) {
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("./images//"));
  EXPECT_EQ(dataset->info().path, Path("./images//"));
}

TEST_F(OpenDatasetTest, RefusesUnknownFormats) {
  EXPECT_THAT(Open("images", "parquet"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("'parquet' is unknown"),
                             HasSubstr("image_folder, manifest, npy, tokens and webdataset"))));
}

TEST_F(OpenDatasetTest, SaysOfDirectoriesWhatTheyHoldAndWhatIsWanted) {
  const auto refused = [&](const char* below, const char* words) {
    const auto dataset = Open(below);
    EXPECT_THAT(dataset, StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path(below)), HasSubstr(words))));
  };
  fs::create_directory(Path("empty"));
  refused("empty", "it is empty");
  dir_.Write("notes/README", "x");
  refused("notes",
          ".tar files (webdataset) nor class folders with images (image_folder), but found 'README'");
  dir_.Write("tables/part-0.parquet", "PAR1");
  refused("tables", "'part-0.parquet'; tables of this kind are not supported: save each column");
  dir_.Write("flat/1.jpg", "x");
  refused("flat", "holds images (such as '1.jpg') but no class folders; arrange them as <class>/<image>");
  dir_.Write("webp/1.webp", "x");
  refused("webp", "holds images (such as '1.webp') but no class folders");
  dir_.Write("shards/0.bin", "abcd");
  refused("shards", "'0.bin'; if that holds tokens, name the file and set sequence_length");
}

TEST_F(OpenDatasetTest, SaysOfFilesThatAreNotReadWhatToDoInstead) {
  const std::pair<const char*, const char*> kinds[] = {
      {"a.json", "one JSON object per line"},
      {"a.parquet", "numpy.save"},
      {"a.arrow", "numpy.save"},
      {"a.tar.gz", "DIR/<class>/<image>"},
      {"archive.zip", "unzip FILE"},
      {"a.npz", "becomes a .npy file"},
      {"a.h5", "save each of their arrays"},
      {"a.lmdb", "save each of their arrays"},
      {"a.txt", "token ids"},
      {"a.mds", "pinfeed.DataLoader"},
      {"a.csv.gz", "uncompress it"},
      {"a.tar.xz", "DIR/<class>/<image>"},
      {"a.jpg", "it is one image; name the directory"},
      {"a.dat", "set format to tokens and a sequence_length"},
  };
  for (const auto& [name, words] : kinds) {
    dir_.Write(name, "x");
    EXPECT_THAT(Open(name), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path(name)), HasSubstr(words),
                                                                   Not(HasSubstr("rename")))));
  }
  EXPECT_THAT(Open("stream.bin"), StatusIs(Code::kInvalidArgument, HasSubstr("need a sequence_length")));
}

TEST_F(OpenDatasetTest, AFolderThatWrapsADatasetIsNotItsOnlyClass) {
  dir_.Write("root/dataset/cat/1.jpg", "x");
  EXPECT_EQ(Format("root"), "image_folder");  // of one class, whose images are in a folder
  dir_.Write("root/dataset/dog/1.jpg", "x");
  EXPECT_THAT(Open("root"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("'dataset', holds 2 folders and no images"),
                                                     HasSubstr("open '" + Path("root/dataset") + "'"))));
  EXPECT_EQ(Format("root", "image_folder"), "image_folder");
  EXPECT_EQ(Format("root/dataset"), "image_folder");
  dir_.Write("root/dataset/1.jpg", "x");
  EXPECT_EQ(Format("root"), "image_folder");
  dir_.Write("hf/ds/1.jpg", "x");
  dir_.Write("hf/ds/metadata.jsonl", "{\"file_name\": \"1.jpg\", \"label\": 1}\n");
  EXPECT_THAT(Open("hf"), StatusIs(Code::kInvalidArgument, HasSubstr("open '" + Path("hf/ds") + "'")));
  dir_.Write("arrays/__MACOSX/._a.npy", "x");
  EXPECT_EQ(Format("arrays"), "npy");
  dir_.Write("images/dog/1.jpg", "x");
  dir_.Write("images/__MACOSX/cat/._1.jpg", "x");
  EXPECT_THAT(Open("images"), StatusIs(Code::kInvalidArgument, HasSubstr("remove '__MACOSX'")));
  dir_.Write("deep/a/dataset/cat/1.jpg", "x");
  dir_.Write("deep/a/dataset/dog/1.jpg", "x");
  EXPECT_THAT(Open("deep"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("'a/dataset', holds 2 folders"),
                                                     HasSubstr("open '" + Path("deep/a/dataset") + "'"))));
}

TEST_F(OpenDatasetTest, SeveralTokenFilesAreNotTakenForOne) {
  dir_.Write("shards/0.bin", "abcdefgh");
  dir_.Write("shards/1.bin", "ijklmnop");
  const std::string how = "cat '" + Path("shards") + "'/*.bin > '" + Path("shards.bin") + "'";
  EXPECT_THAT(Open("shards", "", 2), StatusIs(Code::kInvalidArgument, HasSubstr(how)));
  EXPECT_THAT(Open("shards", "tokens", 2), StatusIs(Code::kInvalidArgument, HasSubstr(how)));
  dir_.Write("arrays_of_tokens/0.npy", NpyHeaderBytes("<u2", "(4,)", false) + "abcdefgh");
  const std::string in_python = "numpy.save('" + Path("arrays_of_tokens.npy") + "', numpy.concatenate(";
  EXPECT_THAT(Open("arrays_of_tokens", "", 2), StatusIs(Code::kInvalidArgument, HasSubstr(in_python)));
}

TEST_F(OpenDatasetTest, RefusesToGuessBetweenTwoFormats) {
  dir_.Write("images/features.npy", "");
  EXPECT_THAT(Open("images"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("'features.npy'"), HasSubstr("'cat'"), HasSubstr("set format"))));
  EXPECT_EQ(Format("images", "image_folder"), "image_folder");
}

TEST_F(OpenDatasetTest, AFolderOfImagesBesideATableIsNoClassByItself) {
  dir_.Write("listed/pictures/1.jpg", "");
  EXPECT_EQ(Format("listed"), "image_folder");
  dir_.Write("listed/labels.csv", "file_name,label\npictures/1.jpg,3\n");
  dir_.Write("listed/README.txt", "");
  EXPECT_THAT(Open("listed"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("one folder ('pictures')"), HasSubstr("'labels.csv'"),
                             HasSubstr("open '" + Path("listed/labels.csv")), HasSubstr("set format to"))));
  EXPECT_EQ(Format("listed", "image_folder"), "image_folder");
  EXPECT_EQ(Format("listed/labels.csv"), "manifest");
  dir_.Write("listed/paintings/2.jpg", "");
  EXPECT_EQ(Format("listed"), "image_folder");
}

TEST_F(OpenDatasetTest, AFolderNamedImagesBesideATableThatCannotBeOpenedIsNoClass) {
  dir_.Write("coco/images/1.jpg", "");
  EXPECT_EQ(Format("coco"), "image_folder");
  dir_.Write("coco/annotations.json", "{}");
  dir_.Write("coco/README.txt", "");
  EXPECT_THAT(Open("coco"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("one folder ('images') and a table ('annotations.json')"),
                             HasSubstr("convert it to .csv or .jsonl"), HasSubstr("set format to"))));
  EXPECT_EQ(Format("coco", "image_folder"), "image_folder");
  dir_.Write("cats/tabby/1.jpg", "");
  dir_.Write("cats/index.json", "{}");
  EXPECT_EQ(Format("cats"), "image_folder") << "which may have anything";
}

TEST_F(OpenDatasetTest, SequenceLengthBelongsToTokensOnly) {
  EXPECT_THAT(Open("images", "", 8), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("images")),
                                                                            HasSubstr("belongs to tokens"))));
  EXPECT_THAT(Open("arrays", "npy", 8), StatusIs(Code::kInvalidArgument, HasSubstr("belongs to tokens")));
  EXPECT_THAT(Open("arrays", "npy", 0, 8), StatusIs(Code::kInvalidArgument, HasSubstr("belongs to tokens")));
  EXPECT_THAT(Open("stream.bin", "tokens"),
              StatusIs(Code::kInvalidArgument, HasSubstr("dataset.sequence_length: must be at least 1")));
}

TEST_F(OpenDatasetTest, RefusesFilesForDirectoriesAndBack) {
  EXPECT_THAT(Open("stream.bin", "image_folder"),
              StatusIs(Code::kInvalidArgument, HasSubstr(Path("stream.bin") + "' is a file")));
  EXPECT_THAT(Open("images", "tokens", 2),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr(Path("images") + "' is a directory, but a token stream is one file")));
  ASSERT_EQ(::mkfifo(Path("fifo.npy").c_str(), 0600), 0);
  EXPECT_THAT(Open("fifo.npy"),
              StatusIs(Code::kInvalidArgument, HasSubstr("neither a file nor a directory")));
}

TEST_F(OpenDatasetTest, StaysBelowTheAllowedRoots) {
  EXPECT_THAT(Open("gone"), StatusIs(Code::kNotFound, HasSubstr(Path("gone"))));
  DatasetSpec spec;
  EXPECT_THAT(Open(spec), StatusIs(Code::kInvalidArgument, HasSubstr("dataset path is empty")));
  spec.path = "/etc";
  EXPECT_THAT(Open(spec), StatusIs(Code::kPermissionDenied, HasSubstr("'/etc'")));
  fs::create_symlink("/etc", Path("link"));
  EXPECT_THAT(Open("link"), StatusIs(Code::kPermissionDenied, HasSubstr(Path("link"))));
}

TEST_F(OpenDatasetTest, ClassesWhoseNamesFillTheAnswersAreRefused) {
  std::string table = "value,label\n";
  for (int row = 0; row < 1700; ++row) table += "1," + std::string(10'000, 'a') + std::to_string(row) + "\n";
  dir_.Write("long.csv", table);
  EXPECT_THAT(Open("long.csv"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("the names of its 1700 classes have 16.2 MiB"),
                                                     HasSubstr("at most 16 MiB"))));
}

}  // namespace
}  // namespace pinfeed
