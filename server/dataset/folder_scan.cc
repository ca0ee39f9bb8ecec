// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/folder_scan.h"

#include <algorithm>
#include <system_error>
#include <tuple>

#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/os/start_thread.h"
#include "server/dataset/name_order.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxThreads = 16;
constexpr size_t kAskedBytes = size_t{1} << 20;
constexpr uint64_t kTaskBytes = 128;  // of a directory that is to be looked into, besides its path

// What it takes to pack so many entries, and to pick and keep names of them.
uint64_t PackingBytes(uint64_t entries, uint64_t bytes) {
  return entries * (sizeof(DirectoryEntry) + sizeof(std::string_view)) + bytes +
         PackedNames::MemoryOf(entries, bytes);
}

// Packs entries in the bytewise order of their names.
std::string Pack(std::string_view unsorted, size_t count) {
  std::vector<DirectoryEntry> entries;
  entries.reserve(count);
  PackedEntries rest(unsorted);
  while (const std::optional<DirectoryEntry> entry = rest.Next()) entries.push_back(*entry);
  if (std::ranges::is_sorted(entries, {}, &DirectoryEntry::name)) return std::string(unsorted);
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  std::string packed;
  packed.reserve(unsorted.size());
  for (const DirectoryEntry& entry : entries) PackedEntries::Append(entry, packed);
  return packed;
}

}  // namespace

FolderScan::FolderScan(const Location& base, NodeId dataset_id, Take take, Options options)
    : base_(base), dataset_id_(dataset_id), take_(std::move(take)), options_(std::move(options)) {}

FolderScan::~FolderScan() {
  for (std::thread& thread : threads_) thread.join();
}

Status FolderScan::TooLarge(const Location& base) {
  return InvalidArgument("index " + QuotePath(base.path()) + ": the names of its files exceed " +
                         std::to_string(PackedNames::kMaxBytes) + " bytes; split the dataset");
}

Result<std::vector<std::vector<FolderScan::Folder>>> FolderScan::Run(const std::vector<std::string>& starts) {
  const Clock::time_point began = Clock::now();
  {
    const MutexLock lock(mutex_);
    if (options_.store != nullptr)
      saved_ = options_.store->Load(NodesOf::kImageFolder, base_.path(), memory_);
    folders_.resize(starts.size());
    for (size_t i = starts.size(); i-- > 0;) pending_.push_back({i, starts[i]});
  }
  Supervise();
  const MutexLock lock(mutex_);  // for the analysis: no other thread is left
  if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  if (error_) return error_->status;
  for (std::vector<Folder>& folders : folders_) SortByName(folders, &Folder::path);
  if (options_.store != nullptr) {
    options_.store->Count(counts_);
    Save();
  }
  spdlog::info("indexed {}: {} files; {} directories were listed, {} had not changed; {} ms",
               QuotePath(base_.path()), files_, counts_.listed, counts_.recalled,
               std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count());
  return std::move(folders_);
}

std::optional<std::vector<FolderScan::Listed>> FolderScan::TakeListed() {
  const MutexLock lock(mutex_);
  if (changed_meanwhile_) return std::nullopt;
  return std::move(listed_);
}

void FolderScan::Supervise() {
  threads_.reserve(kMaxThreads);
  Clock::time_point report_at = Clock::now() + options_.progress_interval;
  bool can_start = true;
  while (true) {
    std::string progress;
    {
      const MutexLock lock(mutex_);
      while (true) {
        if (Finished()) break;
        if (can_start && threads_.size() < std::min(kMaxThreads, active_ + pending_.size())) break;
        if (Clock::now() >= report_at) break;
        changed_.WaitUntil(mutex_, report_at);
      }
      if (Finished()) break;
      if (Clock::now() >= report_at) progress = ProgressText();
    }
    if (!progress.empty()) {
      spdlog::info("{}", progress);
      report_at = Clock::now() + options_.progress_interval;
      continue;
    }
    try {
      threads_.push_back(StartThread("scan", [this] { Work(); }));
    } catch (const std::system_error&) {
      can_start = false;  // those that run do all of it
      if (threads_.empty()) Work();
    }
  }
}

