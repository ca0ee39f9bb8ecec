// SPDX-License-Identifier: Apache-2.0
// Anonymous shared memory: made here, passed as a descriptor, mapped on both sides through
// Boost.Interprocess.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

enum class Access { kReadOnly, kReadWrite };

// Purpose: one mapping of a whole memfd. Owns the mapping, not the descriptor (which may be closed at once).
// Threads: the bytes are as shared as the caller makes them; the object itself is not for concurrent use.
// Moved-from maps nothing.
class Mapping {
 public:
  Mapping() = default;
  // Maps `bytes` from offset 0. `populate` faults every page in now, so that no later access has to.
  // kInvalidArgument when the file is smaller than `bytes` (checked before mapping: an access behind its end
  // would be a SIGBUS).
  static Result<Mapping> Map(int fd, uint64_t bytes, Access access, bool populate);

  std::byte* data() const { return static_cast<std::byte*>(region_.get_address()); }
  uint64_t size() const { return region_.get_size(); }

 private:
  explicit Mapping(boost::interprocess::mapped_region region) : region_(std::move(region)) {}
  boost::interprocess::mapped_region region_;
};

// A memfd of `bytes` zero bytes that can neither shrink nor grow. Its memory is allocated now:
// kResourceExhausted with the numbers when there is not enough. `name` shows in /proc/PID/maps.
Result<UniqueFd> CreateMemfd(const std::string& name, uint64_t bytes);
// The same, but without its memory: each part must be had by AllocateMemfd before it is touched.
Result<UniqueFd> CreateEmptyMemfd(const std::string& name, uint64_t bytes);
// Allocates [offset, offset + bytes) of a memfd. kResourceExhausted with the numbers when there is not
// enough, where a touch would be a SIGBUS.
Status AllocateMemfd(int fd, uint64_t offset, uint64_t bytes);

// Has the memory of [address, address + bytes) of a writable mapping made and mapped, at once instead of page
// by page when it is touched. kResourceExhausted with the numbers when there is not enough, where a touch
// would be a SIGBUS. kInvalidArgument before Linux 5.14, which cannot do it: AllocateMemfd can.
Status PopulateForWriting(std::byte* address, uint64_t bytes);

// The same memory as a file that was opened anew, for reading or for both. Each such opening, and what is
// mapped from it, is known to the kernel as a user of its own.
Result<UniqueFd> ReopenMemfd(int fd, Access access);

// Gives the memory of the first `bytes` back, whoever has it mapped: it reads as zeros from then on. Whether
// the kernel did it: not when the memory is sealed against writers.
bool DiscardMemfd(int fd, uint64_t bytes);

// From now on no new writable mapping can be made and no writable one regained by mprotect; mappings that
// exist keep their rights.
Status SealAgainstNewWriters(int fd);

// kInvalidArgument unless the descriptor is a memfd of exactly `bytes` that can neither shrink nor grow: what
// makes mapping it safe.
Status CheckSealedSize(int fd, uint64_t bytes);

}  // namespace pinfeed
