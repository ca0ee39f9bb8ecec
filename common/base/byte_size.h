// SPDX-License-Identifier: Apache-2.0
// Numbers of bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace pinfeed {

// "1.5 GiB", "16 MiB", "512 B"
std::string ByteSize(uint64_t bytes);
// "1.5 GiB (1610612736 bytes)", "512 bytes": where two sizes are compared that may round to the same text.
std::string ExactByteSize(uint64_t bytes);

}  // namespace pinfeed