std::string FolderScan::ProgressText() const {
  const uint64_t done = counts_.listed + counts_.recalled;
  return "indexing " + QuotePath(base_.path()) + ": " + std::to_string(done) + " of " +
         std::to_string(done + active_ + pending_.size()) + " directories found so far are done, with " +
         std::to_string(files_) + " files";
}

void FolderScan::Work() {
  while (const std::optional<Task> task = Next()) {
    try {
      Merge(*task, Look(*task));
    } catch (...) {  // std::bad_alloc; Run throws it
      Abandon(std::current_exception());
    }
  }
}

std::optional<FolderScan::Task> FolderScan::Next() {
  const MutexLock lock(mutex_);
  while (true) {
    while (pending_.empty() && active_ > 0) changed_.Wait(mutex_);
    if (pending_.empty()) {
      changed_.NotifyAll();  // what was left may have been dropped here
      return std::nullopt;
    }
    Task task = std::move(pending_.back());
    pending_.pop_back();
    if (error_ && task.start > error_->start) continue;  // an error before it is the result
    ++active_;
    return task;
  }
}

Result<FolderScan::Found> FolderScan::Look(const Task& task) const {
  Found found;
  found.folder.path = task.path;
  IndexMemory memory(options_.ledger);
  const auto ask = [&](uint64_t bytes) {
    return memory.Add(bytes).WithContext("list " + QuotePath(base_.FullPath(task.path)));
  };
  std::string unsorted;
  size_t asked = 0;  // bytes of them for which memory was asked
  const auto visit = [&](const DirectoryEntry& entry) -> Status {
    if (unsorted.size() > PackedNames::kMaxBytes || entry.name.size() > PackedEntries::kMaxNameBytes)
      return TooLarge(base_);
    PackedEntries::Append(entry, unsorted);
    if (unsorted.size() - asked < kAskedBytes) return OkStatus();
    asked = unsorted.size();
    return ask(asked + kAskedBytes);  // the string may move while it grows
  };
  PackedEntries entries;
  const auto recall = [&](const NodeVersion& version) {
    const std::optional<std::string_view> known =
        saved_ && version.reliable() ? saved_->Find(version) : std::nullopt;
    if (!known || !PackedEntries::IsValid(*known)) return false;
    entries = PackedEntries(*known);
    return true;
  };
  const int64_t began = options_.now ? options_.now() : UnixNanoseconds();
  ASSIGN_OR_RETURN(const Location::Listing listing, base_.List(task.path, visit, recall));
  found.id = listing.id;
  found.recalled = listing.recalled;
  if (!listing.recalled) entries = PackedEntries(unsorted);
  found.entries_bytes = entries.bytes().size();
  uint64_t count = 0;
  uint64_t below_bytes = 0;
  for (PackedEntries rest = entries; const std::optional<DirectoryEntry> entry = rest.Next(); ++count)
    if (entry->kind == EntryKind::kDirectory)
      below_bytes += kTaskBytes + task.path.size() + entry->name.size();
  const uint64_t needed = PackingBytes(count, found.entries_bytes) + below_bytes;
  found.memory_asked = needed >= kAskedBytes;
  if (found.memory_asked) RETURN_IF_ERROR(ask(needed));
  if (!listing.recalled) {
    found.entries = Pack(unsorted, count);
    entries = PackedEntries(found.entries);
  }
  found.version = listing.version;
  found.changed = listing.changed || (found.version && !IsSettled(found.version->changed_ns, began));
  const auto may_keep = [&](const NodeVersion& version) {
    return version.reliable() && IsSettled(std::max(version.modified_ns, version.changed_ns), began);
  };
  found.keep = options_.store != nullptr && found.version && !listing.may_have_links && !listing.changed &&
               (listing.recalled || may_keep(*found.version));
  std::vector<std::string_view> names;
  while (const std::optional<DirectoryEntry> entry = entries.Next()) {
    if (entry->kind == EntryKind::kDirectory) {
      found.below.push_back(JoinPath(task.path, entry->name));
      continue;
    }
    ASSIGN_OR_RETURN(const bool take, take_(task.path, *entry));
    if (take) names.push_back(entry->name);
  }
  SortByName(names);
  found.folder.names.Assign(names);
  if (!found.keep) found.entries = std::string();
  return found;
}

