// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/storage/file_range.h"
#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/open_local.h"
#include "tests/unit/dataset/tar_file.h"

namespace pinfeed {
namespace {

namespace fs = std::filesystem;

class WebdatasetTest : public ::testing::Test {
 protected:
  using Files = std::vector<std::pair<std::string, std::string>>;
  void Shard(const std::string& name, const Files& files) const {
    std::string bytes;
    for (const auto& [file, data] : files) bytes += TarMemberBytes(file, data);
    dir_.Write("set/" + name, bytes + TarEnd());
  }
  Result<std::shared_ptr<const Dataset>> Open(const std::string& name = "set") const {
    return OpenLocal(dir_, name, "");
  }
  static std::string Bytes(const Dataset& dataset, uint64_t id, size_t field) {
    std::vector<std::byte> out;
    const Status read = dataset.ReadBytes(id, field, out);
    return read.ok() ? std::string(reinterpret_cast<const char*>(out.data()), out.size()) : read.ToString();
  }
  static Result<int64_t> Label(const Dataset& dataset, uint64_t id) {
    std::vector<std::byte> out(sizeof(int64_t));
    RETURN_IF_ERROR(dataset.ReadTensor(id, 1, out));
    return ValuesOf<int64_t>(out)[0];
  }

  int64_t ChangedNs() const {
    struct stat info {};
    EXPECT_EQ(::stat((dir_ / "set/a.tar").c_str(), &info), 0);
    return int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec;
  }

