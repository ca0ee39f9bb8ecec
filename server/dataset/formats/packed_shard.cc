// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/packed_shard.h"

#include <cstring>
#include <utility>
#include <vector>

#include "server/dataset/little_endian.h"

namespace pinfeed {
namespace {

struct PackedHeader {
  uint64_t file_bytes;
  uint64_t passed_over;
  uint64_t samples;
  uint64_t key_bytes;
  uint64_t fields;
  uint64_t labels;  // one for each sample, or none
};

// Purpose: takes what is next from bytes that may end too early. Each method is empty then.
class Bytes {
 public:
  explicit Bytes(std::string_view rest) : rest_(rest) {}

  std::optional<std::string_view> Text(uint64_t size) {
    if (size > rest_.size()) return std::nullopt;
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }
  template <typename T>
  std::optional<T> Value() {
    const std::optional<std::string_view> text = Text(sizeof(T));
    return text ? std::optional(ReadAs<T>(*text, 0)) : std::nullopt;
  }
  template <typename T>
  std::optional<std::vector<T>> Values(uint64_t count) {
    static_assert(std::has_unique_object_representations_v<T>);
    if (count > rest_.size() / sizeof(T)) return std::nullopt;
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
    return values;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

bool IsPossible(const ShardPart& part, uint64_t file_bytes) {
  if (!part.exists()) return part.size == 0;
  return part.offset <= file_bytes && part.size <= file_bytes - part.offset;
}

}  // namespace

uint64_t PackedShardBytes(const ShardIndex& shard) {
  uint64_t bytes = sizeof(PackedHeader) + PackedNames::MemoryOf(shard.keys.size(), shard.keys.bytes());
  for (const auto& [name, parts] : shard.fields)
    bytes += sizeof(uint32_t) + name.size() + parts.size() * sizeof(ShardPart);
  return bytes + shard.labels.size() * sizeof(int64_t);
}

std::string PackShard(const ShardIndex& shard) {
  std::string bytes;
  bytes.reserve(PackedShardBytes(shard));
  const PackedNames& keys = shard.keys;
  AppendAs(PackedHeader{shard.file_bytes, shard.passed_over, keys.size(), keys.bytes(), shard.fields.size(),
                        shard.labels.size()},
           bytes);
  uint32_t end = 0;
  for (uint64_t i = 0; i < keys.size(); ++i) AppendAs(end += static_cast<uint32_t>(keys[i].size()), bytes);
  for (uint64_t i = 0; i < keys.size(); ++i) bytes += keys[i];
  for (const auto& [name, parts] : shard.fields) {
    AppendAs(static_cast<uint32_t>(name.size()), bytes);
    bytes += name;
    for (const ShardPart& part : parts) AppendAs(part, bytes);
  }
  for (const int64_t label : shard.labels) AppendAs(label, bytes);
  return bytes;
}

std::optional<ShardIndex> UnpackShard(std::string_view packed) {
  Bytes bytes(packed);
  const std::optional<PackedHeader> header = bytes.Value<PackedHeader>();
  if (!header || header->key_bytes > PackedNames::kMaxBytes || header->fields > kMaxShardFields)
    return std::nullopt;
  if ((header->fields == 0) != (header->samples == 0)) return std::nullopt;  // each sample has a file
  ShardIndex shard;
  shard.file_bytes = header->file_bytes;
  shard.passed_over = header->passed_over;
  const auto ends = bytes.Values<uint32_t>(header->samples);
  const auto keys = bytes.Text(header->key_bytes);
  if (!ends || !keys) return std::nullopt;
  shard.keys.Reserve(header->samples, header->key_bytes);
  uint32_t begin = 0;
  for (const uint32_t end : *ends) {
    if (end <= begin || end > keys->size()) return std::nullopt;  // no key is empty
    shard.keys.Add(keys->substr(begin, end - begin));
    begin = end;
  }
  if (begin != keys->size()) return std::nullopt;
  for (uint64_t i = 0; i < header->fields; ++i) {
    const std::optional<uint32_t> length = bytes.Value<uint32_t>();
    const auto name = length ? bytes.Text(*length) : std::nullopt;
    auto parts = name ? bytes.Values<ShardPart>(header->samples) : std::nullopt;
    if (!parts || !IsShardField(*name)) return std::nullopt;
    if (!shard.fields.empty() && shard.fields.rbegin()->first >= *name) return std::nullopt;
    for (const ShardPart& part : *parts)
      if (!IsPossible(part, header->file_bytes)) return std::nullopt;
    shard.fields.emplace_hint(shard.fields.end(), *name, *std::move(parts));
  }
  // Samples without label files have none.
  if (header->labels > 0 && (header->labels != header->samples || !shard.fields.contains(kShardLabelField)))
    return std::nullopt;
  auto labels = bytes.Values<int64_t>(header->labels);
  if (!labels || !bytes.at_end()) return std::nullopt;
  shard.labels = *std::move(labels);
  return shard;
}

}  // namespace pinfeed
