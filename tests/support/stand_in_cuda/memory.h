// SPDX-License-Identifier: Apache-2.0
// Device memory as the stand-in makes it: a memfd that says in its name what it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/support/stand_in_cuda/stand_in.h"

namespace pinfeed::stand_in {

// `bytes` are whole pages of the device. CUDA_ERROR_OUT_OF_MEMORY beyond what the device has left.
CUresult MakeMemory(Device& device, uint64_t bytes, bool exportable, std::shared_ptr<Allocation>& memory);
// Memory made by any process; takes a descriptor of its own. CUDA_ERROR_INVALID_VALUE when it is none.
CUresult AdoptMemory(int fd, std::shared_ptr<Allocation>& memory);
// "/memfd:..." for device memory: the same in every process, and of no other memory. Else empty.
std::string NameOf(int fd);

// Address space without rights, a multiple of `alignment` (a power of two); 0 when there is none.
uint64_t ReserveSpace(uint64_t bytes, uint64_t alignment);
// Puts memory, or nothing (kNone), into space that was reserved.
bool FillSpace(uint64_t address, uint64_t bytes, const Allocation& memory, Rights rights);
void ReturnSpace(uint64_t address, uint64_t bytes);

// Up to whole pages of the device; the caller has checked that it does not overflow.
inline uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

}  // namespace pinfeed::stand_in
