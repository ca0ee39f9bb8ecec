// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/index_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "common/base/quote.h"
#include "common/base/random.h"
#include "common/os/directory_stream.h"
#include "server/dataset/fingerprint.h"

namespace pinfeed {
namespace {

// By NodesOf.
constexpr std::array<std::string_view, 2> kSuffixes = {".folders", ".shards"};
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr time_t kMaxTemporarySeconds = 3600;

std::string FileName(NodesOf kind, std::string_view dataset) {
  return Fingerprint().Add(dataset).Hex().append(kSuffixes[static_cast<size_t>(kind)]);
}

// Whether it is the name of a file of a store, or of one that is being written: digits.SUFFIX, or
// digits.SUFFIX.NUMBER.tmp. Whoever names another directory may have other files there.
bool IsOwnName(std::string_view name) {
  constexpr size_t kDigits = 16;  // of a Fingerprint
  if (name.substr(0, kDigits).find_first_not_of("0123456789abcdef") != std::string_view::npos) return false;
  if (name.size() < kDigits) return false;
  name.remove_prefix(kDigits);
  const auto suffix = std::ranges::find_if(kSuffixes, [&](auto one) { return name.starts_with(one); });
  if (suffix == kSuffixes.end()) return false;
  name.remove_prefix(suffix->size());
  if (name.empty()) return true;
  if (!name.starts_with('.') || !name.ends_with(kTemporarySuffix)) return false;
  name.remove_suffix(kTemporarySuffix.size());
  return name.find_first_not_of(".0123456789") == std::string_view::npos;
}

// Whether only this user and root can have written it.
Status CheckOwner(const struct stat& info, const std::string& object) {
  if (info.st_uid != ::geteuid())
    return PermissionDenied(object + " belongs to user " + std::to_string(info.st_uid));
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return PermissionDenied(object + " may be written by other users");
  return OkStatus();
}

Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0)
      bytes.remove_prefix(static_cast<size_t>(written));
    else if (errno != EINTR)
      return ErrnoStatus("write", errno);
  }
  return OkStatus();
}

Result<std::string> ReadAll(int fd, size_t size) {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(fd, bytes.data() + done, size - done);
    if (got > 0)
      done += static_cast<size_t>(got);
    else if (got == 0)
      return DataLoss("it ends too early");
    else if (errno != EINTR)
      return ErrnoStatus("read", errno);
  }
  return bytes;
}

}  // namespace

Result<std::unique_ptr<IndexStore>> IndexStore::Open(std::string directory) {
  const std::string object = "directory " + QuotePath(directory);
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(),
                                      error);  // mkdir reports
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus("make " + object, errno);
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus("open " + object, errno);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("stat " + object, errno);
  RETURN_IF_ERROR(CheckOwner(info, object));
  if (::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) != 0)
    return ErrnoStatus("write to " + object, errno);
  return std::unique_ptr<IndexStore>(new IndexStore(std::move(directory), std::move(fd)));
}

std::optional<SavedIndex> IndexStore::Load(NodesOf kind, std::string_view dataset, IndexMemory& memory) {
  const std::string name = FileName(kind, dataset);
  Result<std::optional<SavedIndex>> saved = Read(name, memory);
  if (saved.ok()) return *std::move(saved);
  Warn(saved.status().WithContext("use " + QuotePath(path_ + "/" + name)),
       "the dataset is indexed anew instead");
  return std::nullopt;
}

Result<std::optional<SavedIndex>> IndexStore::Read(const std::string& name, IndexMemory& memory) const {
  const UniqueFd fd(::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::nullopt;
  if (!fd) return ErrnoStatus("open", errno);
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("stat", errno);
  if (!S_ISREG(info.st_mode)) return DataLoss("it is not a regular file");
  RETURN_IF_ERROR(CheckOwner(info, "the file"));
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) > kMaxFileBytes)
    return DataLoss("it is larger than " + std::to_string(kMaxFileBytes) + " bytes");
  RETURN_IF_ERROR(memory.Add(static_cast<uint64_t>(info.st_size)));
  ASSIGN_OR_RETURN(std::string bytes, ReadAll(fd.get(), static_cast<size_t>(info.st_size)));
  ASSIGN_OR_RETURN(SavedIndex saved, SavedIndex::Parse(std::move(bytes)));
  static_cast<void>(::futimens(fd.get(), nullptr));  // for MakeRoom, which can do without
  return saved;
}

