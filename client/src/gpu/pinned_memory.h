// SPDX-License-Identifier: Apache-2.0
// Host memory that a GPU reads and writes at the full rate of its link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/base/result.h"
#include "common/cuda/device_memory.h"
#include "common/os/memfd.h"

namespace pinfeed {

// Purpose: page-locked pages of zeros. Owns them and their registration. They are shared memory: those of a
// private mapping could change below the GPU when the process forks. Threads: any; the caller synchronises
// access to the bytes. Errors: kResourceExhausted: too little memory.
class PinnedMemory {
 public:
  // `name` appears in /proc/PID/maps.
  static Result<std::unique_ptr<const PinnedMemory>> Create(std::shared_ptr<const CudaDevice> device,
                                                            const char* name, uint64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::span<std::byte> bytes() const { return {mapping_.data(), mapping_.size()}; }
  // Of the first byte.
  CUdeviceptr device_address() const { return registration_.device_address(); }

 private:
  PinnedMemory(Mapping mapping, HostRegistration registration)
      : mapping_(std::move(mapping)), registration_(std::move(registration)) {}

  const Mapping mapping_;
  const HostRegistration registration_;  // goes before the pages
};

}  // namespace pinfeed
