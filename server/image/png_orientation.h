// SPDX-License-Identifier: Apache-2.0
// The orientation of a PNG image. In: the file's chunks. Out: the orientation, by Pillow's rules.
#pragma once

#include "common/base/result.h"
#include "server/image/png_chunks.h"

namespace pinfeed {

// 1 to 8; 1 when nothing says it, or something malformed. An eXIf chunk counts first, then text named
// "Raw profile type exif", then XMP; of chunks of one name the last. What stands before the pixels is enough
// when an eXIf chunk is there. kResourceExhausted for such text that inflates to more than 1 MiB, which
// Pillow refuses, too.
Result<int> PngOrientation(const PngChunks& chunks);

}  // namespace pinfeed