void FolderScan::Merge(const Task& task, Result<Found> result) {
  const MutexLock lock(mutex_);
  if (!result.ok()) {
    const bool exhausted = result.status().code() == Code::kResourceExhausted;
    Fail(exhausted ? Task() : task, result.status());  // Task(): it comes before all others
    if (exhausted) Stop();
  } else if (result->id == dataset_id_) {
    Fail(task, InvalidArgument("image folder " + QuotePath(base_.path()) + ": " + QuotePath(task.path) +
                               " leads by a symbolic link to the dataset itself; remove the link"));
  } else if (const auto [seen, is_new] = seen_.emplace(std::pair(task.start, result->id), task.path);
             !is_new) {
    // Which of them came first depends on the threads.
    const auto [first, second] = std::minmax(seen->second, task.path);
    Fail({task.start, second},
         InvalidArgument("image folder " + QuotePath(base_.path()) + ": " + QuotePath(first) + " and " +
                         QuotePath(second) +
                         " are the same directory, one of them by a symbolic link; remove the link"));
    seen->second = std::string(first);
  } else {
    Found& found = *result;
    ++(found.recalled ? counts_.recalled : counts_.listed);
    const PackedNames& names = found.folder.names;
    const uint64_t bytes = found.folder.path.size() + sizeof(Found);
    bytes_ += bytes + names.bytes();
    uint64_t contents = PackedNames::MemoryOf(names.size(), names.bytes()) + found.entries.size();
    files_ += names.size();
    for (auto path = found.below.rbegin(); path != found.below.rend() && !stopped_; ++path) {
      bytes_ += path->size();
      contents += kTaskBytes + path->size();
      pending_.push_back({task.start, std::move(*path)});
    }
    const Status memory = memory_.Add(bytes + (found.memory_asked ? 0 : contents));
    if (names.size() > 0) folders_[task.start].push_back(std::move(found.folder));
    changed_meanwhile_ |= found.changed;
    if (found.version) listed_.push_back({task.path, *found.version});
    if (found.keep) Keep(found);
    if (!memory.ok() || bytes_ > PackedNames::kMaxBytes) {
      Fail(Task(), memory.ok() ? TooLarge(base_) : memory.WithContext("list " + QuotePath(base_.path())));
      Stop();
    }
  }
  --active_;
  changed_.NotifyAll();
}

void FolderScan::Keep(Found& found) {
  if (kept_bytes_ > options_.max_kept_bytes) return;
  kept_bytes_ += kSavedNodeBytes + found.entries_bytes;
  kept_.push_back({*found.version, std::move(found.entries), found.recalled});
  if (kept_bytes_ > options_.max_kept_bytes) kept_ = {};
}

void FolderScan::Abandon(std::exception_ptr thrown) {
  const MutexLock lock(mutex_);
  thrown_ = std::move(thrown);
  Stop();
  --active_;
  changed_.NotifyAll();
}

void FolderScan::Stop() {
  stopped_ = true;
  pending_.clear();
}

void FolderScan::Fail(const Task& task, Status status) {
  if (!error_ || std::tie(task.start, task.path) < std::tie(error_->start, error_->path))
    error_ = {task.start, task.path, std::move(status)};
}

void FolderScan::Save() {
  if (kept_bytes_ > options_.max_kept_bytes) {
    spdlog::warn(
        "the names in {} take more than {} bytes, so they are not kept, and the next open lists them again",
        QuotePath(base_.path()), options_.max_kept_bytes);
    return;
  }
  const bool has_new = std::ranges::any_of(kept_, [](const Kept& kept) { return !kept.recalled; });
  if (!has_new && kept_.size() >= (saved_ ? saved_->size() : 0)) return;
  std::vector<SavedNode> folders;
  folders.reserve(kept_.size());
  for (const Kept& kept : kept_)
    folders.push_back(
        {kept.version, kept.recalled ? *saved_->Find(kept.version) : std::string_view(kept.entries)});
  options_.store->Save(NodesOf::kImageFolder, base_.path(), folders, memory_);
}

}  // namespace pinfeed
