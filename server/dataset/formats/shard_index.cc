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
#include "common/base/quote.h"
#include "common/base/sync.h"
#include "common/os/start_thread.h"
#include "server/dataset/dataset.h"
#include "server/dataset/file_kinds.h"
#include "server/dataset/formats/tar_reader.h"
#include "server/memory/index_memory.h"

namespace pinfeed {
namespace {

// Most of the time is waiting for a disk.
constexpr size_t kIndexThreads = 16;
constexpr std::chrono::seconds kReportEvery(5);
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

std::string FieldOf(const std::string& extension) {
  if (HasExtension("." + extension, kImageExtensions) && extension.find('.') == std::string::npos)
    return std::string(kShardImageField);
  return extension == "cls" ? std::string(kShardLabelField) : extension;
}

// Why files of this extension can be no field; empty if they can.
std::string FieldFault(const std::string& extension) {
  constexpr std::array<std::string_view, 3> kTaken = {kShardImageField, kShardLabelField, kSamplePathField};
  if (std::ranges::find(kTaken, extension) != kTaken.end())
    return "cannot be a field, since the name of its extension is that of another one; name labels KEY.cls, "
           "images KEY.jpg or KEY.png, and others by another extension";
  if (extension.find('.') == std::string::npos && HasExtension("." + extension, kUnsupportedImageExtensions))
    return "is an image of an unsupported format; convert it to JPEG or PNG";
  if (!IsFieldName(extension))
    return "its extension must be text without control characters, quotes or backslashes";
  return {};
}

// Purpose: what all shards of a dataset have together. Threads: any.
class SharedIndex {
 public:
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

 private:
  Mutex mutex_;
  IndexMemory memory_ PF_GUARDED_BY(mutex_);
  std::map<NodeId, std::string> names_ PF_GUARDED_BY(mutex_);
};

// Purpose: makes the index of one shard, file by file.
class ShardReader {
 public:
  ShardReader(const Location& base, const std::string& name, SharedIndex& shared)
      : path_(base.FullPath(name)), shared_(shared) {
    shard_.name = name;
  }

  Result<ShardIndex> Read(const RandomAccessFile& file) {
    shard_.file_bytes = file.size();
    shard_.changed_ns = file.changed_ns();
    TarReader archive(file);
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<TarMember> member, archive.Next());
      if (!member) break;
      RETURN_IF_ERROR(Add(*member));
    }
    for (auto& [field, parts] : shard_.fields) {
      parts.resize(shard_.keys.size());
      parts.shrink_to_fit();
    }
    return std::move(shard_);
  }

 private:
  Status Add(const TarMember& member) {
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
    return OkStatus();
  }

  Status Ask(uint64_t bytes) {
    const Status asked = shared_.Add(bytes);
    return asked.ok() ? asked : asked.WithContext("index " + QuotePath(path_));
  }

  const std::string path_;
  ShardIndex shard_;
  SharedIndex& shared_;
};

Result<ShardIndex> IndexShard(const Location& base, const std::string& name, SharedIndex& shared) {
  try {
    ASSIGN_OR_RETURN(const std::unique_ptr<const RandomAccessFile> file, base.OpenFile(name));
    const std::optional<FileVersion> version = file->version();
    if (const auto known = version ? shared.Known(*version, name) : std::nullopt) {
      const auto [first, second] = std::minmax(*known, name);  // which came first depends on the threads
      return InvalidArgument("index " + QuotePath(base.path()) + ": " + QuotePath(first) + " and " +
                             QuotePath(second) + " are the same file by a link; remove one of them");
    }
    return ShardReader(base, name, shared).Read(*file);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("index " + QuotePath(base.FullPath(name)) +
                             ": no memory (std::bad_alloc); give the daemon more memory");
  }
}

}  // namespace

Result<std::vector<ShardIndex>> IndexShards(const Location& base, const std::vector<std::string>& names) {
  std::vector<std::optional<Result<ShardIndex>>> found(names.size());
  SharedIndex shared;
  std::atomic<size_t> next{0};
  std::atomic<size_t> done{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= names.size()) return;
      found[i] = IndexShard(base, names[i], shared);
      if (!found[i]->ok()) failed.store(true, std::memory_order_relaxed);
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
  std::vector<ShardIndex> shards;
  shards.reserve(names.size());
  // Shards begin in order, so those before the first error were begun, and are complete.
  for (std::optional<Result<ShardIndex>>& shard : found) {
    RETURN_IF_ERROR(shard->status());
    shards.push_back(*std::move(*shard));
  }
  return shards;
}

}  // namespace pinfeed
