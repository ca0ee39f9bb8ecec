// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/saved_index.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "server/dataset/fingerprint.h"

namespace pinfeed {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr uint64_t kFoldersMagic =
    0x31307364'6c6f4670;  // "pFolds01"; another layout or meaning takes another

constexpr size_t kNameOffset = sizeof(uint8_t) + sizeof(uint16_t);  // of an entry's name

struct Header {
  uint64_t magic;
  uint64_t folders;
  uint64_t checksum;
};

struct Record {
  NodeVersion version;
  uint64_t end;  // of its entries, from the first entry of all
};
static_assert(std::has_unique_object_representations_v<Record> && sizeof(Record) == kSavedNodeBytes);

template <typename T>
T ReadAs(std::string_view bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void AppendAs(const T& value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

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

Status Damaged(std::string_view why) {
  return DataLoss("the saved directories are damaged: " + std::string(why));
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

uint64_t SavedIndexBytes(const std::vector<SavedNode>& folders) {
  uint64_t bytes = sizeof(Header);
  for (const SavedNode& folder : folders) bytes += sizeof(Record) + folder.entries.size();
  return bytes;
}

std::string EncodeSavedIndex(std::vector<SavedNode>& folders) {
  std::ranges::sort(folders, {}, &SavedNode::version);
  const auto same_version = [](const SavedNode& a, const SavedNode& b) { return a.version == b.version; };
  folders.erase(std::unique(folders.begin(), folders.end(), same_version), folders.end());
  std::string bytes;
  bytes.reserve(SavedIndexBytes(folders));
  bytes.resize(sizeof(Header));
  uint64_t end = 0;
  for (const SavedNode& folder : folders)
    AppendAs(Record{folder.version, end += folder.entries.size()}, bytes);
  for (const SavedNode& folder : folders) bytes += folder.entries;
  const std::string_view rest = std::string_view(bytes).substr(sizeof(Header));
  const Header header{kFoldersMagic, folders.size(), HashWords(folders.size(), rest)};
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

Result<SavedIndex> SavedIndex::Parse(std::string bytes) {
  if (bytes.size() < sizeof(Header)) return Damaged("they are too short");
  const auto header = ReadAs<Header>(bytes, 0);
  if (header.magic != kFoldersMagic) return Damaged("they do not start as they should");
  const std::string_view rest = std::string_view(bytes).substr(sizeof(Header));
  if (header.folders > rest.size() / sizeof(Record)) return Damaged("directories are missing");
  if (HashWords(header.folders, rest) != header.checksum) return Damaged("their checksum is wrong");
  SavedIndex saved(std::move(bytes), header.folders);
  const uint64_t entries_bytes = rest.size() - header.folders * sizeof(Record);
  uint64_t end = 0;
  for (uint64_t i = 0; i < saved.folders_; ++i) {
    const auto record = ReadAs<Record>(saved.bytes_, sizeof(Header) + i * sizeof(Record));
    if (record.end < end || record.end > entries_bytes) return Damaged("entries lie outside");
    if (i > 0 && saved.At(i - 1).version >= record.version) return Damaged("directories are not in order");
    if (!PackedEntries::IsValid(saved.At(i).entries)) return Damaged("a name is impossible");
    end = record.end;
  }
  if (end != entries_bytes) return Damaged("bytes are left over");
  return saved;
}

SavedNode SavedIndex::At(uint64_t i) const {
  const auto record = [&](uint64_t at) {
    return ReadAs<Record>(bytes_, sizeof(Header) + at * sizeof(Record));
  };
  const uint64_t begin = i == 0 ? 0 : record(i - 1).end;
  const std::string_view entries =
      std::string_view(bytes_).substr(sizeof(Header) + folders_ * sizeof(Record));
  return {record(i).version, entries.substr(begin, record(i).end - begin)};
}

std::optional<PackedEntries> SavedIndex::Find(const NodeVersion& version) const {
  uint64_t begin = 0;
  uint64_t end = folders_;
  while (begin < end) {
    const uint64_t middle = begin + (end - begin) / 2;
    if (At(middle).version < version)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == folders_ || At(begin).version != version) return std::nullopt;
  return PackedEntries(At(begin).entries);
}

}  // namespace pinfeed
