// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/shard_index.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <semaphore>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/ascii_case.h"
#include "common/base/log.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "common/base/sync.h"
#include "common/os/start_thread.h"
#include "server/dataset/dataset.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/formats/packed_shard.h"
#include "server/dataset/formats/tar_reader.h"
#include "server/memory/index_memory.h"

namespace pinfeed {
namespace {

// Most of the time is waiting for a disk.
constexpr size_t kIndexThreads = 16;
constexpr std::chrono::seconds kReportEvery(5);
constexpr uint64_t kAskedAheadBytes = 4096;
constexpr int kTriesAtRest = 10;       // to find an archive that is not being written
constexpr uint64_t kFieldBytes = 256;  // of a field of a shard, besides its name and its parts

struct MemberName {
  std::string_view key;
  std::string extension;  // in lower case
};

// Nothing for a file that belongs to no sample.
std::optional<MemberName> Split(std::string_view name) {
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == base || dot + 1 == name.size()) return std::nullopt;
  // What programs store about the archive itself: __NAME__ or __NAME__/...
  const std::string_view first = name.substr(0, name.find('/'));
  if (first.size() >= 4 && first.starts_with("__") && first.ends_with("__")) return std::nullopt;
  std::string extension(name.substr(dot + 1));
  std::ranges::transform(extension, extension.begin(), AsciiLower);
  return MemberName{name.substr(0, dot), std::move(extension)};
}

// Kept indexes contain these names. If the mapping changes, kIndexMagic (saved_index.cc) must change, too.
std::string FieldOf(const std::string& extension) {
  if (HasExtension("." + extension, kImageExtensions) && extension.find('.') == std::string::npos)
    return std::string(kShardImageField);
  return extension == "cls" ? std::string(kShardLabelField) : extension;
}

// Why files of this extension can be no field; empty if they can.
std::string FieldFault(std::string_view extension) {
  constexpr std::array<std::string_view, 3> kTaken = {kShardImageField, kShardLabelField, kSamplePathField};
  if (std::ranges::find(kTaken, extension) != kTaken.end())
    return "cannot be a field, since the name of its extension is that of another one; name labels KEY.cls, "
           "images KEY.jpg, KEY.png or KEY.webp, and others by another extension";
  if (extension.find('.') == std::string::npos &&
      HasExtension("." + std::string(extension), kUnsupportedImageExtensions))
    return "is an image of an unsupported format; convert it to JPEG, PNG or WebP";
  if (!IsFieldName(extension))
    return "its extension must be text without control characters, quotes or backslashes";
  return {};
}

// Purpose: what all shards of a dataset have together. Threads: any.
class SharedIndex {
 public:
  SharedIndex(const Location& base, IndexStore* store) {
    const MutexLock lock(mutex_);  // for the analysis
    if (store != nullptr) kept_ = store->Load(NodesOf::kShards, base.path(), memory_);
  }

  // Asks for memory. Of each shard alone, some would be taken without asking.
  Status Add(uint64_t bytes) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return memory_.Add(bytes);
  }
  // Returns the name by which the file was indexed before, or nothing.
  std::optional<std::string> Known(const FileVersion& file, const std::string& name) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto [known, is_new] = names_.emplace(NodeId{file.device, file.inode}, name);
    return is_new ? std::nullopt : std::optional(known->second);
  }
  // From an earlier open.
  const std::optional<SavedIndex>& kept() const { return kept_; }
  void Save(IndexStore& store, const std::string& dataset, std::vector<SavedNode>& nodes)
      PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    store.Save(NodesOf::kShards, dataset, nodes, memory_);
  }

 private:
  std::optional<SavedIndex> kept_;
  Mutex mutex_;
  IndexMemory memory_ PF_GUARDED_BY(mutex_);
  std::map<NodeId, std::string> names_ PF_GUARDED_BY(mutex_);
};

// Purpose: makes the index of one shard, file by file.
class ShardReader {
 public:
  ShardReader(std::string path, SharedIndex& shared) : path_(std::move(path)), shared_(shared) {}