void IndexStore::Save(NodesOf kind, std::string_view dataset, std::vector<SavedNode>& nodes,
                      IndexMemory& memory) {
  const uint64_t bytes = SavedIndexBytes(nodes);
  const std::string name = FileName(kind, dataset);
  Status written = ResourceExhausted("its " + std::to_string(bytes) + " bytes exceed the limit of " +
                                     std::to_string(kMaxFileBytes));
  try {
    if (bytes <= kMaxFileBytes) written = memory.Add(bytes);
    if (written.ok()) written = Write(name, EncodeSavedIndex(nodes));
  } catch (const std::bad_alloc&) {
    written = ResourceExhausted("there is no memory for its " + std::to_string(bytes) + " bytes");
  }
  if (!written.ok())
    Warn(written.WithContext("save " + QuotePath(path_ + "/" + name)),
         "the next open indexes the dataset anew");
}

Status IndexStore::Write(const std::string& name, std::string_view bytes) {
  RETURN_IF_ERROR(MakeRoom(bytes.size()));
  // Random: in containers, all daemons may have the same process id.
  const auto random = std::bit_cast<uint64_t>(RandomBytes<std::array<std::byte, sizeof(uint64_t)>>());
  const std::string temporary = name + "." + std::to_string(random) + std::string(kTemporarySuffix);
  UniqueFd fd(::openat(directory_.get(), temporary.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus("create", errno);
  // Without fsync: after a crash of the host the checksum tells whether all of it is there.
  Status written = WriteAll(fd.get(), bytes);
  fd.reset();
  if (written.ok() && ::renameat(directory_.get(), temporary.c_str(), directory_.get(), name.c_str()) != 0)
    written = ErrnoStatus("rename", errno);
  if (!written.ok()) ::unlinkat(directory_.get(), temporary.c_str(), 0);
  return written;
}

Status IndexStore::MakeRoom(uint64_t bytes) const {
  struct File {
    time_t used;
    uint64_t bytes;
    std::string name;
  };
  UniqueFd fd(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus("list", errno);
  const UniqueDirectoryStream directory = ReadDirectory(std::move(fd));
  if (!directory) return ErrnoStatus("list", errno);
  std::vector<File> files;
  while (const dirent* const entry = NextEntry(directory)) {
    const std::string_view name = entry->d_name;
    struct stat info = {};
    if (!IsOwnName(name)) continue;
    if (::fstatat(directory_.get(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (name.ends_with(kTemporarySuffix) && info.st_mtime < ::time(nullptr) - kMaxTemporarySeconds)
      ::unlinkat(directory_.get(), entry->d_name, 0);
    else
      files.push_back({info.st_mtime, static_cast<uint64_t>(info.st_size), std::string(name)});
  }
  std::ranges::sort(files, std::ranges::greater(), &File::used);
  size_t count = 1;
  for (const File& file : files) {
    bytes += file.bytes;
    if (++count > kMaxFiles || bytes > kMaxBytes) ::unlinkat(directory_.get(), file.name.c_str(), 0);
  }
  return OkStatus();
}

void IndexStore::Count(const Counts& scan) {
  listed_ += scan.listed;
  recalled_ += scan.recalled;
}

void IndexStore::Warn(const Status& status, std::string_view consequence) {
  if (const auto left_out = warnings_.Admit())
    spdlog::warn("{}; {}{}", status.message(), consequence, *left_out);
}

}  // namespace pinfeed