  TempDir dir_;
};

TEST_F(WebdatasetTest, NeighboursOfOneKeyAreASample) {
  Shard("b.tar", {{"3.png", "three"}, {"3.cls", "-7"}, {"3.caption.txt", ""}});
  Shard("a.tar", {{"./x/1.JPG", "one"},
                  {"./x/1.cls", " 5\n"},
                  {"./x/1.caption.txt", "a longer text"},
                  {"README", "no extension"},
                  {"./x/.hidden.jpg", "hidden"},
                  {"__meta__/1.jpg", "of the archive"},
                  {"2.caption.txt", "short"},
                  {"2.jpeg", "two"},
                  {"2.cls", "6"}});
  dir_.Write("set/notes.md", "other files are passed over");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  const DatasetInfo& info = dataset->info();
  EXPECT_EQ(info.format, "webdataset");
  EXPECT_EQ(info.samples, 3U);
  ASSERT_EQ(info.fields.size(), 4U);
  EXPECT_EQ(info.fields[0].spec.name, "image");
  EXPECT_EQ(info.fields[0].kind, FieldKind::kEncodedImage);
  EXPECT_EQ(info.fields[1].spec, (TensorSpec{"label", DType::kInt64, {}}));
  EXPECT_EQ(info.fields[2].spec, (TensorSpec{"caption.txt", DType::kUint8, {13}}));
  EXPECT_EQ(info.fields[2].kind, FieldKind::kRagged);
  EXPECT_EQ(info.fields[3].spec.name, "sample_path");
  EXPECT_TRUE(info.fields[3].on_request);
  std::vector<std::string> seen;
  for (uint64_t id = 0; id < 3; ++id)
    seen.push_back(Bytes(*dataset, id, 0) + "|" + std::to_string(Label(*dataset, id).value()) + "|" +
                   Bytes(*dataset, id, 2) + "|" + Bytes(*dataset, id, 3));
  EXPECT_THAT(seen,
              ElementsAre("one|5|a longer text|a.tar/./x/1", "two|6|short|a.tar/2", "three|-7||b.tar/3"));
  EXPECT_EQ(dataset->Describe(2), (dir_ / "set/b.tar").string() + "[3]");
}

TEST_F(WebdatasetTest, OneArchiveIsADataset) {
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open("set/a.tar"));
  EXPECT_EQ(Bytes(*dataset, 1, 0), "two");
  EXPECT_EQ(Bytes(*dataset, 1, 1), "a.tar/2");
}

TEST_F(WebdatasetTest, ArraysAreTensors) {
  const auto array = [](const std::string& values) {
    return NpyHeaderBytes("|u1", "(2, 2)", false) + values;
  };
  Shard("a.tar", {{"1.npy", array("abcd")},
                  {"2.npy", array("efgh")},
                  {"3.npy", NpyHeaderBytes("|u1", "(4, 1)", false) + "ijkl"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(dataset->info().fields[0].spec, (TensorSpec{"npy", DType::kUint8, {2, 2}}));
  std::vector<std::byte> out(4);
  ASSERT_OK(dataset->ReadTensor(1, 0, out));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), 4), "efgh");
  EXPECT_THAT(dataset->ReadTensor(2, 0, out),
              StatusIs(Code::kDataLoss, AllOf(HasSubstr("a.tar[3]"), HasSubstr("another shape or dtype"))));
}

TEST_F(WebdatasetTest, AnArrayWithoutDimensionsIsANumber) {
  const auto number = [](char value) { return NpyHeaderBytes("|u1", "()", false) + value; };
  Shard("a.tar", {{"1.target.npy", number('a')}, {"2.target.npy", number('b')}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(dataset->info().fields[0].spec, (TensorSpec{"target.npy", DType::kUint8, {}}));
  std::vector<std::byte> out(1);
  ASSERT_OK(dataset->ReadTensor(1, 0, out));
  EXPECT_EQ(out[0], std::byte{'b'});
}

TEST_F(WebdatasetTest, ShardsWithoutSamplesArePassedOver) {
  const Files none = {{"README", "no extension"}};
  for (const std::vector<Files>& shards :
       {std::vector<Files>{{}, {{"1.jpg", "one"}, {"1.cls", "1"}}},
        std::vector<Files>{{{"1.jpg", "one"}, {"1.cls", "1"}}, none},
        std::vector<Files>{none, {}, {{"1.jpg", "one"}, {"1.cls", "1"}}, {}}}) {
    fs::remove_all(dir_ / "set");
    for (size_t i = 0; i < shards.size(); ++i) Shard(std::to_string(i) + ".tar", shards[i]);
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
    ASSERT_EQ(dataset->info().samples, 1U);
    EXPECT_EQ(Bytes(*dataset, 0, 0), "one");
    EXPECT_EQ(Label(*dataset, 0).value(), 1);
  }
}

TEST_F(WebdatasetTest, WhatSomeSamplesLackIsLeftOutOrRefused) {
  Shard("a.tar", {{"1.jpg", "one"}, {"1.json", "{}"}, {"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  ASSERT_EQ(dataset->info().fields.size(), 2U);
  ASSERT_EQ(dataset->info().left_out.size(), 1U);
  EXPECT_EQ(dataset->info().left_out[0].first, "json");
  EXPECT_THAT(dataset->info().left_out[0].second, HasSubstr("sample 'a.tar/2' lacks its 'json'"));
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}, {"1.cls", "1"}, {"2.cls", "2"}});
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument,
                               AllOf(HasSubstr("'a.tar/1' lacks its 'image'"), HasSubstr("--sort=name"))));
  Shard("a.tar", {{"1.npy", NpyHeaderBytes("|u1", "(2,)", false) + "ab"},
                  {"1.txt", "x"},
                  {"2.npy", NpyHeaderBytes("|u1", "(3,)", false) + "abc"},
                  {"2.txt", "y"}});
  ASSERT_OK_AND_ASSIGN(const auto texts, Open());
  EXPECT_THAT(texts->info().left_out[0].second, HasSubstr("several sizes"));
}

TEST_F(WebdatasetTest, WhatNoSampleMayHaveIsRefusedByName) {
  const std::vector<std::pair<Files, std::string>> refused = {
      {{{"1.jpg", "a"}, {"1.png", "b"}}, "'1.png' is the second file of its sample for the field 'image'"},
      {{{"1.cls", "1"}, {"1.CLS", "1"}}, "'1.CLS' is the second file of its sample for the field 'label'"},
      {{{"1.bmp", "a"}}, "unsupported format"},
      {{{"1.label", "a"}}, "name labels KEY.cls"},
      {{{"1.a'b", "a"}}, "its extension must be text"},
      {{{"README", "a"}, {"a.", "b"}}, "it has no samples"},
      {{}, "it has no samples"},
  };
  for (const auto& [files, what] : refused) {
    SCOPED_TRACE(what);
    Shard("a.tar", files);
    EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, HasSubstr(what)));
  }
  Files many;
  for (int i = 0; i < 257; ++i) many.emplace_back("1.x" + std::to_string(i), "a");
  Shard("a.tar", many);
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, HasSubstr("than 256 others")));
  Shard("a.tar", Files(many.begin(), many.begin() + 128));
  Shard("b.tar", Files(many.begin() + 128, many.end()));
  EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, HasSubstr("more than 256 extensions")));
}