  Result<ShardIndex> Read(const RandomAccessFile& file) {
    shard_.file_bytes = file.size();
    TarReader archive(file);
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<TarMember> member, archive.Next());
      if (!member) break;
      RETURN_IF_ERROR(Add(*member, archive));
    }
    if (shard_.labels.size() != shard_.keys.size()) shard_.labels.clear();
    shard_.labels.shrink_to_fit();
    for (auto& [field, parts] : shard_.fields) {
      parts.resize(shard_.keys.size());
      parts.shrink_to_fit();
    }
    return std::move(shard_);
  }

 private:
  Status Add(const TarMember& member, TarReader& archive) {
    const std::optional<MemberName> name = Split(member.name);
    if (!name) {
      ++shard_.passed_over;
      return OkStatus();
    }
    const auto fault = [&](const std::string& what) {
      return InvalidArgument("index " + QuotePath(path_) + ": " + QuotePath(member.name) + " " + what);
    };
    const uint64_t samples = shard_.keys.size();
    if (samples == 0 || shard_.keys[samples - 1] != name->key) {
      // The lists may move while they grow.
      RETURN_IF_ERROR(
          Ask(2 * (name->key.size() + sizeof(uint32_t) + shard_.fields.size() * sizeof(ShardPart))));
      if (shard_.keys.bytes() + name->key.size() > PackedNames::kMaxBytes)
        return fault("is one of too many: their names have more than 4 GiB; make smaller shards");
      shard_.keys.Add(name->key);
    }
    const std::string field = FieldOf(name->extension);
    auto found = shard_.fields.find(field);
    if (found == shard_.fields.end()) {
      if (const std::string why = FieldFault(name->extension); !why.empty()) return fault(why);
      if (shard_.fields.size() == kMaxShardFields)
        return fault("has another extension than " + std::to_string(kMaxShardFields) +
                     " others; a name ends at its first dot, and what follows is the kind of the file");
      RETURN_IF_ERROR(Ask(kFieldBytes + name->extension.size() + 2 * shard_.keys.size() * sizeof(ShardPart)));
      found = shard_.fields.emplace(field, std::vector<ShardPart>()).first;
    }
    std::vector<ShardPart>& parts = found->second;
    if (parts.size() == shard_.keys.size())
      return fault("is the second file of its sample for the field " + QuotePath(field) +
                   "; a sample has one of each kind: name a mask KEY.mask.png");
    parts.resize(shard_.keys.size() - 1);
    parts.push_back({member.offset, member.size});
    return field == kShardLabelField ? AddLabel(member, archive) : OkStatus();
  }

  Status AddLabel(const TarMember& member, TarReader& archive) {
    const bool complete = shard_.labels.size() + 1 == shard_.keys.size();
    if (!complete || member.size > kMaxLabelBytes) return OkStatus();
    std::string text(member.size, '\0');
    RETURN_IF_ERROR(archive.ReadStart(member, std::as_writable_bytes(std::span(text))));
    const std::optional<int64_t> label = ParseLabel(text);
    if (!label) return OkStatus();
    RETURN_IF_ERROR(Ask(2 * sizeof(*label)));
    shard_.labels.push_back(*label);
    return OkStatus();
  }

  // Asks for some at a time, since other threads do so, too.
  Status Ask(uint64_t bytes) {
    if (bytes > asked_) {
      RETURN_IF_ERROR(shared_.Add(bytes + kAskedAheadBytes).WithContext("index " + QuotePath(path_)));
      asked_ += bytes + kAskedAheadBytes;
    }
    asked_ -= bytes;
    return OkStatus();
  }

  const std::string path_;
  ShardIndex shard_;
  SharedIndex& shared_;
  uint64_t asked_ = 0;  // and not taken yet
};

// A shard, and what is to be kept of it.
struct Found {
  ShardIndex shard;
  std::optional<NodeVersion> version;  // empty: nothing is
  bool recalled = false;               // it was kept before
};

// Its version, if what lies there has lain there for long. The times are those at which a write began, and
// one write(2) may take minutes: what is read meanwhile is of both.
std::optional<NodeVersion> SettledVersion(const RandomAccessFile& file, int64_t now_ns) {
  constexpr std::chrono::nanoseconds kLong = std::chrono::hours(1);
  const std::optional<NodeVersion> version = file.lasting_version();
  const bool settled =
      version && std::max(version->modified_ns, version->changed_ns) <= now_ns - kLong.count();
  return settled ? version : std::nullopt;
}

// Empty: it was not kept, or the file has changed.
Result<std::optional<ShardIndex>> Recall(const RandomAccessFile& file,
                                         const std::optional<NodeVersion>& version, SharedIndex& shared) {
  std::optional<ShardIndex> none;
  const std::optional<SavedIndex>& kept = shared.kept();
  const std::optional<std::string_view> packed = kept && version ? kept->Find(*version) : std::nullopt;
  if (!packed) return none;
  RETURN_IF_ERROR(shared.Add(packed->size()));
  std::optional<ShardIndex> shard = UnpackShard(*packed);
  return shard && shard->file_bytes == file.size() ? std::move(shard) : none;
}

// Opens an archive that will have another time if it changes once more: behind the tick of the clock in which
// it changed last.
Result<std::unique_ptr<const RandomAccessFile>> OpenAtRest(const Location& base, const std::string& name) {
  std::optional<int64_t> waited_behind;
  for (int tries = 0; tries < kTriesAtRest; ++tries) {
    ASSIGN_OR_RETURN(std::unique_ptr<const RandomAccessFile> file, base.OpenFile(name));
    const int64_t changed_ns = file->changed_ns();
    const int64_t tick = LatestChange(changed_ns) - changed_ns;
    // A time ahead of this clock is that of another one: a whole tick passes from when it was seen.
    const int64_t age = std::max<int64_t>(0, UnixNanoseconds() - changed_ns);
    if (age >= tick || waited_behind == changed_ns) return file;
    std::this_thread::sleep_for(std::chrono::nanoseconds(tick - age));
    waited_behind = changed_ns;
  }
  return DataLoss("index " + QuotePath(base.FullPath(name)) +
                  ": it is being written; open it when it is complete");
}

