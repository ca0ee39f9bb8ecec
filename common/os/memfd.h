// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory: created here, passed as a descriptor, and mapped by both processes through
// Boost.Interprocess.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

enum class Access { kReadOnly, kReadWrite };

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Purpose: one mapping of a whole memfd. Owns the mapping, but not the descriptor, which may be closed
// immediately. Threads: the caller synchronises access to the bytes; the object itself is not thread-safe. A
// moved-from object maps nothing.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` from offset 0. `populate` faults in every page now, so that later accesses do not. The
  // address of a mapping of at least kHugePageBytes is a multiple of that, so that huge pages are mapped as
  // such. kInvalidArgument when the file is smaller than `bytes`: an access beyond its end would raise
  // SIGBUS.
  static Result<Mapping> Map(int fd, uint64_t bytes, Access access, bool populate);

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  uint64_t size() const { return region_.get_size(); }

 private:
  explicit Mapping(boost::interprocess::mapped_region region) : region_(std::move(region)) {}
  boost::interprocess::mapped_region region_;
};

// Creates a memfd of `bytes` zero bytes that can neither shrink nor grow. Its memory is allocated now:
// kResourceExhausted, with numbers, when there is not enough. `name` appears in /proc/PID/maps.
Result<UniqueFd> CreateMemfd(const std::string& name, uint64_t bytes);
// The same, but without allocating memory: each part must be allocated by AllocateMemfd before it is touched.
Result<UniqueFd> CreateEmptyMemfd(const std::string& name, uint64_t bytes);
// Allocates [offset, offset + bytes) of a memfd. kResourceExhausted, with numbers, when there is not enough
// memory; without this call, touching it would raise SIGBUS.
Status AllocateMemfd(int fd, uint64_t offset, uint64_t bytes);

// Returns how many bytes of a memfd are allocated.
Result<uint64_t> AllocatedBytes(int fd);

// Allocates and maps [address, address + bytes) of a writable mapping at once, rather than page by page on
// access. kResourceExhausted, with numbers, when there is not enough memory; touching it would raise SIGBUS.
// kInvalidArgument before Linux 5.14, which lacks this; use AllocateMemfd there.
Status PopulateForWriting(std::byte* address, uint64_t bytes);

// Allocates a huge page of a writable mapping, and moves what is there into it. `address` is a multiple of
// kHugePageBytes. This needs no setting of the system. Returns whether to try it for further pages: not when
// the kernel cannot do it (before Linux 6.1), or has no such page to give. Memory then consists of small
// pages.
bool AllocateHugePage(std::byte* address);

// Opens the same memory again, read-only or read-write. The kernel counts each such opening, with its
// mappings, as a separate user.
Result<UniqueFd> ReopenMemfd(int fd, Access access);

// Frees the first `bytes` even if they are mapped; they read as zeros from then on. Returns whether the
// kernel did so: it refuses for memory sealed against writers.
bool DiscardMemfd(int fd, uint64_t bytes);

// Seals the memory against new writable mappings, including by mprotect. Existing mappings keep their rights.
Status SealAgainstNewWriters(int fd);
// Seals the memory against further seals: a client with a writable descriptor could keep it from being
// discarded.
Status SealAgainstSeals(int fd);

// kInvalidArgument unless the descriptor is a memfd of exactly `bytes` that can neither shrink nor grow. Only
// such a descriptor is safe to map.
Status CheckSealedSize(int fd, uint64_t bytes);

}  // namespace pinfeed
