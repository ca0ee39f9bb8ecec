// SPDX-License-Identifier: Apache-2.0
#include "server/storage/local_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>

#include "common/base/quote.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {
namespace {

// The kernel returns EAGAIN if a rename raced with a ".." in a link; the caller has to try again.
constexpr int kOpenAttempts = 64;
// Other samples' files are closed soon.
constexpr int kDescriptorWaits = 100;
constexpr std::chrono::milliseconds kDescriptorWait(1);
// Where the file system cannot tell, what comes faster than this counts as cached.
constexpr std::chrono::microseconds kCachedTime(50);
// Of one POSIX_FADV_WILLNEED Linux reads no more than the device takes at once, and leaves out the rest.
constexpr uint64_t kMaxAdviceBytes = 256 * 1024;
// The maximum that one read(2) transfers.
constexpr size_t kMaxReadBytes = 0x7ffff000;

// `path` without empty and "." components; "/" for the root of the file system.
Result<std::string> Normalise(std::string_view path, std::string_view what) {
  const std::string object = std::string(what) + " " + QuotePath(path);
  if (path.empty()) return InvalidArgument(std::string(what) + " is empty; give an absolute path");
  if (path.find('\0') != std::string_view::npos) return InvalidArgument(object + " holds a NUL byte");
  if (path[0] != '/') return InvalidArgument(object + " is relative; give an absolute path");
  std::string out;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component == "..") return InvalidArgument(object + " holds '..'; give the path without it");
    if (!component.empty() && component != ".") out.append("/").append(component);
    begin = end + 1;
  }
  return out.empty() ? std::string("/") : out;
}

// The file systems (statfs(2)) that change a file's times with its contents, and a directory's with its
// entries, by a clock. Left out are those that store whatever times they are given, which are read-only ones
// (squashfs, erofs, iso9660) and those of FUSE, and those whose directories have no such times, such as FAT.
constexpr auto kVersioned = std::to_array<uint32_t>({
    EXT4_SUPER_MAGIC,  // and ext2, ext3
    XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC, NFS_SUPER_MAGIC, CEPH_SUPER_MAGIC,
    0x2FC12FC1,  // ZFS
    0xCA451A4E,  // bcachefs
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS (Storage Scale)
    0x19830326,  // BeeGFS
});

// The path of an open file or directory; empty if it cannot be determined, or is not there any more.
std::string PathOf(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_nlink == 0) return "";
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  path.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return path.starts_with('/') ? path : "";
}

// The path without links; empty if it cannot be determined.
std::string Canonical(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  return resolved != nullptr ? std::string(resolved.get()) : std::string();
}

// Textually: "/data" contains "/data" and "/data/x", but not "/database".
bool Holds(std::string_view root, std::string_view path) {
  if (root == "/") return true;
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}
// What such a path has behind the root; "." if nothing.
std::string Below(std::string_view root, std::string_view path) {
  const std::string_view below = path.substr(std::min(root == "/" ? 1 : root.size() + 1, path.size()));
  return below.empty() ? "." : std::string(below);
}

std::string_view KindText(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown kind";
}

Status OpenError(const std::string& path, const std::string& root, int error_number) {
  const std::string object = "open " + QuotePath(path);
  if (error_number == ENOSYS) {
    return {Code::kUnimplemented,
            object +
                ": this kernel has no openat2(2), without which paths cannot be kept below the allowed "
                "roots; use Linux 5.6 or "
                "newer, or a container runtime whose seccomp profile permits openat2",
            error_number};
  }
  if (error_number == EXDEV) {
    return {Code::kPermissionDenied,
            object + ": a symbolic link in it leaves the allowed root " + QuotePath(root) +
                ", or is absolute and leads to nothing; copy what it leads to, or name that place, if it is "
                "below an allowed root",
            error_number};
  }
  if (error_number == EAGAIN) {  // the files are opened without blocking
    return {Code::kFailedPrecondition,
            object +
                ": another process holds a lease on it (fcntl(2), F_SETLEASE), as file servers do while a "
                "client has it open for writing; open the dataset again when it is closed",
            error_number};
  }
  return ErrnoStatus(object, error_number);
}

int64_t Nanoseconds(const struct statx_timestamp& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The file system's id, if its versions tell of each change.
std::optional<uint64_t> IdWithVersions(const struct statfs& system) {
  if (std::ranges::find(kVersioned, static_cast<uint32_t>(system.f_type)) == kVersioned.end())
    return std::nullopt;
  uint64_t id = 0;
  static_assert(sizeof(id) == sizeof(system.f_fsid));
  std::memcpy(&id, &system.f_fsid, sizeof(id));
  return id;
}

constexpr uint32_t kStatxMountId = 0x4000;  // STATX_MNT_ID_UNIQUE, which older headers lack

}  // namespace

Result<std::optional<uint64_t>> FileSystemWithVersions(int fd) {
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0) return ErrnoStatus("statfs an open file", errno);
  return IdWithVersions(system);
}

