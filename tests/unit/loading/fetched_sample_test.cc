// SPDX-License-Identifier: Apache-2.0
#include "server/loading/fetched_sample.h"

#include <new>
#include <vector>

#include "tests/support/testing.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

std::vector<std::byte> Bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Has no memory for any sample.
class HugeDataset final : public Dataset {
 public:
  explicit HugeDataset(const Dataset& like) : info_(like.info()) {}
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t, size_t, std::span<std::byte>) const override { throw std::bad_alloc(); }
  Status ReadBytes(uint64_t, size_t, std::vector<std::byte>&) const override { throw std::bad_alloc(); }
  std::string Describe(uint64_t id) const override { return "huge " + std::to_string(id); }

 private:
  const DatasetInfo info_;
};

TEST(FetchedSampleTest, GivesTheBytesOfEveryField) {
  for (const bool encoded : {false, true}) {
    std::vector<Field> fields = {TensorField("a", DType::kUint8, {2}), TensorField("b", DType::kUint8, {3})};
    if (encoded) fields.push_back(EncodedField("file"));
    std::vector<std::vector<std::byte>> second = {Bytes("12"), Bytes("345")};
    if (encoded) second.push_back(Bytes("a file"));
    const MemoryDataset dataset(fields, {second, second});
    const auto sample = FetchedSample::Fetch(dataset, 1);
    EXPECT_EQ(sample->info().fields.size(), fields.size());
    EXPECT_EQ(sample->Describe(1), "memory/1");
    for (size_t field = 0; field < fields.size(); ++field) {
      std::vector<std::byte> bytes(field < 2 ? second[field].size() : 0);
      ASSERT_OK(field < 2 ? sample->ReadTensor(1, field, bytes) : sample->ReadBytes(1, field, bytes));
      EXPECT_EQ(bytes, second[field]);
    }
  }
}

// Whichever field it was that could not be read: what the others hold is of no use then.
TEST(FetchedSampleTest, EveryReadGivesTheErrorOfTheFetch) {
  const MemoryDataset cut({EncodedField("file"), TensorField("label", DType::kUint8, {2})},
                          {{Bytes("a file"), Bytes("1")}});
  const HugeDataset huge(cut);
  std::vector<std::byte> bytes(2);
  const auto first = FetchedSample::Fetch(cut, 0);
  const Status status = first->ReadTensor(0, 1, bytes);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(first->ReadBytes(0, 0, bytes).message(), status.message());
  EXPECT_THAT(FetchedSample::Fetch(huge, 0)->ReadBytes(0, 0, bytes),
              StatusIs(Code::kResourceExhausted, HasSubstr("no memory to read the sample")));
}

}  // namespace
}  // namespace pinfeed
