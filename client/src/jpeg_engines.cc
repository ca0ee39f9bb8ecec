// SPDX-License-Identifier: Apache-2.0
#include "client/src/read_jpeg_frame.h"

#include <string>

namespace pinfeed {

Result<JpegFrame> ReadJpegFrame(const NvJpeg& api, const nvjpeg::Decoder& decoder,
                                std::span<const std::byte> bytes) {
  const std::string what = "read the header of a JPEG file of " + std::to_string(bytes.size()) + " bytes";
  nvjpeg::Encoding encoding = nvjpeg::Encoding::kUnknown;
  nvjpeg::Subsampling subsampling = nvjpeg::Subsampling::kUnknown;
  const nvjpeg::Bitstream stream = decoder.bitstream();
  JpegFrame frame;
  RETURN_IF_ERROR(ToStatus(
      api.nvjpegJpegStreamParseHeader(decoder.handle(), reinterpret_cast<const unsigned char*>(bytes.data()),
                                      bytes.size(), stream),
      what));
  RETURN_IF_ERROR(ToStatus(api.nvjpegJpegStreamGetJpegEncoding(stream, &encoding), what));
  RETURN_IF_ERROR(
      ToStatus(api.nvjpegJpegStreamGetFrameDimensions(stream, &frame.width, &frame.height), what));
  RETURN_IF_ERROR(ToStatus(api.nvjpegJpegStreamGetComponentsNum(stream, &frame.components), what));
  RETURN_IF_ERROR(ToStatus(api.nvjpegJpegStreamGetChromaSubsampling(stream, &subsampling), what));
  frame.sequential =
      encoding == nvjpeg::Encoding::kBaseline || encoding == nvjpeg::Encoding::kExtendedSequential;
  switch (subsampling) {
    case nvjpeg::Subsampling::k444:
    case nvjpeg::Subsampling::kGray:
      break;
    case nvjpeg::Subsampling::k420:
      frame.v_shift = 1;
      [[fallthrough]];
    case nvjpeg::Subsampling::k422:
      frame.h_shift = 1;
      break;
    default:
      return DataLoss("the JPEG file samples its chroma in a way that is not decoded on the GPU");
  }
  return frame;
}

}  // namespace pinfeed
