// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/packed_shard.h"

#include <cstring>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

ShardIndex Shard() {
  ShardIndex shard;
  shard.file_bytes = 10'240;
  shard.passed_over = 3;
  for (const char* key : {"cats/1", "cats/2", "\xFF"}) shard.keys.Add(key);
  shard.fields["image"] = {{512, 700}, {2048, 0}, {4096, 6144}};
  shard.fields["label"] = {{1536, 1}, {}, {10'240, 0}};
  shard.labels = {7, -1, INT64_MAX};
  return shard;
}

TEST(PackedShardTest, GivesWhatWasPacked) {
  const std::string bytes = PackShard(Shard());
  EXPECT_EQ(bytes.size(), PackedShardBytes(Shard()));
  const std::optional<ShardIndex> shard = UnpackShard(bytes);
  ASSERT_TRUE(shard.has_value());
  EXPECT_EQ(shard->file_bytes, 10'240U);
  EXPECT_EQ(shard->passed_over, 3U);
  ASSERT_EQ(shard->keys.size(), 3U);
  EXPECT_EQ(shard->keys[1], "cats/2");
  EXPECT_EQ(shard->keys[2], "\xFF");
  ASSERT_EQ(shard->fields.size(), 2U);
  EXPECT_EQ(shard->fields.at("image")[2].offset, 4096U);
  EXPECT_EQ(shard->fields.at("image")[2].size, 6144U);
  EXPECT_FALSE(shard->fields.at("label")[1].exists());
  EXPECT_EQ(shard->labels, Shard().labels);
  EXPECT_EQ(PackShard(*shard), bytes);
  EXPECT_TRUE(UnpackShard(PackShard(ShardIndex())).has_value());
}

TEST(PackedShardTest, BytesThatEndTooEarlyOrTooLateAreNoShard) {
  const std::string bytes = PackShard(Shard());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(UnpackShard(bytes.substr(0, size)).has_value()) << size;
  EXPECT_FALSE(UnpackShard(bytes + '\0').has_value());
}

TEST(PackedShardTest, WhatLiesOutsideTheShardIsRefused) {
  for (const ShardPart part : {ShardPart{0, 1}, ShardPart{10'241, 0}, ShardPart{10'000, 241},
                               ShardPart{512, UINT64_MAX}, ShardPart{UINT64_MAX, 2}}) {
    ShardIndex shard = Shard();
    shard.fields["label"][1] = part;
    EXPECT_FALSE(UnpackShard(PackShard(shard)).has_value()) << part.offset << " " << part.size;
  }
}

TEST(PackedShardTest, ImpossibleNamesAndNumbersAreRefused) {
  ShardIndex shard = Shard();
  shard.fields["sample_path"] = shard.fields["image"];
  EXPECT_FALSE(UnpackShard(PackShard(shard)).has_value());
  shard = Shard();
  shard.keys.Add("");
  for (auto& [name, parts] : shard.fields) parts.resize(4);
  EXPECT_FALSE(UnpackShard(PackShard(shard)).has_value());
  shard = Shard();
  shard.fields.clear();  // no sample is without a file
  EXPECT_FALSE(UnpackShard(PackShard(shard)).has_value());
  shard = Shard();
  shard.fields.erase("label");
  EXPECT_FALSE(UnpackShard(PackShard(shard)).has_value());
  for (const size_t offset : {16, 24, 32, 40}) {  // samples, bytes of keys, fields, labels
    for (const uint64_t value :
         {uint64_t{1}, uint64_t{4}, uint64_t{1} << 32, uint64_t{1} << 62, UINT64_MAX}) {
      std::string bytes = PackShard(Shard());
      std::memcpy(bytes.data() + offset, &value, sizeof(value));
      EXPECT_FALSE(UnpackShard(bytes).has_value()) << offset << " " << value;
    }
  }
}

}  // namespace
}  // namespace pinfeed
