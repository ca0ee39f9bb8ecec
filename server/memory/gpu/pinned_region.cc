// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/pinned_region.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/round_up.h"
#include "common/os/start_thread.h"
#include "common/spec/tensor_spec.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
// A single registration of 512 GiB fails with some drivers (r580), so stay well below that.
constexpr uint64_t kRegistrationBytes = uint64_t{64} << 30;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Calls mbind directly: libnuma would be a dependency for one line.
Status BindToNode(void* address, uint64_t bytes, int node) {
  constexpr int kBind = 2;  // MPOL_BIND of linux/mempolicy.h
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> mask{};
  if (node < 0 || static_cast<size_t>(node) >= mask.size() * kBits)
    return InvalidArgument("bind pinned memory to NUMA node " + std::to_string(node) +
                           ": there is no such node");
  mask[static_cast<size_t>(node) / kBits] = 1UL << (static_cast<size_t>(node) % kBits);
  if (::syscall(SYS_mbind, address, bytes, kBind, mask.data(), mask.size() * kBits, 0) != 0)
    return ErrnoStatus("bind pinned memory to NUMA node " + std::to_string(node), errno);
  return OkStatus();
}

}  // namespace

void AnonymousPagesTraits::Close(Handle pages) noexcept {
  ::munmap(pages.data, pages.bytes);
}

void PinnedBlockTraits::Close(const Handle& block) noexcept {
  block.region->ReturnRange(block.data, block.bytes);
}

PinnedRegion::PinnedRegion(UniquePages pages, const Options& options, BudgetLease lease)
    : data_(pages.get().data),
      bytes_(pages.get().bytes),
      lease_(std::move(lease)),
      account_(bytes_, static_cast<uint64_t>(static_cast<double>(bytes_) * options.user_share),
               {options.numa_node < 0 ? "the pinned memory"
                                      : "the pinned memory of NUMA node " + std::to_string(options.numa_node),
                "pinned_bytes", "user_pinned_bytes"}),
      pages_(std::move(pages)) {}

Result<std::unique_ptr<PinnedRegion>> PinnedRegion::Create(const std::shared_ptr<const CudaDevice>& device,
                                                           const Options& options, BudgetLease lease) {
  const auto start = Clock::now();
  const uint64_t bytes = options.bytes / kHugePage * kHugePage;
  if (bytes == 0)
    return InvalidArgument("pinned_bytes: " + std::to_string(options.bytes) + " is less than 2 MiB");
  void* const address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    return ErrnoStatus("map " + std::to_string(bytes) + " bytes to be pinned", errno);
  UniquePages pages({static_cast<std::byte*>(address), bytes});
  std::unique_ptr<PinnedRegion> region(new PinnedRegion(std::move(pages), options, std::move(lease)));
  // Both are optimisations: a kernel without them still provides the memory.
  if (::madvise(address, bytes, MADV_HUGEPAGE) != 0)
    spdlog::debug("no huge pages for pinned memory: errno {}", errno);
  if (options.numa_node >= 0) {
    if (const Status bound = BindToNode(address, bytes, options.numa_node); !bound.ok())
      spdlog::warn("{}; copies may be slower", bound.ToString());
  }
  region->FaultIn(options);
  const auto faulted = Clock::now();
  RETURN_IF_ERROR(region->Register(device, options));
  spdlog::info(
      "pinned {} MiB of host memory (NUMA node {}): {:.2f} s to fault it in with {} threads, {:.2f} s to "
      "register it",
      bytes >> 20, options.numa_node, Seconds(faulted - start), options.threads,
      Seconds(Clock::now() - faulted));
  return region;
}

PinnedRegion::~PinnedRegion() {
  PF_CHECK(used_bytes() == 0, "staging memory is returned before its region is destroyed");
}

