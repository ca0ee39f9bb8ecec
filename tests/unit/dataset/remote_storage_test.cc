// SPDX-License-Identifier: Apache-2.0
// Every format on a storage that is no file system, and that fails.
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "common/os/start_thread.h"
#include "server/dataset/open_dataset.h"
#include "server/dataset/selected_fields.h"
#include "tests/support/memory_storage.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/dataset/tar_file.h"

namespace pinfeed {
namespace {

class RemoteStorageTest : public ::testing::Test {
 protected:
  void SetUp() override { Fill(storage_); }
  static void Fill(MemoryStorage& storage) {
    storage.Write("folder/cat/1.jpg", "bytes of one");
    storage.Write("folder/dog/2.jpg", "bytes of two");
    storage.Write("arrays/x.npy", NpyHeaderBytes("|u1", "(4, 3)", false) + "abcdefghijkl");
    storage.Write("arrays/y.npy", NpyHeaderBytes("|u1", "(4,)", false) + "1234");
    storage.Write("list.csv", "file_name,label\nfolder/cat/1.jpg,cat\nfolder/dog/2.jpg,dog\n");
    storage.Write("tokens.bin", std::string("\1\0\2\0\3\0\4\0\5\0", 10));
    storage.Write("shards/0.tar", TarMemberBytes("1.jpg", "bytes of one") + TarMemberBytes("1.cls", "1") +
                                      TarMemberBytes("2.jpg", "bytes of two") + TarMemberBytes("2.cls", "2") +
                                      TarEnd());
  }

  Result<std::shared_ptr<const Dataset>> Open(const std::string& path, uint32_t sequence_length = 0) {
    return OpenIn(storage_, path, sequence_length);
  }
  static Result<std::shared_ptr<const Dataset>> OpenIn(MemoryStorage& storage, const std::string& path,
                                                       uint32_t sequence_length) {
    DatasetSpec spec;
    spec.path = "memory:/" + path;
    if (sequence_length != 0) spec.options["sequence_length"] = Number(sequence_length);
    return OpenDataset(storage.At(path), spec);
  }

  // Reads sample 1, which every dataset here has.
  static Status ReadOne(const Dataset& dataset) {
    for (size_t field = 0; field < dataset.info().fields.size(); ++field) {
      std::vector<std::byte> bytes;
      if (dataset.info().fields[field].kind != FieldKind::kTensor) {
        RETURN_IF_ERROR(dataset.ReadBytes(1, field, bytes));
      } else {
        bytes.resize(dataset.info().fields[field].spec.SampleBytes().value());
        RETURN_IF_ERROR(dataset.ReadTensor(1, field, bytes));
      }
    }
    return OkStatus();
  }

  MemoryStorage storage_;
};

struct Place {
  std::string path;
  uint32_t sequence_length = 0;
  std::string file;  // that sample 1 is read from
  std::string format;
  uint64_t samples = 0;
};
const std::vector<Place>& Places() {
  static const std::vector<Place> places = {{"folder", 0, "folder/dog/2.jpg", "image_folder", 2},
                                            {"arrays", 0, "arrays/x.npy", "npy", 4},
                                            {"arrays/x.npy", 0, "arrays/x.npy", "npy", 4},
                                            {"list.csv", 0, "folder/dog/2.jpg", "manifest", 2},
                                            {"tokens.bin", 2, "tokens.bin", "tokens", 2},
                                            {"shards", 0, "shards/0.tar", "webdataset", 2},
                                            {"shards/0.tar", 0, "shards/0.tar", "webdataset", 2}};
  return places;
}

TEST_F(RemoteStorageTest, EveryFormatIsFoundOutOpenedAndRead) {
  for (const Place& place : Places()) {
    SCOPED_TRACE(place.path);
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open(place.path, place.sequence_length));
    EXPECT_EQ(dataset->info().format, place.format);
    EXPECT_EQ(dataset->info().samples, place.samples);
    EXPECT_OK(ReadOne(*dataset));
  }
}

TEST_F(RemoteStorageTest, EveryFormatSaysWhetherItsStorageIsRemote) {
  for (const bool remote : {false, true}) {
    MemoryStorage storage(remote);
    Fill(storage);
    for (const Place& place : Places()) {
      SCOPED_TRACE(place.path);
      ASSERT_OK_AND_ASSIGN(const auto dataset, OpenIn(storage, place.path, place.sequence_length));
      EXPECT_EQ(dataset->info().remote, remote);
      ASSERT_OK_AND_ASSIGN(const auto selected,
                           SelectFields(dataset, {dataset->info().fields.back().spec.name}));
      EXPECT_EQ(selected->info().remote, remote);
    }
  }
}

TEST_F(RemoteStorageTest, ReadsThatComeShortAreErrorsThatNameTheFile) {
  for (const Place& place : Places()) {
    SCOPED_TRACE(place.path);
    SetUp();
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open(place.path, place.sequence_length));
    storage_.Cut(place.file, 4);
    EXPECT_THAT(ReadOne(*dataset),
                StatusIs(Code::kDataLoss, AllOf(HasSubstr("memory:/" + place.file), HasSubstr("file ends"))));
  }
}

