// SPDX-License-Identifier: Apache-2.0
// memfds and address space behind device memory; which of it may be touched.
#include "tests/support/stand_in_cuda/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

namespace pinfeed::stand_in {
namespace {

constexpr char kNoise = 0x5A;
constexpr char kPrefix[] = "/memfd:pinfeed-stand-in-";

}  // namespace

CUresult MakeMemory(Device& device, uint64_t bytes, bool exportable, std::shared_ptr<Allocation>& memory) {
  auto made = std::make_shared<Allocation>();
  uint64_t used = device.used_bytes;
  do {
    if (used > g_state.device_bytes || bytes > g_state.device_bytes - used) return CUDA_ERROR_OUT_OF_MEMORY;
  } while (!device.used_bytes.compare_exchange_weak(used, used + bytes));
  made->maker = &device;
  made->bytes = bytes;
  made->exportable = exportable;
  uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) return CUDA_ERROR_OPERATING_SYSTEM;
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "pinfeed-stand-in-%d-%016llx", device.physical,
                static_cast<unsigned long long>(id));
  made->memfd.reset(::memfd_create(name.data(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed: an importer relies on the size.
  if (!made->memfd || ::ftruncate(made->memfd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(made->memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  if (g_state.dirty) {
    const std::vector<char> noise(1 << 20, kNoise);
    for (uint64_t at = 0; at < bytes; at += noise.size()) {
      const size_t piece = std::min<uint64_t>(noise.size(), bytes - at);
      if (::pwrite(made->memfd.get(), noise.data(), piece, static_cast<off_t>(at)) !=
          static_cast<ssize_t>(piece))
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  memory = std::move(made);
  return CUDA_SUCCESS;
}

std::string NameOf(int fd) {
  std::array<char, 32> link{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  std::array<char, 128> target{};
  const ssize_t length = ::readlink(link.data(), target.data(), target.size());
  if (length < 0 || static_cast<size_t>(length) == target.size()) return {};
  std::string name(target.data(), static_cast<size_t>(length));
  return name.rfind(kPrefix, 0) == 0 ? name : std::string();
}

CUresult AdoptMemory(int fd, std::shared_ptr<Allocation>& memory) {
  if (NameOf(fd).empty()) return CUDA_ERROR_INVALID_VALUE;
  auto adopted = std::make_shared<Allocation>();
  adopted->memfd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  struct stat about {};
  if (!adopted->memfd || ::fstat(adopted->memfd.get(), &about) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  adopted->bytes = static_cast<uint64_t>(about.st_size);
  adopted->exportable = true;
  memory = std::move(adopted);
  return CUDA_SUCCESS;
}

uint64_t ReserveSpace(uint64_t bytes, uint64_t alignment) {
  if (bytes > UINT64_MAX - alignment) return 0;
  const uint64_t all = bytes + alignment;
  void* const space = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return 0;
  const uint64_t from = AddressOf(space);
  const uint64_t address = (from + alignment - 1) / alignment * alignment;
  if (address > from) ReturnSpace(from, address - from);
  if (from + all > address + bytes) ReturnSpace(address + bytes, from + all - (address + bytes));
  return address;
}

bool FillSpace(uint64_t address, uint64_t bytes, const Allocation& memory, Rights rights) {
  const bool none = rights == Rights::kNone;
  const int protection = none ? PROT_NONE : rights == Rights::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = none ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  const int fd = none ? -1 : memory.memfd.get();
  return ::mmap(PointerTo(address), bytes, protection, flags | MAP_FIXED, fd, 0) != MAP_FAILED;
}

void ReturnSpace(uint64_t address, uint64_t bytes) {
  (void)::munmap(PointerTo(address), bytes);  // fails only for what is no address
}

bool IsDeviceMemory(uint64_t address, uint64_t bytes, Rights rights) {
  const MutexLock lock(g_state.mutex);
  const auto found = Holding(g_state.regions, address, bytes);
  return found != g_state.regions.end() && found->second.rights >= rights;
}

bool IsReachableFrom(CUdevice device, uint64_t address, uint64_t bytes, Rights rights) {
  if (IsRegisteredHost(address, bytes)) return true;
  const MutexLock lock(g_state.mutex);
  const auto found = Holding(g_state.regions, address, bytes);
  if (found == g_state.regions.end()) return false;
  const Region& region = found->second;
  if (region.origin != Origin::kMapped) return region.rights >= rights;
  const auto granted = region.by_device.find(device);
  return granted != region.by_device.end() && granted->second >= rights;
}

bool IsRegisteredHost(uint64_t address, uint64_t bytes) {
  const MutexLock lock(g_state.mutex);
  return Holding(g_state.registered, address, bytes) != g_state.registered.end();
}

bool IsReachable(uint64_t address, uint64_t bytes, Rights rights) {
  return IsDeviceMemory(address, bytes, rights) || IsRegisteredHost(address, bytes);
}

}  // namespace pinfeed::stand_in
