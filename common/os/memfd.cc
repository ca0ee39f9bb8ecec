// SPDX-License-Identifier: Apache-2.0
#include "common/os/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <cerrno>

namespace pinfeed {
namespace {

constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE, which headers of glibc before 2.37 lack

// The minimal memory-mappable type for boost::interprocess::mapped_region.
struct MappableFd {
  int fd;
  boost::interprocess::mode_t mode;
  boost::interprocess::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
  boost::interprocess::mode_t get_mode() const { return mode; }
};

// Returns a multiple of kHugePageBytes from which `bytes` of the address space are free, as yet. Null for
// small mappings, and if there is none.
const void* FreeAlignedAddress(uint64_t bytes) {
  if (bytes < kHugePageBytes) return nullptr;
  const uint64_t span = bytes + kHugePageBytes;
  void* const found = ::mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  ::munmap(found, span);
  const uint64_t beyond = reinterpret_cast<uintptr_t>(found) % kHugePageBytes;
  return static_cast<const std::byte*>(found) + (beyond == 0 ? 0 : kHugePageBytes - beyond);
}

Result<struct stat> Stat(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus("fstat of shared memory", errno);
  return info;
}

Result<uint64_t> FileBytes(int fd) {
  ASSIGN_OR_RETURN(const struct stat info, Stat(fd));
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

Result<Mapping> Mapping::Map(int fd, uint64_t bytes, Access access, bool populate) {
  ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(fd));
  if (bytes == 0 || file_bytes < bytes) {
    return InvalidArgument("map " + std::to_string(bytes) + " bytes of shared memory that has " +
                           std::to_string(file_bytes));
  }
  const auto mode =
      access == Access::kReadOnly ? boost::interprocess::read_only : boost::interprocess::read_write;
  const auto options = populate ? MAP_POPULATE : boost::interprocess::default_map_options;
  for (const void* place = FreeAlignedAddress(bytes);; place = nullptr) {
    try {
      return Mapping(
          boost::interprocess::mapped_region(MappableFd{fd, mode}, mode, 0, bytes, place, options));
    } catch (const boost::interprocess::interprocess_exception& error) {
      if (place != nullptr) continue;  // another thread has taken that place
      return ErrnoStatus("mmap " + std::to_string(bytes) + " bytes of shared memory",
                         error.get_native_error());
    }
  }
}

Result<UniqueFd> CreateMemfd(const std::string& name, uint64_t bytes) {
  ASSIGN_OR_RETURN(UniqueFd fd, CreateEmptyMemfd(name, bytes));
  RETURN_IF_ERROR(AllocateMemfd(fd.get(), 0, bytes).WithContext(name));
  return fd;
}

Result<UniqueFd> CreateEmptyMemfd(const std::string& name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus("memfd_create " + name, errno);
  const std::string what = "make " + std::to_string(bytes) + " bytes of shared memory for " + name;
  if (bytes == 0 || bytes > static_cast<uint64_t>(INT64_MAX))
    return InvalidArgument(what + ": not a possible size");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(what, errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    return ErrnoStatus("seal " + name, errno);
  return fd;
}

Status AllocateMemfd(int fd, uint64_t offset, uint64_t bytes) {
  // posix_fallocate returns its error instead of setting errno.
  int error = 0;
  do {
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return ErrnoStatus("allocate " + std::to_string(bytes) + " bytes of shared memory", error);
  return OkStatus();
}

Result<uint64_t> AllocatedBytes(int fd) {
  ASSIGN_OR_RETURN(const struct stat info, Stat(fd));
  return static_cast<uint64_t>(info.st_blocks) * 512;  // the unit of st_blocks
}

Status PopulateForWriting(std::byte* address, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t before = reinterpret_cast<uintptr_t>(address) % page;
  int error = 0;
  do {
    error = ::madvise(address - before, before + bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return OkStatus();
  if (error == EFAULT) error = ENOMEM;  // reported where a touch would raise SIGBUS
  return ErrnoStatus("allocate " + std::to_string(bytes) + " bytes of shared memory", error);
}

bool AllocateHugePage(std::byte* address) {
  // The kernel makes no huge page of nothing: there has to be a small one.
  if (!PopulateForWriting(address, 1).ok()) return false;
  if (::madvise(address, kHugePageBytes, kMadvCollapse) == 0) return true;
  return errno == EAGAIN || errno == EBUSY || errno == EINTR;  // only this page cannot be had now
}

Result<UniqueFd> ReopenMemfd(int fd, Access access) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd opened(::open(path.c_str(), (access == Access::kReadOnly ? O_RDONLY : O_RDWR) | O_CLOEXEC));
  if (!opened) return ErrnoStatus("reopen shared memory through " + path, errno);
  return opened;
}

bool DiscardMemfd(int fd, uint64_t bytes) {
  return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0;
}

Status SealAgainstNewWriters(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
    return ErrnoStatus("seal shared memory against writers", errno);
  return OkStatus();
}

Status SealAgainstSeals(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) != 0)
    return ErrnoStatus("seal shared memory against seals", errno);
  return OkStatus();
}

Status CheckSealedSize(int fd, uint64_t bytes) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 && errno == EINVAL) return InvalidArgument("it is no memory that can be sealed");
  if (seals < 0) return ErrnoStatus("read the seals of shared memory", errno);
  if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return InvalidArgument("shared memory is not sealed against a change of its size");
  }
  ASSIGN_OR_RETURN(const uint64_t file_bytes, FileBytes(fd));
  if (file_bytes != bytes) {
    return InvalidArgument("shared memory has " + std::to_string(file_bytes) + " bytes, expected " +
                           std::to_string(bytes));
  }
  return OkStatus();
}

}  // namespace pinfeed
