// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_storage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "common/base/quote.h"

namespace pinfeed {

namespace {

std::string NameOf(const std::string& path) {
  return "memory:/" + path;
}

}  // namespace

class MemoryFile final : public RandomAccessFile {
 public:
  MemoryFile(const MemoryStorage& storage, std::string path, uint64_t size, int64_t changed_ns)
      : RandomAccessFile(NameOf(path), size),
        storage_(storage),
        key_(std::move(path)),
        changed_ns_(changed_ns) {}

  int64_t changed_ns() const override { return changed_ns_; }
  std::optional<NodeVersion> lasting_version() const override {
    return NodeVersion{{1, std::hash<std::string>()(key_)}, 1, changed_ns_, changed_ns_};
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    size_t got = 0;
    RETURN_IF_ERROR(storage_.Read(key_, offset, out, &got));
    return got == out.size() ? OkStatus() : Truncated(offset, out.size(), got);
  }

  Prefetched Prefetch(uint64_t offset, uint64_t bytes) const override {
    const MutexLock lock(storage_.mutex_);
    const auto found = storage_.files_.find(key_);
    if (found != storage_.files_.end()) found->second.prefetched.emplace_back(offset, bytes);
    return {bytes, false};
  }

 private:
  const MemoryStorage& storage_;
  const std::string key_;
  const int64_t changed_ns_;
};

class MemoryLocation final : public Location {
 public:
  MemoryLocation(const MemoryStorage& storage, std::string path)
      : storage_(storage), base_(std::move(path)), name_(NameOf(base_)) {}

  const std::string& path() const override { return name_; }
  bool remote() const override { return storage_.remote_; }

  Result<std::unique_ptr<const RandomAccessFile>> OpenFile(std::string_view below) const override {
    const std::string path = Key(below);
    const MutexLock lock(storage_.mutex_);
    const auto found = storage_.files_.find(path);
    if (found == storage_.files_.end()) return Missing("open", path);
    return std::unique_ptr<const RandomAccessFile>(
        new MemoryFile(storage_, path, found->second.bytes.size(), found->second.changed_ns));
  }

  using Location::List;
  Result<Listing> List(std::string_view below, const Visit& visit, const Recall& /*recall*/) const override {
    const std::string directory = Key(below);
    const std::string prefix = directory.empty() ? "" : directory + "/";
    std::map<std::string, EntryKind> entries;
    {
      const MutexLock lock(storage_.mutex_);
      for (const auto& [path, file] : storage_.files_) {
        if (!path.starts_with(prefix)) continue;
        const std::string rest = path.substr(prefix.size());
        const size_t slash = rest.find('/');
        entries[rest.substr(0, slash)] =
            slash == std::string::npos ? EntryKind::kFile : EntryKind::kDirectory;
      }
    }
    if (entries.empty()) return Missing("list", directory);
    for (const auto& [name, kind] : entries) RETURN_IF_ERROR(visit({name, kind}));
    return Listing{{1, std::hash<std::string>()(directory)}};
  }

  Result<NodeKind> Kind(std::string_view below) const override {
    const std::string path = Key(below);
    const MutexLock lock(storage_.mutex_);
    if (storage_.files_.contains(path)) return NodeKind::kFile;
    const auto inside = storage_.files_.lower_bound(path + "/");
    if (inside != storage_.files_.end() && inside->first.starts_with(path + "/")) return NodeKind::kDirectory;
    return Missing("look at", path);
  }

  Result<std::shared_ptr<const Location>> Parent() const override {
    const size_t slash = base_.rfind('/');
    return std::make_shared<const MemoryLocation>(storage_,
                                                  slash == std::string::npos ? "" : base_.substr(0, slash));
  }

  Result<Stamp> StampOf(std::string_view below) const override {
    const MutexLock lock(storage_.mutex_);
    std::string all;
    for (const auto& [path, file] : storage_.files_)
      if (path.starts_with(Key(below))) all += path + file.bytes;
    return Stamp{std::hash<std::string>()(all)};
  }

 private:
  std::string Key(std::string_view below) const {
    return base_.empty() ? std::string(below) : below.empty() ? base_ : JoinPath(base_, below);
  }
  static Status Missing(const std::string& what, const std::string& path) {
    return {Code::kNotFound, what + " " + QuotePath(NameOf(path)) + ": there is no such object", ENOENT};
  }

  const MemoryStorage& storage_;
  const std::string base_;
  const std::string name_;
};

void MemoryStorage::Write(const std::string& path, std::string bytes) {
  const MutexLock lock(mutex_);
  const size_t size = bytes.size();
  files_[path] = {.bytes = std::move(bytes), .readable = size, .changed_ns = ++writes_};
}

MemoryStorage::Ranges MemoryStorage::AskedAhead(const std::string& path) const {
  const MutexLock lock(mutex_);
  return files_.at(path).prefetched;
}

void MemoryStorage::RewriteBeforeSecondPass(const std::string& path, const std::string& bytes) {
  const MutexLock lock(mutex_);
  PF_CHECK(bytes.size() == files_.at(path).bytes.size(), "a rewritten file keeps its size");
  files_[path].second = bytes;
}

void MemoryStorage::Remove(const std::string& path) {
  const MutexLock lock(mutex_);
  files_.erase(path);
}

void MemoryStorage::Cut(const std::string& path, size_t bytes) {
  const MutexLock lock(mutex_);
  files_.at(path).readable = bytes;
}

void MemoryStorage::Break(const std::string& path) {
  const MutexLock lock(mutex_);
  files_.at(path).broken = true;
}

void MemoryStorage::Exhaust(const std::string& path) {
  const MutexLock lock(mutex_);
  files_.at(path).exhausted = true;
}

void MemoryStorage::Hang(const std::string& path) {
  const MutexLock lock(mutex_);
  files_.at(path).hung = true;
}

void MemoryStorage::Resume() {
  {
    const MutexLock lock(mutex_);
    for (auto& [path, file] : files_) file.hung = false;
  }
  changed_.NotifyAll();
}

void MemoryStorage::AwaitHung(size_t reads) const {
  const MutexLock lock(mutex_);
  while (hanging_ < reads) changed_.Wait(mutex_);
}

std::shared_ptr<const Location> MemoryStorage::At(const std::string& path) {
  return std::make_shared<const MemoryLocation>(*this, path);
}

Status MemoryStorage::Read(const std::string& path, uint64_t offset, std::span<std::byte> out,
                           size_t* got) const {
  const MutexLock lock(mutex_);
  auto found = files_.find(path);
  if (found != files_.end() && found->second.hung) {
    ++hanging_;
    changed_.NotifyAll();
    while (found != files_.end() && found->second.hung) {
      changed_.Wait(mutex_);
      found = files_.find(path);
    }
    --hanging_;
  }
  if (found == files_.end())
    return {Code::kNotFound, "read " + QuotePath(NameOf(path)) + ": there is no such object", ENOENT};
  if (found->second.exhausted) throw std::bad_alloc();
  if (found->second.broken) return ErrnoStatus("read " + QuotePath(NameOf(path)), EIO);
  if (offset == 0 && std::exchange(found->second.first_pass_began, true) && !found->second.second.empty())
    found->second.bytes = std::exchange(found->second.second, {});
  const size_t end = found->second.readable;
  *got = offset >= end ? 0 : std::min<size_t>(out.size(), end - offset);
  std::memcpy(out.data(), found->second.bytes.data() + std::min<size_t>(offset, end), *got);
  return OkStatus();
}

}  // namespace pinfeed