TEST_F(RemoteStorageTest, ReadErrorsNameTheFile) {
  for (const Place& place : Places()) {
    SCOPED_TRACE(place.path);
    SetUp();
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open(place.path, place.sequence_length));
    storage_.Break(place.file);
    const Status status = ReadOne(*dataset);
    EXPECT_EQ(status.native_error(), EIO);
    EXPECT_THAT(status.message(), HasSubstr("memory:/" + place.file));
    // The others' files may begin with a header.
    EXPECT_EQ(Open(place.path, place.sequence_length).ok(),
              place.format == "image_folder" || place.format == "manifest");
  }
}

TEST_F(RemoteStorageTest, AFileThatVanishedIsNotFound) {
  for (const Place& place : Places()) {
    SCOPED_TRACE(place.path);
    SetUp();
    ASSERT_OK_AND_ASSIGN(const auto dataset, Open(place.path, place.sequence_length));
    storage_.Remove(place.file);
    EXPECT_THAT(ReadOne(*dataset), StatusIs(Code::kNotFound, HasSubstr("memory:/" + place.file)));
  }
}

TEST_F(RemoteStorageTest, SamplesAreAskedForAheadWhereTheyLie) {
  using Ranges = MemoryStorage::Ranges;
  ASSERT_OK_AND_ASSIGN(const auto arrays, Open("arrays"));
  const uint64_t header = NpyHeaderBytes("|u1", "(4, 3)", false).size();
  EXPECT_EQ(arrays->Prefetch(1, 2, 0).bytes, 6U);
  EXPECT_EQ(storage_.AskedAhead("arrays/x.npy"), (Ranges{{header + 3, 6}}));
  EXPECT_TRUE(storage_.AskedAhead("arrays/y.npy").empty());
  ASSERT_OK_AND_ASSIGN(const auto labels, SelectFields(arrays, {arrays->info().fields[1].spec.name}));
  EXPECT_EQ(labels->Prefetch(3, 1, 0).bytes, 1U);
  EXPECT_EQ(storage_.AskedAhead("arrays/y.npy").size(), 1U);

  // Samples of one token, and the token behind each. Both fields are the same bytes.
  ASSERT_OK_AND_ASSIGN(const auto tokens, Open("tokens.bin", 1));
  EXPECT_EQ(tokens->Prefetch(1, 2, 0).bytes, 6U);
  EXPECT_EQ(tokens->Prefetch(1, 2, 1).bytes, 0U);
  EXPECT_EQ(storage_.AskedAhead("tokens.bin"), (Ranges{{2, 6}}));

  storage_.Write("spread.npy", NpyHeaderBytes("|u1", "(4, 3)", true) + "abcdefghijkl");
  ASSERT_OK_AND_ASSIGN(const auto spread, Open("spread.npy"));
  EXPECT_EQ(spread->Prefetch(0, 4, 0).bytes, 0U);
}

TEST_F(RemoteStorageTest, ADatasetForWhichThereIsNoMemoryIsRefused) {
  storage_.Exhaust("list.csv");
  EXPECT_THAT(Open("list.csv"), StatusIs(Code::kResourceExhausted,
                                         AllOf(HasSubstr("memory:/list.csv"), HasSubstr("no memory"))));
}

TEST_F(RemoteStorageTest, AReadThatHangsHoldsUpNoOther) {
  ASSERT_OK_AND_ASSIGN(const auto hung, Open("tokens.bin", 2));
  ASSERT_OK_AND_ASSIGN(const auto other, Open("arrays"));
  storage_.Hang("tokens.bin");
  Status late;
  std::thread reader = StartThread("reader", [&] { late = ReadOne(*hung); });
  storage_.AwaitHung(1);
  EXPECT_OK(ReadOne(*other));
  storage_.Resume();
  reader.join();
  EXPECT_OK(late);
}

}  // namespace
}  // namespace pinfeed
