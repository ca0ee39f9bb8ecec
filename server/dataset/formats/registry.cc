// SPDX-License-Identifier: Apache-2.0
#include "server/dataset/formats/registry.h"

namespace pinfeed {

std::span<const DatasetFormat* const> DatasetFormats() {
  static const DatasetFormat* const formats[] = {&ImageFolderFormat(), &ManifestFormat(), &NpyFormat(),
                                                 &TokensFormat(), &WebdatasetFormat()};
  return formats;
}

}  // namespace pinfeed
