// SPDX-License-Identifier: Apache-2.0
// The orientation of a PNG image. In: the file's chunks. Out: the orientation, by Pillow's rules.
#pragma once

#include "common/base/result.h"
#include "server/image/png_chunks.h"

namespace pinfeed {

// Returns 1 to 8, and 1 when the orientation is missing or malformed. An eXIf chunk takes precedence, then
// text named "Raw profile type exif", then XMP; of several chunks with one name, the last, before or behind
// the pixels. kResourceExhausted when the text inflates to more than 1 MiB, which Pillow also rejects.
Result<int> PngOrientation(const PngChunks& chunks);

}  // namespace pinfeed
