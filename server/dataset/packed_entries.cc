// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/packed_entries.h"

#include "server/dataset/little_endian.h"

namespace pinfeed {
namespace {

constexpr size_t kNameOffset = sizeof(uint8_t) + sizeof(uint16_t);  // of an entry's name

// Of kDangling nothing is saved: what a link leads to may change without its directory.
bool IsSavedKind(uint8_t kind) {
  return kind == static_cast<uint8_t>(EntryKind::kFile) ||
         kind == static_cast<uint8_t>(EntryKind::kDirectory) ||
         kind == static_cast<uint8_t>(EntryKind::kOther);
}

bool IsName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

void PackedEntries::Append(const DirectoryEntry& entry, std::string& bytes) {
  PF_CHECK(entry.name.size() <= kMaxNameBytes, "a name is too long to be packed");
  bytes += static_cast<char>(entry.kind);
  AppendAs(static_cast<uint16_t>(entry.name.size()), bytes);
  bytes += entry.name;
}

bool PackedEntries::IsValid(std::string_view bytes) {
  while (!bytes.empty()) {
    if (bytes.size() < kNameOffset || !IsSavedKind(static_cast<uint8_t>(bytes[0]))) return false;
    const size_t length = ReadAs<uint16_t>(bytes, 1);
    if (bytes.size() < kNameOffset + length || !IsName(bytes.substr(kNameOffset, length))) return false;
    bytes.remove_prefix(kNameOffset + length);
  }
  return true;
}

std::optional<DirectoryEntry> PackedEntries::Next() {
  if (bytes_.empty()) return std::nullopt;
  const size_t length = ReadAs<uint16_t>(bytes_, 1);
  const DirectoryEntry entry{bytes_.substr(kNameOffset, length), static_cast<EntryKind>(bytes_[0])};
  bytes_.remove_prefix(kNameOffset + length);
  return entry;
}

}  // namespace pinfeed
