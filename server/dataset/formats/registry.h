// SPDX-License-Identifier: Apache-2.0
// Every dataset format. A new one is its own files in this folder, a line here and one in registry.cc, and
// its options' fields in pinfeed.v1.DatasetSpec.
#pragma once

#include "server/dataset/format.h"

namespace pinfeed {

const DatasetFormat& ImageFolderFormat();
const DatasetFormat& ManifestFormat();
const DatasetFormat& NpyFormat();
const DatasetFormat& TokensFormat();

}  // namespace pinfeed
