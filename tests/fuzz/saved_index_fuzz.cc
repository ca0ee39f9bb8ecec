// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a file of saved directories or shards. What is accepted must keep its promises
// and mean the same when written again. The magic number and the checksum are put right, so that the rest is
// reached.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/formats/packed_shard.h"
#include "server/dataset/packed_entries.h"
#include "server/dataset/saved_index.h"

namespace pinfeed {
namespace {

constexpr size_t kHeaderBytes = 24;  // magic number, number of nodes, checksum

void CheckEntries(std::string_view contents) {
  if (!PackedEntries::IsValid(contents)) return;
  size_t used = 0;
  for (PackedEntries rest(contents); const std::optional<DirectoryEntry> entry = rest.Next();) {
    PF_CHECK(!entry->name.empty() && entry->name.find('/') == std::string_view::npos, "a name is one");
    PF_CHECK(entry->kind != EntryKind::kDangling, "nothing is kept of a link");
    used += 3 + entry->name.size();
  }
  PF_CHECK(used == contents.size(), "entries fill their place");
}

void CheckShard(std::string_view contents) {
  const std::optional<ShardIndex> shard = UnpackShard(contents);
  if (!shard) return;
  for (const auto& [name, parts] : shard->fields) {
    PF_CHECK(parts.size() == shard->keys.size(), "each sample has a place for each field");
    for (const ShardPart& part : parts)
      PF_CHECK(part.offset <= shard->file_bytes && part.size <= shard->file_bytes - part.offset,
               "a file lies within its shard");
  }
  PF_CHECK(PackShard(*shard) == contents, "what was accepted is the same when packed again");
}

void Check(std::string bytes) {
  const Result<SavedIndex> parsed = SavedIndex::Parse(bytes);
  if (!parsed.ok()) {
    PF_CHECK(!parsed.status().message().empty(), "an error says why");
    return;
  }
  std::vector<SavedNode> nodes;
  for (uint64_t i = 0; i < parsed->size(); ++i) {
    nodes.push_back(parsed->At(i));
    PF_CHECK(parsed->Find(nodes.back().version) == nodes.back().contents, "a node is found by its version");
    CheckEntries(nodes.back().contents);
    CheckShard(nodes.back().contents);
  }
  PF_CHECK(EncodeSavedIndex(nodes) == bytes, "what was accepted is the same when written again");
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  if (size < kHeaderBytes) return 0;
  std::vector<SavedNode> none;
  std::memcpy(bytes.data(), EncodeSavedIndex(none).data(), sizeof(uint64_t));
  uint64_t nodes = 0;
  std::memcpy(&nodes, bytes.data() + sizeof(uint64_t), sizeof(nodes));
  const uint64_t checksum = HashWords(nodes, std::string_view(bytes).substr(kHeaderBytes));
  std::memcpy(bytes.data() + 2 * sizeof(uint64_t), &checksum, sizeof(checksum));
  Check(bytes);
  return 0;
}