TEST_F(WebdatasetTest, ShardsThatAreNotReadAreRefusedByName) {
  Shard("a.tar", {{"1.jpg", "one"}});
  dir_.Write("set/preview.png", "no sample");
  EXPECT_OK(Open());
  dir_.Write("set/b.tar.gz", "");
  EXPECT_THAT(Open(),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("b.tar.gz"), HasSubstr("uncompress"))));
  fs::remove(dir_ / "set/b.tar.gz");
  fs::create_directory(dir_ / "set/b.tar.gz");
  EXPECT_OK(Open());
  fs::remove(dir_ / "set/b.tar.gz");
  for (const bool symbolic : {true, false}) {
    symbolic ? fs::create_symlink("a.tar", dir_ / "set/b.tar")
             : fs::create_hard_link(dir_ / "set/a.tar", dir_ / "set/b.tar");
    EXPECT_THAT(Open(), StatusIs(Code::kInvalidArgument, HasSubstr("'a.tar' and 'b.tar' are the same file")));
    fs::remove(dir_ / "set/b.tar");
  }
  Shard("B.TAR", {{"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(dataset->info().samples, 2U);
}

TEST_F(WebdatasetTest, TheErrorOfTheFirstShardIsTold) {
  for (int i = 10; i < 40; ++i) Shard(std::to_string(i) + ".tar", {{"1.jpg", "one"}});
  dir_.Write("set/20.tar", "");
  dir_.Write("set/35.tar", "short");
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Open(), StatusIs(Code::kDataLoss, HasSubstr("20.tar")));
}

TEST_F(WebdatasetTest, AShardThatChangesIsAnErrorAndNotOtherBytes) {
  // With a label that is no integer, labels are read with the samples.
  Shard("a.tar", {{"1.jpg", "one"}, {"1.cls", "1"}, {"2.jpg", "two"}, {"2.cls", "cat"}});
  const auto written = fs::last_write_time(dir_ / "set/a.tar");
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(Bytes(*dataset, 0, 0), "one");
  EXPECT_EQ(Label(*dataset, 0).value(), 1);
  // Of the same size, and with the time that it had. The clock of the file system may not have moved on at
  // once.
  const int64_t before = ChangedNs();
  while (ChangedNs() == before) {
    Shard("b", {{"1.cls", "1"}, {"1.jpg", "one"}, {"2.jpg", "two"}, {"2.cls", "cat"}});
    fs::last_write_time(dir_ / "set/b", written);
    fs::rename(dir_ / "set/b", dir_ / "set/a.tar");
  }
  EXPECT_THAT(Bytes(*dataset, 0, 0), HasSubstr("open the dataset again"));
  EXPECT_THAT(Label(*dataset, 0), StatusIs(Code::kDataLoss, HasSubstr("a.tar")));
}

// Two shards that were exchanged have one time of their last change.
TEST_F(WebdatasetTest, AnotherShardOfTheSameTimeIsAnErrorAndNotOtherBytes) {
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}});
  Shard("../other/a.tar", {{"2.jpg", "two"}, {"1.jpg", "one"}});
  const auto exchange = [&] {
    return ::renameat2(AT_FDCWD, (dir_ / "set/a.tar").c_str(), AT_FDCWD, (dir_ / "other/a.tar").c_str(),
                       RENAME_EXCHANGE);
  };
  if (exchange() != 0) GTEST_SKIP() << "this file system cannot exchange files";
  const int64_t before = ChangedNs();
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  if (!dataset->OpenImage(0, 0).value()->version()) GTEST_SKIP() << "this file system has no versions";
  EXPECT_EQ(Bytes(*dataset, 0, 0), "two");
  fs::rename(dir_ / "set", dir_ / "old");
  fs::rename(dir_ / "other", dir_ / "set");
  EXPECT_EQ(ChangedNs(), before);
  EXPECT_THAT(Bytes(*dataset, 0, 0), HasSubstr("open the dataset again"));
}