Result<Found> IndexShard(const Location& base, const std::string& name, SharedIndex& shared, int64_t now_ns) {
  try {
    ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, OpenAtRest(base, name));
    const std::optional<FileVersion> version = file->version();
    if (const auto known = version ? shared.Known(*version, name) : std::nullopt) {
      const auto [first, second] = std::minmax(*known, name);  // which came first depends on the threads
      return InvalidArgument("index " + QuotePath(base.path()) + ": " + QuotePath(first) + " and " +
                             QuotePath(second) + " are the same file by a link; remove one of them");
    }
    Found found;
    found.version = SettledVersion(*file, now_ns);
    ASSIGN_OR_RETURN(std::optional<ShardIndex> shard, Recall(*file, found.version, shared));
    found.recalled = shard.has_value();
    if (!shard) {
      ASSIGN_OR_RETURN(shard, ShardReader(base.FullPath(name), shared).Read(*file));
    }
    found.shard = *std::move(shard);
    found.shard.name = name;
    found.shard.changed_ns = file->changed_ns();
    found.shard.version = version;
    return found;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("index " + QuotePath(base.FullPath(name)) +
                             ": no memory (std::bad_alloc); give the daemon more memory");
  }
}

// Keeps what was found for the next open, if that would have to read anything again.
Status Keep(const std::vector<Found>& found, SharedIndex& shared, const Location& base, IndexStore& store) {
  size_t kept = 0;
  size_t read = 0;
  uint64_t packed_bytes = 0;
  for (const Found& one : found) {
    if (!one.version) continue;
    ++kept;
    if (one.recalled) continue;
    ++read;
    packed_bytes += PackedShardBytes(one.shard);
  }
  if (read == 0 && kept >= (shared.kept() ? shared.kept()->size() : 0)) return OkStatus();
  if (packed_bytes > IndexStore::kMaxFileBytes)
    return ResourceExhausted("it takes more than " + std::to_string(IndexStore::kMaxFileBytes) + " bytes");
  try {
    RETURN_IF_ERROR(shared.Add(packed_bytes));
    std::vector<std::string> packed;
    std::vector<SavedNode> nodes;
    packed.reserve(read);
    for (const Found& one : found) {
      if (!one.version) continue;
      if (!one.recalled) packed.push_back(PackShard(one.shard));
      nodes.push_back({*one.version, one.recalled ? *shared.kept()->Find(*one.version) : packed.back()});
    }
    shared.Save(store, base.path(), nodes);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("there is no memory for its " + std::to_string(packed_bytes) + " bytes");
  }
  return OkStatus();
}

}  // namespace

std::optional<int64_t> ParseLabel(std::string_view file) {
  if (file.size() > kMaxLabelBytes) return std::nullopt;
  return ParseNumber<int64_t>(Trim(file, " \t\r\n"));
}

bool IsShardField(std::string_view name) {
  return name == kShardImageField || name == kShardLabelField || FieldFault(name).empty();
}

Result<std::vector<ShardIndex>> IndexShards(const Location& base, const std::vector<std::string>& names,
                                            IndexStore* store, int64_t now_ns) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::optional<Result<Found>>> results(names.size());
  SharedIndex shared(base, store);
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= names.size()) return;
      results[i] = IndexShard(base, names[i], shared, now_ns);
      if (!results[i]->ok()) failed.store(true, std::memory_order_relaxed);
      done.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::counting_semaphore<> ended(0);
  std::vector<std::thread> threads;
  try {
    while (threads.size() < std::min(kIndexThreads, names.size()))
      threads.push_back(StartThread("scan", [&] {
        work();
        ended.release();
      }));
  } catch (const std::system_error&) {  // those that run do all of it
    if (threads.empty()) work();
  }
  for (size_t left = threads.size(); left > 0;) {
    if (ended.try_acquire_for(kReportEvery))
      --left;
    else
      spdlog::info("indexing {}: {} of {} shards are done", QuotePath(base.path()), done.load(),
                   names.size());
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Found> found;
  found.reserve(names.size());
  // Shards begin in order, so those before the first error were begun, and are complete.
  for (std::optional<Result<Found>>& result : results) {
    RETURN_IF_ERROR(result->status());
    found.push_back(*std::move(*result));
  }
  const auto recalled = std::ranges::count_if(found, &Found::recalled);
  spdlog::info("indexed {}: {} shards were read, {} had not changed; {} ms", QuotePath(base.path()),
               names.size() - static_cast<size_t>(recalled), recalled,
               std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began)
                   .count());
  if (const Status kept = store != nullptr ? Keep(found, shared, base, *store) : OkStatus(); !kept.ok())
    spdlog::warn("the index of {} is not kept, so the next open reads all headers again: {}",
                 QuotePath(base.path()), kept.message());
  std::vector<ShardIndex> shards;
  shards.reserve(names.size());
  for (Found& one : found) shards.push_back(std::move(one.shard));
  return shards;
}

}  // namespace pinfeed
