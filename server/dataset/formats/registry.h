// SPDX-License-Identifier: Apache-2.0
// The registry of dataset formats. A new format needs its own files in this folder, a line here and one in
// registry.cc, and fields for its options in pinfeed.v1.DatasetSpec.
#pragma once

#include "server/dataset/format.h"

namespace pinfeed {

const DatasetFormat& ImageFolderFormat();
const DatasetFormat& ManifestFormat();
const DatasetFormat& NpyFormat();
const DatasetFormat& TokensFormat();
const DatasetFormat& WebdatasetFormat();

}  // namespace pinfeed
