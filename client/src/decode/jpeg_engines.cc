// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/jpeg_engines.h"

#include <string>

namespace pinfeed {
namespace {

constexpr nvjpeg::OutputFormat kFormat = nvjpeg::OutputFormat::kRgbInterleaved;

const unsigned char* Data(std::span<const std::byte> file) {
  return reinterpret_cast<const unsigned char*>(file.data());
}

}  // namespace

Result<JpegEngines> JpegEngines::Open(const NvJpeg& api) {
  ASSIGN_OR_RETURN(nvjpeg::Decoder engines, nvjpeg::Decoder::Create(api, nvjpeg::Backend::kHardware));
  return JpegEngines(api, std::move(engines));
}

Result<JpegFrame> JpegEngines::ReadHeader(std::span<const std::byte> file) {
  const std::string what = "read the header of a JPEG file of " + std::to_string(file.size()) + " bytes";
  nvjpeg::Encoding encoding = nvjpeg::Encoding::kUnknown;
  nvjpeg::Subsampling subsampling = nvjpeg::Subsampling::kUnknown;
  const nvjpeg::Bitstream header = engines_.bitstream();
  JpegFrame frame;
  RETURN_IF_ERROR(
      ToStatus(api_.nvjpegJpegStreamParseHeader(engines_.handle(), Data(file), file.size(), header), what));
  RETURN_IF_ERROR(ToStatus(api_.nvjpegJpegStreamGetJpegEncoding(header, &encoding), what));
  RETURN_IF_ERROR(
      ToStatus(api_.nvjpegJpegStreamGetFrameDimensions(header, &frame.width, &frame.height), what));
  RETURN_IF_ERROR(ToStatus(api_.nvjpegJpegStreamGetComponentsNum(header, &frame.components), what));
  RETURN_IF_ERROR(ToStatus(api_.nvjpegJpegStreamGetChromaSubsampling(header, &subsampling), what));
  frame.sequential =
      encoding == nvjpeg::Encoding::kBaseline || encoding == nvjpeg::Encoding::kExtendedSequential;
  switch (subsampling) {
    case nvjpeg::Subsampling::k444:
    case nvjpeg::Subsampling::kGray:
      break;
    case nvjpeg::Subsampling::k420:
    case nvjpeg::Subsampling::k422:
      if (frame.components == 1) return DataLoss("the JPEG file samples its only component");
      break;
    default:
      return DataLoss("the JPEG file samples its chroma in a way that is not decoded on the GPU");
  }
  return frame;
}

Result<bool> JpegEngines::CanDecode() {
  int unsupported = 0;
  RETURN_IF_ERROR(
      ToStatus(api_.nvjpegDecodeBatchedSupported(engines_.handle(), engines_.bitstream(), &unsupported),
               "ask whether the GPU's engines decode a JPEG file"));
  return unsupported == 0;
}

// Makes the file a part of the next call. Returns false if nvJPEG fails.
bool JpegEngines::AddFile(const Work& work, bool whole) {
  const size_t number = data_.size();
  if (params_.size() == number) {
    nvjpeg::Params made = nullptr;
    if (api_.nvjpegDecodeParamsCreate(engines_.handle(), &made) != nvjpeg::ResultCode::kSuccess) return false;
    nvjpeg::UniqueParams owner({&api_, made});
    if (api_.nvjpegDecodeParamsSetOutputFormat(made, kFormat) != nvjpeg::ResultCode::kSuccess) return false;
    owned_params_.push_back(std::move(owner));
    params_.push_back(made);
  }
  ImageRegion region{0, 0, -1, -1};  // all of it
  nvjpeg::Image output = work.output;
  if (!whole) {
    region = work.region;
    output.channel[0] += static_cast<size_t>(region.y) * output.pitch[0] + 3 * static_cast<size_t>(region.x);
  }
  if (api_.nvjpegDecodeParamsSetROI(params_[number], region.x, region.y, region.width, region.height) !=
      nvjpeg::ResultCode::kSuccess)
    return false;
  data_.push_back(Data(work.file));
  sizes_.push_back(work.file.size());
  outputs_.push_back(output);
  return true;
}

bool JpegEngines::Call(std::span<const Work> files, bool whole, CUstream stream) {
  data_.clear();
  sizes_.clear();
  outputs_.clear();
  for (const Work& work : files)
    if (!AddFile(work, whole)) return false;
  nvjpeg::ResultCode result = nvjpeg::ResultCode::kSuccess;
  if (batch_ != files.size())
    result = api_.nvjpegDecodeBatchedInitialize(engines_.handle(), engines_.state(),
                                                static_cast<int>(files.size()), 1, kFormat);
  if (result == nvjpeg::ResultCode::kSuccess)
    result = api_.nvjpegDecodeBatchedEx(engines_.handle(), engines_.state(), data_.data(), sizes_.data(),
                                        outputs_.data(), params_.data(), stream);
  batch_ = result == nvjpeg::ResultCode::kSuccess ? files.size() : 0;
  return batch_ != 0;
}

bool JpegEngines::Decode(std::span<const Work> files, CUstream stream) {
  if (files.empty() || (!whole_images_ && Call(files, false, stream))) return true;
  // A file that is refused anyway says nothing about regions.
  whole_images_ = Call(files, true, stream);
  return whole_images_;
}

Status JpegEngines::DecodeWithout(Work work, CUstream stream, Status& failure) {
  if (!hybrid_) {
    ASSIGN_OR_RETURN(nvjpeg::Decoder hybrid, nvjpeg::Decoder::Create(api_, nvjpeg::Backend::kHybrid));
    hybrid_.emplace(std::move(hybrid));
  }
  Status decoded =
      ToStatus(api_.nvjpegDecode(hybrid_->handle(), hybrid_->state(), Data(work.file), work.file.size(),
                                 kFormat, &work.output, stream),
               "decode a JPEG file of " + std::to_string(work.file.size()) + " bytes on the GPU");
  if (decoded.code() == Code::kResourceExhausted) return decoded;
  failure = std::move(decoded);
  return OkStatus();
}

}  // namespace pinfeed
