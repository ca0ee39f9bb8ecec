// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/image_decoder.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include "client/src/decode/engine_calls.h"
#include "client/src/decode/image_plan_check.h"

namespace pinfeed {

Result<std::unique_ptr<GpuImageDecoder>> GpuImageDecoder::Create(std::shared_ptr<const CudaDevice> device,
                                                                 const Options& options) {
  ASSIGN_OR_RETURN(const NvJpeg* const nvjpeg, NvJpeg::Load());
  return Create(std::move(device), options, *nvjpeg);
}

Result<std::unique_ptr<GpuImageDecoder>> GpuImageDecoder::Create(std::shared_ptr<const CudaDevice> device,
                                                                 const Options& options,
                                                                 const NvJpeg& nvjpeg) {
  std::unique_ptr<GpuImageDecoder> decoder(new GpuImageDecoder(std::move(device), options));
  RETURN_IF_ERROR(decoder->Open(nvjpeg));
  return decoder;
}

Status GpuImageDecoder::Open(const NvJpeg& api) {
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  Result<JpegEngines> engines = JpegEngines::Open(api);
  if (!engines.ok())
    return engines.status().WithContext("decode images on GPU " + device_->uuid() + " (" + device_->name() +
                                        ")");
  engines_.emplace(*std::move(engines));
  ASSIGN_OR_RETURN(stream_, DecodeStream::Create(device_));
  ASSIGN_OR_RETURN(host_, PinnedMemory::Create(device_, "pinfeed-decode", sizeof(HostPages)));
  new (host_->bytes().data()) HostPages;
  ASSIGN_OR_RETURN(pixels_, DeviceMemory::Allocate(device_, kPixelBytes));
  ASSIGN_OR_RETURN(images_, DeviceMemory::Allocate(device_, sizeof pages().images));
  return OkStatus();
}

// nvJPEG's handles go in the context.
GpuImageDecoder::~GpuImageDecoder() {
  const auto scope = device_->Enter();
  engines_.reset();
}

Status GpuImageDecoder::Decode(std::span<const ImageToDecode> images, std::span<Status> failures) {
  PF_CHECK(images.size() <= kMaxImages && failures.size() == images.size(), "one status an image");
  ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
  std::fill(failures.begin(), failures.end(), OkStatus());
  for (size_t next = 0; next < images.size();) {
    chunk_.count = 0;
    chunk_.used = 0;
    for (bool added = true; added && next < images.size(); next += added ? 1 : 0) {
      ASSIGN_OR_RETURN(added, AddImage(images[next], next, failures[next]));
    }
    if (Status done = RunChunk(images, failures); !done.ok()) {
      stream_->Drain();
      return done;
    }
  }
  return OkStatus();
}

// Takes an image into the chunk. One that cannot be decoded becomes zeros. Returns false if there is no room,
// and an error if nvJPEG lacks memory, which is no fault of the image.
Result<bool> GpuImageDecoder::AddImage(const ImageToDecode& image, size_t index, Status& failure) {
  PF_CHECK(image.plan.kind != static_cast<uint32_t>(ImagePlanKind::kPixels), "pixels need no decoder");
  Made made{.index = index};
  DecodedImage job{};
  if (failure.ok()) failure = CheckImagePlan(image.plan, options_.height, options_.width);
  if (failure.ok() && image.plan.kind == static_cast<uint32_t>(ImagePlanKind::kJpeg))
    failure = PlanImage(image, made, job);
  if (failure.code() == Code::kResourceExhausted) return std::exchange(failure, OkStatus());
  if (!failure.ok()) {
    made = Made{.index = index};
    job = {};
  }
  if (made.pixels.bytes > kPixelBytes - chunk_.used) return false;
  made.pixels.offset = chunk_.used;
  chunk_.used += made.pixels.bytes;
  if (made.pixels.bytes != 0)
    job.pixels =
        reinterpret_cast<const uint8_t*>(AddressOf(made.pixels));  // NOLINT(performance-no-int-to-ptr)
  job.out = reinterpret_cast<uint8_t*>(image.out);                 // NOLINT(performance-no-int-to-ptr)
  pages().images[chunk_.count] = job;
  pages().unwritten[chunk_.count] = 0;
  chunk_.made[chunk_.count++] = made;
  return true;
}

// Of a JPEG file whose plan is checked.
Status GpuImageDecoder::PlanImage(const ImageToDecode& image, Made& made, DecodedImage& job) {
  ASSIGN_OR_RETURN(const JpegFrame frame, engines_->ReadHeader(image.bytes));
  RETURN_IF_ERROR(CheckJpegFrame(image.plan, frame));
  made.pixels = PixelsOf(frame);
  if (made.pixels.bytes > kPixelBytes)
    return DataLoss("a JPEG file of " + std::to_string(frame.width) + " x " + std::to_string(frame.height) +
                    " pixels is too large for the GPU's decoder");
  made.region = EngineRegion(image.plan);
  job = Describe(image.plan, made.pixels);
  ASSIGN_OR_RETURN(made.on_engine, engines_->CanDecode());
  made.again = !made.on_engine;
  return OkStatus();
}

Status GpuImageDecoder::RunChunk(std::span<const ImageToDecode> images, std::span<Status> failures) {
  const DecodeImages jobs = JobsOf(0, chunk_.count);
  RETURN_IF_ERROR(CopyJobs(0, chunk_.count));
  RETURN_IF_ERROR(stream_->Poison(jobs));
  // The engines may not wait for the stream.
  RETURN_IF_ERROR(stream_->Wait());
  RunEngines(images);
  RETURN_IF_ERROR(stream_->Launch(jobs));
  RETURN_IF_ERROR(stream_->Wait());
  for (size_t i = 0; i < chunk_.count; ++i) {
    const size_t index = chunk_.made[i].index;
    if (chunk_.made[i].again || pages().unwritten[i] != 0)
      RETURN_IF_ERROR(DecodeAgain(images[index], i, failures[index]));
  }
  return OkStatus();
}

// Decodes what the engines can decode. If they refuse, the pixels' place keeps the poison.
void GpuImageDecoder::RunEngines(std::span<const ImageToDecode> images) {
  std::array<JpegEngines::Work, kMaxImages> work;
  size_t count = 0;
  for (const Made& made : std::span(chunk_.made).first(chunk_.count))
    if (made.on_engine) work[count++] = WorkOf(images[made.index], made);
  if (count == 0) return;
  {
    const EngineCalls::Scope call(EngineCalls::Of(device_->ordinal()));
    if (engines_->Decode(std::span(work).first(count), stream_->native())) return;
  }
  for (Made& made : std::span(chunk_.made).first(chunk_.count)) made.again |= made.on_engine;
}

// Decodes image number `number` of the chunk without the engines.
Status GpuImageDecoder::DecodeAgain(const ImageToDecode& image, size_t number, Status& failure) {
  ++decoded_again_;
  const Made& made = chunk_.made[number];
  const EnginePixels& pixels = made.pixels;
  // What a damaged file leaves out is the same each time.
  RETURN_IF_ERROR(stream_->Zero(AddressOf(pixels), pixels.bytes));
  RETURN_IF_ERROR(engines_->DecodeWithout(WorkOf(image, made), stream_->native(), failure));
  if (!failure.ok()) pages().images[number].pixels = nullptr;
  RETURN_IF_ERROR(CopyJobs(number, 1));
  DecodeImages unchecked = JobsOf(number, 1);
  unchecked.poison = 0;
  RETURN_IF_ERROR(stream_->Launch(unchecked));
  return stream_->Wait();
}

// Queues the copy of what the kernels are to do with images of the chunk.
Status GpuImageDecoder::CopyJobs(size_t first, size_t count) {
  return stream_->Copy(images_.address() + first * sizeof(DecodedImage), &pages().images[first],
                       count * sizeof(DecodedImage));
}

DecodeImages GpuImageDecoder::JobsOf(size_t first, size_t count) const {
  const CUdeviceptr images = images_.address() + first * sizeof(DecodedImage);
  DecodeImages work{};
  work.images = reinterpret_cast<const DecodedImage*>(images);  // NOLINT(performance-no-int-to-ptr)
  work.unwritten = reinterpret_cast<uint32_t*>(                 // NOLINT(performance-no-int-to-ptr)
      host_->device_address() + offsetof(HostPages, unwritten) + first * sizeof(uint32_t));
  work.poison = poison_;
  work.count = static_cast<uint32_t>(count);
  work.height = options_.height;
  work.width = options_.width;
  work.channels = options_.channels;
  return work;
}

JpegEngines::Work GpuImageDecoder::WorkOf(const ImageToDecode& image, const Made& made) const {
  JpegEngines::Work work{image.bytes, {}, made.region};
  work.output.channel[0] =
      reinterpret_cast<unsigned char*>(AddressOf(made.pixels));  // NOLINT(performance-no-int-to-ptr)
  work.output.pitch[0] = made.pixels.pitch;
  return work;
}

}  // namespace pinfeed