// A change in the same tick would leave its time as it is.
TEST_F(WebdatasetTest, AShardIsIndexedBehindTheTickInWhichItChanged) {
  Shard("a.tar", {{"1.jpg", "one"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_GE(UnixNanoseconds(), LatestChange(ChangedNs()));
  EXPECT_EQ(LatestChange(7'000'000'000), 8'000'000'000);
}

TEST_F(WebdatasetTest, AShardThatChangesUnderAReadIsAnError) {
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  ASSERT_OK_AND_ASSIGN(const auto image, dataset->OpenImage(0, 0));
  std::vector<std::byte> bytes;
  EXPECT_OK(image->ReadAll(100, bytes));
  std::fstream(dir_ / "set/a.tar", std::ios::in | std::ios::out).seekp(512) << "two";
  fs::last_write_time(dir_ / "set/a.tar", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(image->ReadAll(100, bytes), StatusIs(Code::kDataLoss, HasSubstr("was written to meanwhile")));
}

TEST_F(WebdatasetTest, LabelsAreReadWhenTheDatasetIsOpened) {
  Shard("a.tar", {{"1.jpg", "one"}, {"1.cls", "1"}, {"2.cls", "-2"}, {"2.jpg", "two"}});
  Shard("b.tar", {{"1.jpg", "one"}, {"1.cls", "3"}, {"2.cls", "cat"}, {"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  EXPECT_EQ(Label(*dataset, 2).value(), 3);
  fs::remove(dir_ / "set/a.tar");
  fs::remove(dir_ / "set/b.tar");
  EXPECT_EQ(Label(*dataset, 0).value(), 1);
  EXPECT_EQ(Label(*dataset, 1).value(), -2);
  EXPECT_EQ(dataset->Prefetch(0, 2, 1).bytes, 0U);
  // One of the second shard's labels cannot be kept, so they are read with the samples.
  EXPECT_THAT(Label(*dataset, 2), StatusIs(Code::kNotFound, HasSubstr("b.tar")));
}

TEST_F(WebdatasetTest, ALabelIsOneInteger) {
  Shard("a.tar", {{"1.jpg", "a"},
                  {"1.cls", "cat"},
                  {"2.jpg", "a"},
                  {"2.cls", ""},
                  {"3.jpg", "a"},
                  {"3.cls", "1 2"},
                  {"4.jpg", "a"},
                  {"4.cls", std::string(70, '0')},
                  {"5.jpg", "a"},
                  {"5.cls", std::string(63, '0') + '5'}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  for (uint64_t id = 0; id < 4; ++id)
    EXPECT_THAT(Label(*dataset, id), StatusIs(Code::kDataLoss, HasSubstr("of its .cls file is no integer")));
  EXPECT_EQ(Label(*dataset, 4).value(), 5);
}

TEST_F(WebdatasetTest, EachImageOfAShardHasAVersionOfItsOwn) {
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}});
  ASSERT_OK_AND_ASSIGN(const auto dataset, Open());
  ASSERT_OK_AND_ASSIGN(const auto first, dataset->OpenImage(0, 0));
  ASSERT_OK_AND_ASSIGN(const auto second, dataset->OpenImage(1, 0));
  ASSERT_OK_AND_ASSIGN(const auto again, dataset->OpenImage(0, 0));
  EXPECT_NE(first->version(), second->version());
  EXPECT_EQ(first->version(), again->version());
}

TEST_F(WebdatasetTest, TheFingerprintChangesWithTheSamples) {
  const auto fingerprint = [&] { return Open().value()->info().fingerprint; };
  Shard("a.tar", {{"1.jpg", "one"}, {"2.jpg", "two"}});
  const std::string before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  Shard("a.tar", {{"1.jpg", "one"}, {"3.jpg", "two"}});
  EXPECT_NE(fingerprint(), before);
  Shard("a.tar", {{"1.jpg", "one"}});
  Shard("b.tar", {{"2.jpg", "two"}});
  EXPECT_NE(fingerprint(), before);
}

}  // namespace
}  // namespace pinfeed
