// SPDX-License-Identifier: Apache-2.0
#include "client/src/gpu/pinned_memory.h"

namespace pinfeed {

Result<std::unique_ptr<const PinnedMemory>> PinnedMemory::Create(std::shared_ptr<const CudaDevice> device,
                                                                 const char* name, uint64_t bytes) {
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateMemfd(name, bytes));
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), bytes, Access::kReadWrite, true));
  ASSIGN_OR_RETURN(HostRegistration registration,
                   HostRegistration::Create(std::move(device), mapping.data(), bytes));
  return std::unique_ptr<const PinnedMemory>(new PinnedMemory(std::move(mapping), std::move(registration)));
}

}  // namespace pinfeed
