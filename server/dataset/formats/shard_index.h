// SPDX-License-Identifier: Apache-2.0
// Where the samples of tar shards lie. In: a directory and the names of its archives. Out: for each of them,
// the samples with the place of each of their files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "server/dataset/index_store.h"
#include "server/dataset/packed_names.h"
#include "server/storage/storage.h"

namespace pinfeed {

inline constexpr std::string_view kShardImageField = "image";
inline constexpr std::string_view kShardLabelField = "label";
inline constexpr size_t kMaxShardFields = 256;

// Where a file of a sample lies in its shard.
struct ShardPart {
  uint64_t offset = 0;  // 0: the sample lacks the file, since each archive begins with a header
  uint64_t size = 0;
  bool exists() const { return offset != 0; }
};

// One archive. Neighbouring files of one key are a sample; a key is a file's path up to the first dot of its
// name, and the rest, in lower case, is its extension.
struct ShardIndex {
  std::string name;                    // relative to the dataset; empty: the dataset is this archive
  uint64_t file_bytes = 0;             // of the archive
  int64_t changed_ns = 0;              // of the archive, see RandomAccessFile
  std::optional<FileVersion> version;  // of the archive, if its storage has versions
  PackedNames keys;                    // by sample
  uint64_t passed_over = 0;  // files that belong to no sample: hidden ones, and those without an extension
  // By the field that the extension becomes, a part for each sample.
  std::map<std::string, std::vector<ShardPart>, std::less<>> fields;
  std::vector<int64_t> labels;  // by sample, of the label files; empty: some are lacking, or no integers
};

// What a label file says. Empty: it is no integer. Reads at most kMaxLabelBytes of it.
inline constexpr uint64_t kMaxLabelBytes = 64;
std::optional<int64_t> ParseLabel(std::string_view file);

// Whether a field of a shard may have this name.
bool IsShardField(std::string_view name);

// Reads the headers of all archives, by several threads, but for those that have not changed since `store`
// (null: none) kept what they have. `now_ns`: Unix time. While that lasts, the log says every few seconds how
// far it is. Of several errors, the one of the first archive: those of TarReader and of the storage;
// kInvalidArgument for samples that have two files of one kind, or files that cannot be a field.
Result<std::vector<ShardIndex>> IndexShards(const Location& base, const std::vector<std::string>& names,
                                            IndexStore* store = nullptr, int64_t now_ns = UnixNanoseconds());

}  // namespace pinfeed
