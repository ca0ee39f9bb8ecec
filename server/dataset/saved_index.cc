// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/saved_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/dataset/fingerprint.h"
#include "server/dataset/little_endian.h"

namespace pinfeed {
namespace {

constexpr uint64_t kIndexMagic = 0x32307364'6c6f4670;  // "pFolds02"; another layout or meaning takes another

struct Header {
  uint64_t magic;
  uint64_t nodes;
  uint64_t checksum;
};

struct Record {
  NodeVersion version;
  uint64_t end;  // of its contents, from the first of all
};
static_assert(sizeof(Record) == kSavedNodeBytes);

Status Damaged(std::string_view why) {
  return DataLoss("the kept index is damaged: " + std::string(why));
}

}  // namespace

uint64_t SavedIndexBytes(const std::vector<SavedNode>& nodes) {
  uint64_t bytes = sizeof(Header);
  for (const SavedNode& node : nodes) bytes += sizeof(Record) + node.contents.size();
  return bytes;
}

std::string EncodeSavedIndex(std::vector<SavedNode>& nodes) {
  std::ranges::sort(nodes, {}, &SavedNode::version);
  const auto same_version = [](const SavedNode& a, const SavedNode& b) { return a.version == b.version; };
  nodes.erase(std::unique(nodes.begin(), nodes.end(), same_version), nodes.end());
  std::string bytes;
  bytes.reserve(SavedIndexBytes(nodes));
  bytes.resize(sizeof(Header));
  uint64_t end = 0;
  for (const SavedNode& node : nodes) AppendAs(Record{node.version, end += node.contents.size()}, bytes);
  for (const SavedNode& node : nodes) bytes += node.contents;
  const std::string_view rest = std::string_view(bytes).substr(sizeof(Header));
  const Header header{kIndexMagic, nodes.size(), HashWords(nodes.size(), rest)};
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

Result<SavedIndex> SavedIndex::Parse(std::string bytes) {
  if (bytes.size() < sizeof(Header)) return Damaged("it is too short");
  const auto header = ReadAs<Header>(bytes, 0);
  if (header.magic != kIndexMagic) return Damaged("it does not start as it should");
  const std::string_view rest = std::string_view(bytes).substr(sizeof(Header));
  if (header.nodes > rest.size() / sizeof(Record)) return Damaged("records are missing");
  if (HashWords(header.nodes, rest) != header.checksum) return Damaged("its checksum is wrong");
  SavedIndex saved(std::move(bytes), header.nodes);
  const uint64_t contents_bytes = rest.size() - header.nodes * sizeof(Record);
  uint64_t end = 0;
  for (uint64_t i = 0; i < saved.nodes_; ++i) {
    const auto record = ReadAs<Record>(saved.bytes_, sizeof(Header) + i * sizeof(Record));
    if (record.end < end || record.end > contents_bytes) return Damaged("contents lie outside");
    if (i > 0 && saved.At(i - 1).version >= record.version) return Damaged("records are not in order");
    end = record.end;
  }
  if (end != contents_bytes) return Damaged("bytes are left over");
  return saved;
}

SavedNode SavedIndex::At(uint64_t i) const {
  const auto record = [&](uint64_t at) {
    return ReadAs<Record>(bytes_, sizeof(Header) + at * sizeof(Record));
  };
  const uint64_t begin = i == 0 ? 0 : record(i - 1).end;
  const std::string_view contents = std::string_view(bytes_).substr(sizeof(Header) + nodes_ * sizeof(Record));
  return {record(i).version, contents.substr(begin, record(i).end - begin)};
}

std::optional<std::string_view> SavedIndex::Find(const NodeVersion& version) const {
  uint64_t begin = 0;
  uint64_t end = nodes_;
  while (begin < end) {
    const uint64_t middle = begin + (end - begin) / 2;
    if (At(middle).version < version)
      begin = middle + 1;
    else
      end = middle;
  }
  if (begin == nodes_ || At(begin).version != version) return std::nullopt;
  return At(begin).contents;
}

}  // namespace pinfeed
