// SPDX-License-Identifier: Apache-2.0
// Formats byte counts for people.
#pragma once

#include <cstdint>
#include <string>

namespace pinfeed {

// "1.5 GiB", "16 MiB", "512 B"
std::string ByteSize(uint64_t bytes);
// "1.5 GiB (1610612736 bytes)", "512 bytes". For messages that compare two sizes, which may round to the same
// text.
std::string ExactByteSize(uint64_t bytes);

}  // namespace pinfeed