void PinnedRegion::FaultIn(const Options& options) {
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> done{0};
  const auto work = [&] {
    for (uint64_t begin = 0; (begin = kHugePage * next++) < bytes_;) {
      for (uint64_t page = 0; page < kHugePage; page += kPage)
        *static_cast<volatile std::byte*>(data_ + begin + page) = std::byte{0};
      if (options.on_progress) options.on_progress(done += kHugePage, bytes_);
    }
  };
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < options.threads) helpers.push_back(StartThread("pin-memory", work));
  } catch (const std::system_error& error) {
    spdlog::debug("pinned pool: {} of {} threads fault it in: {}", helpers.size() + 1, options.threads,
                  error.what());
  }
  work();
  for (std::thread& thread : helpers) thread.join();
}

Status PinnedRegion::Register(const std::shared_ptr<const CudaDevice>& device, const Options& options) {
  for (uint64_t at = 0; at < bytes_; at += kRegistrationBytes) {
    const uint64_t piece = std::min(kRegistrationBytes, bytes_ - at);
    ASSIGN_OR_RETURN(HostRegistration registration, HostRegistration::Create(device, data_ + at, piece));
    registrations_.push_back(std::move(registration));
    {
      const MutexLock lock(mutex_);
      free_.emplace(at, piece);
    }
    if (options.on_progress) options.on_progress(bytes_, bytes_);
  }
  return OkStatus();
}

Result<PinnedBlocks> PinnedRegion::Take(const std::vector<uint64_t>& sizes, uid_t user) {
  uint64_t total = 0;
  for (const uint64_t bytes : sizes) {
    if (bytes > UINT64_MAX - kPage || !CheckedAdd(total, RoundUp(bytes, kPage), &total)) total = UINT64_MAX;
    if (total == UINT64_MAX) break;  // Reserve rejects this size
  }
  PinnedBlocks taken;  // on an error it is returned without the lock
  ASSIGN_OR_RETURN(taken.lease_, account_.Reserve(total, user));
  const MutexLock lock(mutex_);
  for (const uint64_t bytes : sizes) {
    std::byte* const data = TakeRangeLocked(RoundUp(bytes, kPage));
    if (data == nullptr) {
      uint64_t largest = 0;
      for (const auto& [offset, free_bytes] : free_) largest = std::max(largest, free_bytes);
      return ResourceExhausted(
          "take " + ExactByteSize(total) +
          " of pinned memory: " + ExactByteSize(bytes_ - (account_.used_bytes() - total)) + " of its " +
          ByteSize(bytes_) + " are free, but fragmented: there is no free block of " + ExactByteSize(bytes) +
          " left, the largest has " + ExactByteSize(largest) +
          "; close a feed that `pinfeed status` lists, ask for a smaller batch or fewer slots, or give the "
          "daemon more pinned_bytes");
    }
    taken.blocks_.emplace_back(PinnedBlockTraits::Handle{this, data, RoundUp(bytes, kPage)});
  }
  return taken;
}

// First fit: staging memory lives as long as its feed and consists of many blocks of one size.
std::byte* PinnedRegion::TakeRangeLocked(uint64_t bytes) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, free_bytes] = *range;
    if (free_bytes < bytes) continue;
    free_.erase(range);
    if (free_bytes > bytes) free_.emplace(offset + bytes, free_bytes - bytes);
    return data_ + offset;
  }
  return nullptr;
}

void PinnedRegion::ReturnRange(std::byte* data, uint64_t bytes) {
  const MutexLock lock(mutex_);
  const auto offset = static_cast<uint64_t>(data - data_);
  auto [here, added] = free_.emplace(offset, bytes);
  const auto at_registration_start = [](uint64_t at) { return at % kRegistrationBytes == 0; };
  if (const auto next = std::next(here);
      next != free_.end() && next->first == offset + bytes && !at_registration_start(next->first)) {
    here->second += next->second;
    free_.erase(next);
  }
  if (here != free_.begin() && !at_registration_start(offset)) {
    const auto before = std::prev(here);
    if (before->first + before->second == offset) {
      before->second += here->second;
      free_.erase(here);
    }
  }
}

}  // namespace pinfeed
