// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a file of saved directories. What is accepted must keep its promises and mean the
// same when written again. The magic number and the checksum are put right, so that the rest is reached.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/dataset/fingerprint.h"
#include "server/dataset/saved_index.h"

namespace pinfeed {
namespace {

constexpr size_t kHeaderBytes = 24;  // magic number, number of directories, checksum

void Check(std::string bytes) {
  const Result<SavedIndex> parsed = SavedIndex::Parse(bytes);
  if (!parsed.ok()) {
    PF_CHECK(!parsed.status().message().empty(), "an error says why");
    return;
  }
  std::vector<SavedNode> folders;
  for (uint64_t i = 0; i < parsed->size(); ++i) {
    folders.push_back(parsed->At(i));
    std::optional<PackedEntries> found = parsed->Find(folders.back().version);
    PF_CHECK(found && found->bytes() == folders.back().entries, "a directory is found by its version");
    size_t used = 0;
    while (const std::optional<DirectoryEntry> entry = found->Next()) {
      PF_CHECK(!entry->name.empty() && entry->name.find('/') == std::string_view::npos, "a name is one");
      PF_CHECK(entry->kind != EntryKind::kDangling, "nothing is kept of a link");
      used += 3 + entry->name.size();
    }
    PF_CHECK(used == folders.back().entries.size(), "entries fill their place");
  }
  PF_CHECK(EncodeSavedIndex(folders) == bytes, "what was accepted is the same when written again");
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
  uint64_t folders = 0;
  std::memcpy(&folders, bytes.data() + sizeof(uint64_t), sizeof(folders));
  const uint64_t checksum = HashWords(folders, std::string_view(bytes).substr(kHeaderBytes));
  std::memcpy(bytes.data() + 2 * sizeof(uint64_t), &checksum, sizeof(checksum));
  Check(bytes);
  return 0;
}
