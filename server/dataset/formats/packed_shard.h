// SPDX-License-Identifier: Apache-2.0
// The index of a shard as bytes, as it is kept from one open to the next. In: an index; or such bytes, which
// may be damaged or forged. Out: the bytes; or the index, all checked.
//
// The bytes: numbers of 64 bits (the shard's size, files that were passed over, samples, bytes of their keys,
// fields, labels), 32 bits for where each key ends, and the keys; then for each field, in ascending order of
// their names, 32 bits for the length of its name, the name, and offset and size of each sample's file; then
// the labels, if the index has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/dataset/formats/shard_index.h"

namespace pinfeed {

uint64_t PackedShardBytes(const ShardIndex& shard);
std::string PackShard(const ShardIndex& shard);

// Returns the index, without the shard's name and time. Empty if PackShard cannot have made the bytes.
std::optional<ShardIndex> UnpackShard(std::string_view bytes);

}  // namespace pinfeed
