// SPDX-License-Identifier: Apache-2.0
#include "server/source/open_dataset.h"

#include <sys/stat.h>

#include "tests/testing.h"
#include "tests/unit/npy_file.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class OpenDatasetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("images/cat/1.jpg", "x");
    dir_.Write("arrays/a.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab");
    dir_.Write("stream.npy", NpyHeaderBytes("<u2", "(4,)", false) + "abcdefgh");
    dir_.Write("stream.bin", "abcdefgh");
  }
  std::string Path(std::string_view below) const { return dir_ / below; }
  Result<std::shared_ptr<const Dataset>> Open(std::string_view below, std::string format = "",
                                              uint32_t length = 0, uint32_t stride = 0) const {
    DatasetSpec spec;
    spec.path = Path(below);
    spec.format = std::move(format);
    spec.sequence_length = length;
    spec.stride = stride;
    return OpenDataset(spec, {dir_.path()});
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
                       AllOf(HasSubstr("'parquet' is unknown"), HasSubstr("image_folder, npy and tokens"))));
}

TEST_F(OpenDatasetTest, SaysWhatItLookedFor) {
  fs::create_directory(Path("empty"));
  dir_.Write("archive.zip", "PK");
  EXPECT_THAT(Open("empty"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("empty")), HasSubstr(".npy files (npy)"),
                                                     HasSubstr("class folders with images (image_folder)"))));
  EXPECT_THAT(Open("archive.zip"),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("archive.zip")), HasSubstr(".npy (npy"),
                                                     HasSubstr(".bin (tokens"))));
  EXPECT_THAT(Open("stream.bin"), StatusIs(Code::kInvalidArgument, HasSubstr("with sequence_length")));
}

TEST_F(OpenDatasetTest, RefusesToGuessBetweenTwoFormats) {
  dir_.Write("images/features.npy", "");
  EXPECT_THAT(Open("images"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("'features.npy'"), HasSubstr("'cat'"), HasSubstr("set format"))));
  EXPECT_EQ(Format("images", "image_folder"), "image_folder");
}

TEST_F(OpenDatasetTest, SequenceLengthBelongsToTokensOnly) {
  EXPECT_THAT(Open("images", "", 8), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr(Path("images")),
                                                                            HasSubstr("for tokens only"))));
  EXPECT_THAT(Open("arrays", "npy", 8), StatusIs(Code::kInvalidArgument, HasSubstr("for tokens only")));
  EXPECT_THAT(Open("arrays", "npy", 0, 8), StatusIs(Code::kInvalidArgument, HasSubstr("for tokens only")));
  EXPECT_THAT(Open("stream.bin", "tokens"),
              StatusIs(Code::kInvalidArgument, HasSubstr("sequence_length of at least 1")));
}

TEST_F(OpenDatasetTest, RefusesFilesForDirectoriesAndBack) {
  EXPECT_THAT(Open("stream.bin", "image_folder"),
              StatusIs(Code::kInvalidArgument, HasSubstr(Path("stream.bin") + "' is a file")));
  EXPECT_THAT(Open("images", "tokens", 2),
              StatusIs(Code::kInvalidArgument, HasSubstr(Path("images") + "': it is a directory")));
  ASSERT_EQ(::mkfifo(Path("fifo.npy").c_str(), 0600), 0);
  EXPECT_THAT(Open("fifo.npy"),
              StatusIs(Code::kInvalidArgument, HasSubstr("neither a file nor a directory")));
}

TEST_F(OpenDatasetTest, StaysBelowTheAllowedRoots) {
  EXPECT_THAT(Open("gone"), StatusIs(Code::kNotFound, HasSubstr(Path("gone"))));
  DatasetSpec spec;
  EXPECT_THAT(OpenDataset(spec, {dir_.path()}),
              StatusIs(Code::kInvalidArgument, HasSubstr("dataset path is empty")));
  spec.path = "/etc";
  EXPECT_THAT(OpenDataset(spec, {dir_.path()}), StatusIs(Code::kPermissionDenied, HasSubstr("'/etc'")));
  fs::create_symlink("/etc", Path("link"));
  EXPECT_THAT(Open("link"), StatusIs(Code::kPermissionDenied, HasSubstr(Path("link"))));
}

}  // namespace
}  // namespace pinfeed