std::optional<NodeStat> StatNode(int fd, const char* name, int sync) {
  struct statx info = {};
  const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | sync;
  if (::statx(fd, name, flags, STATX_BASIC_STATS | kStatxMountId, &info) != 0) return std::nullopt;
  NodeStat stat{info.stx_mode, {}};
  if ((info.stx_mask & kStatxMountId) != 0) stat.version.mount = info.stx_mnt_id;
  stat.version.device = ::makedev(info.stx_dev_major, info.stx_dev_minor);
  stat.version.inode = info.stx_ino;
  stat.version.size = info.stx_size;
  stat.version.modified_ns = Nanoseconds(info.stx_mtime);
  stat.version.changed_ns = Nanoseconds(info.stx_ctime);
  return stat;
}

bool VersionedMount::Has(int fd, const FileVersion& version) {
  const uint64_t mount = version.mount != 0 ? version.mount : version.device;
  const uint64_t last = last_.load(std::memory_order_relaxed);
  if (last != 0 && last >> 1 == mount) return (last & 1) != 0;
  const Result<std::optional<uint64_t>> system = FileSystemWithVersions(fd);
  const bool has = system.ok() && *system;
  last_.store(mount << 1 | (has ? 1 : 0), std::memory_order_relaxed);
  return has;
}

std::optional<FileVersion> LocalFile::version() const {
  return versioned_->Has(fd_.get(), version_) ? std::optional(version_) : std::nullopt;
}

std::optional<NodeVersion> LocalFile::lasting_version() const {
  struct statfs system = {};
  // On a tmpfs a write to a shared mapping changes no time.
  if (::fstatfs(fd_.get(), &system) != 0 || system.f_type == TMPFS_MAGIC) return std::nullopt;
  const std::optional<uint64_t> id = IdWithVersions(system);
  if (!id) return std::nullopt;
  return NodeVersion{{version_.device, version_.inode}, *id, version_.modified_ns, version_.changed_ns};
}

bool LocalFile::HasSameContents(Asked asked) const {
  // Clients of file servers remember attributes for seconds, longer than a table is watched.
  const std::optional<NodeStat> now =
      StatNode(fd_.get(), "", asked == Asked::kServer ? AT_STATX_FORCE_SYNC : 0);
  // A file that was replaced has another time of its last change, but not other contents.
  return !now || (now->version.size == version_.size && now->version.modified_ns == version_.modified_ns);
}

Status LocalFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  uint64_t end = 0;
  if (!CheckedAdd(offset, out.size(), &end) ||
      end > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return DataLoss(ReadText(offset, out.size()) + ": it is beyond the largest offset of a file");
  }
  size_t done = 0;
  while (done < out.size()) {
    const size_t want = std::min(out.size() - done, kMaxReadBytes);
    const ssize_t got = ::pread(fd_.get(), out.data() + done, want, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return Truncated(offset, out.size(), done);
    } else if (errno != EINTR) {
      return ErrnoStatus(ReadText(offset, out.size()), errno);
    }
  }
  return OkStatus();
}

Prefetched LocalFile::Prefetch(uint64_t offset, uint64_t bytes) const {
  Prefetched result{bytes, true};
  if (bytes == 0 || bytes > size() || offset > size() - bytes) return result;
  const auto began = std::chrono::steady_clock::now();
  for (uint64_t at = offset; at < offset + bytes; at += kMaxAdviceBytes) {
    // Errors are those of the later read.
    static_cast<void>(::posix_fadvise(fd_.get(), static_cast<off_t>(at),
                                      static_cast<off_t>(std::min(kMaxAdviceBytes, offset + bytes - at)),
                                      POSIX_FADV_WILLNEED));
  }
  // Pages that are still being read count as not there.
  std::byte byte{};
  const iovec place{&byte, 1};
  const off_t middle = static_cast<off_t>(offset + bytes / 2);
  if (::preadv2(fd_.get(), &place, 1, middle, RWF_NOWAIT) < 0) {
    result.cached = errno == EOPNOTSUPP && std::chrono::steady_clock::now() - began < kCachedTime;
  }
  return result;
}

