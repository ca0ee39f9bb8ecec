// SPDX-License-Identifier: Apache-2.0
#include "server/session/dataset_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "common/quote.h"
#include "common/unique_handle.h"
#include "server/source/open_dataset.h"
#include "server/source/rooted_file.h"

namespace pinfeed {
namespace {

// Directories with more entries than this are stamped by themselves alone: adding and removing entries still
// shows.
constexpr size_t kMaxStampedEntries = 4096;

struct DirectoryTraits {
  using Handle = DIR*;
  static constexpr DIR* Null() { return nullptr; }
  static void Close(DIR* directory) noexcept { ::closedir(directory); }
};

void Mix(uint64_t value, uint64_t& hash) {  // FNV-1a over 64-bit words: tells stamps apart, nothing more
  hash = (hash ^ value) * 0x100000001b3ULL;
}

void MixStat(const struct stat& info, uint64_t& hash) {
  for (const uint64_t value :
       {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino),
        static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_mtim.tv_sec),
        static_cast<uint64_t>(info.st_mtim.tv_nsec), static_cast<uint64_t>(info.st_ctim.tv_sec),
        static_cast<uint64_t>(info.st_ctim.tv_nsec)}) {
    Mix(value, hash);
  }
}

// Changes when the path, or an entry directly below it, does. 0 when the path cannot be looked at; opening it
// then says why.
uint64_t StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  uint64_t hash = 0xcbf29ce484222325ULL;
  MixStat(info, hash);
  const UniqueHandle<DirectoryTraits> directory(S_ISDIR(info.st_mode) ? ::opendir(path.c_str()) : nullptr);
  if (!directory) return hash;
  uint64_t entries = 0;
  size_t count = 0;
  while (const dirent* entry =
             ::readdir(directory.get())) {  // NOLINT(concurrency-mt-unsafe): this stream is this thread's own
    if (++count > kMaxStampedEntries) return hash;
    struct stat below {};
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &below, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (std::string_view(entry->d_name) == "..") continue;
    uint64_t one = 0xcbf29ce484222325ULL;
    MixStat(below, one);
    entries += one;  // readdir has no order
  }
  Mix(entries, hash);
  return hash;
}

}  // namespace

Result<DatasetCache::Key> DatasetCache::Resolve(const DatasetSpec& spec) const {
  const std::shared_ptr<const Options> options = this->options();
  Key key{spec, options->allowed_roots, 0};
  if (!spec.name.empty()) {
    const auto named = options->named.find(spec.name);
    if (named == options->named.end()) {
      return NotFound("dataset.name: " + QuotePath(spec.name) +
                      " is not configured in the daemon; `pinfeed datasets` lists what is");
    }
    key.spec = named->second;
    // What the client says about the sequences wins over what the configuration says.
    if (!spec.format.empty()) key.spec.format = spec.format;
    if (spec.sequence_length != 0) key.spec.sequence_length = spec.sequence_length;
    if (spec.stride != 0) key.spec.stride = spec.stride;
    if (spec.token_dtype != DType::kUint16) key.spec.token_dtype = spec.token_dtype;
    // Whoever wrote the configuration allowed this.
    std::error_code error;
    const std::filesystem::path path(key.spec.path);
    key.roots = {std::filesystem::is_directory(path, error) ? path.string() : path.parent_path().string()};
  }
  // Nothing outside the roots is looked at, not even for its stamp.
  RETURN_IF_ERROR(RootedPath::Resolve(key.spec.path, key.roots).status());
  key.stamp = StampOf(key.spec.path);
  return key;
}

void DatasetCache::SetOptions(Options options) {
  auto set = std::make_shared<const Options>(std::move(options));
  std::list<std::shared_ptr<const Dataset>> dropped;  // closed without the lock
  const MutexLock lock(mutex_);
  options_ = std::move(set);
  while (kept_.size() > options_->capacity) dropped.splice(dropped.end(), kept_, std::prev(kept_.end()));
}

std::shared_ptr<const DatasetCache::Options> DatasetCache::options() const {
  const MutexLock lock(mutex_);
  return options_;
}

DatasetCache::Entry* DatasetCache::Find(const Key& key) {
  entries_.remove_if([](const Entry& entry) { return !entry.opening && entry.dataset.expired(); });
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  return found == entries_.end() ? nullptr : &*found;
}

void DatasetCache::Keep(std::shared_ptr<const Dataset> dataset) {
  kept_.remove(dataset);
  kept_.push_front(std::move(dataset));
  while (kept_.size() > options_->capacity) kept_.pop_back();
}

Result<std::shared_ptr<const Dataset>> DatasetCache::Open(const DatasetSpec& spec) {
  ASSIGN_OR_RETURN(const Key key, Resolve(spec));
  {
    const MutexLock lock(mutex_);
    while (Entry* entry = Find(key)) {
      if (std::shared_ptr<const Dataset> dataset = entry->dataset.lock()) {
        Keep(dataset);
        return dataset;
      }
      if (entry->opening) opened_.Wait(mutex_);
    }
    entries_.push_back({key, {}, true});
  }
  Result<std::shared_ptr<const Dataset>> dataset = OpenDataset(key.spec, key.roots);
  const MutexLock lock(mutex_);
  Entry* entry = Find(key);
  entry->opening = false;
  if (dataset.ok()) {
    entry->dataset = *dataset;
    Keep(*dataset);
  }
  opened_.NotifyAll();
  return dataset;
}

}  // namespace pinfeed