Result<LocalPath> LocalPath::Resolve(std::string_view path, const std::vector<std::string>& allowed_roots) {
  ASSIGN_OR_RETURN(std::string clean, Normalise(path, "dataset path"));
  std::string best;
  std::string listed;
  for (const std::string& allowed : allowed_roots) {
    ASSIGN_OR_RETURN(std::string root, Normalise(allowed, "allowed root"));
    listed += (listed.empty() ? "" : ", ") + QuotePath(root);
    if (Holds(root, clean) && root.size() > best.size()) best = std::move(root);
  }
  if (best.empty()) {
    return PermissionDenied("dataset path " + QuotePath(clean) + " is below none of the allowed roots (" +
                            (listed.empty() ? "there are none" : listed) +
                            "); move it below one, or add its folder to allowed_roots");
  }
  // The operator chose the root, so links in its own path are followed.
  UniqueFd fd(::open(best.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus("open " + QuotePath(best) + ", which holds " + QuotePath(clean), errno);
  std::string relative = Below(best, clean);
  return LocalPath(std::move(fd), std::move(best), std::move(clean), std::move(relative));
}

void LocalPath::FollowLinks() {
  const Result<NodeKind> kind = Kind("");
  if (!kind.ok()) return;
  const bool is_directory = *kind == NodeKind::kDirectory;
  const Result<UniqueFd> directory = is_directory ? OpenNode("") : OpenParent("");
  if (!directory.ok()) return;
  const std::string root = PathOf(root_.get());
  const std::string followed = PathOf(directory->get());
  if (root.empty() || followed.empty() || !Holds(root, followed)) return;
  const std::string name = is_directory ? "" : "/" + relative_.substr(relative_.rfind('/') + 1);
  relative_ = Below(root, followed) + name;
}

Result<UniqueFd> LocalPath::Open(std::string_view below, uint64_t flags) const {
  std::string relative = relative_;
  if (!below.empty()) relative.append("/").append(below);
  int error_number = 0;
  UniqueFd fd = OpenBeneath(relative, flags, &error_number);
  if (fd) return fd;
  if (error_number == EXDEV) {
    // The kernel rejects absolute links. If one leads back below the root, its target is opened relative to
    // the root, so the kernel still checks it.
    const std::string root = Canonical(root_path_);
    const std::string target = Canonical(root_path_ + "/" + relative);
    if (!root.empty() && !target.empty() && Holds(root, target)) {
      int again = 0;
      fd = OpenBeneath(Below(root, target), flags, &again);
      if (fd) return fd;
      if (again != EXDEV) return OpenError(FullPath(below), root_path_, again);
    }
  }
  return OpenError(FullPath(below), root_path_, error_number);
}

UniqueFd LocalPath::OpenBeneath(const std::string& relative, uint64_t flags, int* error_number) const {
  open_how how = {};
  how.flags = flags | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  int waits = 0;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), relative.c_str(), &how, sizeof(how))));
    if (fd) return fd;
    *error_number = errno;
    if ((*error_number == EMFILE || *error_number == ENFILE) && waits++ < kDescriptorWaits) {
      std::this_thread::sleep_for(kDescriptorWait);
      --attempt;
      continue;
    }
    if (*error_number != EAGAIN && *error_number != EINTR) break;
  }
  return {};
}

Result<std::unique_ptr<const RandomAccessFile>> LocalPath::OpenFile(std::string_view below) const {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer. Regular files ignore the flag.
  Result<UniqueFd> opened = Open(below, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  const auto refuse = [&](std::string_view kind) {
    return InvalidArgument("open " + QuotePath(FullPath(below)) + ": it is " + std::string(kind) +
                           ", not a regular file");
  };
  if (!opened.ok() && opened.status().native_error() == ENXIO)
    return refuse("a socket or a device without driver");
  ASSIGN_OR_RETURN(UniqueFd fd, std::move(opened));
  const int64_t seen_ns = UnixNanoseconds();
  std::optional<NodeStat> stat = StatNode(fd.get(), "");
  if (!stat) return ErrnoStatus("stat " + QuotePath(FullPath(below)), errno);
  if (!S_ISREG(stat->mode)) return refuse(KindText(stat->mode));
  if (stat->version.size > INT64_MAX)
    return DataLoss("stat " + QuotePath(FullPath(below)) + ": negative size");
  stat->version.seen_ns = seen_ns;
  return std::unique_ptr<const RandomAccessFile>(
      new LocalFile(std::move(fd), FullPath(below), stat->version, versioned_));
}

Result<std::shared_ptr<const Location>> LocalPath::Parent() const {
  if (relative_ == ".") {
    return PermissionDenied("the directory that holds " + QuotePath(path_) +
                            " is below no allowed root; add it to allowed_roots");
  }
  UniqueFd root(::fcntl(root_.get(), F_DUPFD_CLOEXEC, 0));
  if (!root) return ErrnoStatus("open the directory that holds " + QuotePath(path_), errno);
  const size_t slash = relative_.rfind('/');
  std::string relative = slash == std::string::npos ? "." : relative_.substr(0, slash);
  std::string path = path_.substr(0, std::max<size_t>(1, path_.rfind('/')));
  return std::shared_ptr<const Location>(
      new LocalPath(std::move(root), root_path_, std::move(path), std::move(relative)));
}

Result<UniqueFd> LocalPath::OpenDirectory(std::string_view below) const {
  return Open(below, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
}

Result<UniqueFd> LocalPath::OpenNode(std::string_view below) const {
  return Open(below, O_PATH);
}

Result<NodeKind> LocalPath::Kind(std::string_view below) const {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenNode(below));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("stat " + QuotePath(FullPath(below)), errno);
  if (S_ISREG(info.st_mode)) return NodeKind::kFile;
  return S_ISDIR(info.st_mode) ? NodeKind::kDirectory : NodeKind::kOther;
}

}  // namespace pinfeed
