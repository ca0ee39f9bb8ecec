// SPDX-License-Identifier: Apache-2.0
#include "server/loading/gpu_decode_program.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/base/sample_random.h"
#include "server/loading/sample_buffers.h"
#include "server/memory/host_memory_ledger.h"
#include "server/transform/field_roles.h"
#include "server/transform/gpu_plan.h"

namespace pinfeed {
namespace {

constexpr char kPlanSuffix[] = ".plan";  // behind the image's name
// The number of the draw that decides which side decodes; no transform has it.
constexpr uint32_t kDecodeDraw = UINT32_MAX;

void Write(const ImagePlan& plan, std::span<std::byte> place) {
  std::memcpy(place.data(), &plan, sizeof plan);
}

// Images a second of 500 x 375 pixels, to 224 x 224, on an H100 with 16 cores (tests/gpu/bench.py, part
// decode). Elsewhere the share that follows is right to some percent, since both sides grow with the images.
constexpr double kWorkerDecodes = 700;   // of a worker that decodes and transforms
constexpr double kWorkerPasses = 18500;  // of a worker that checks a file and passes it on
constexpr double kGpuDecodes = 31000;

// The processors that a client's decode threads, which spin in nvJPEG, and its trainer need. With 16 of 16
// workers, "auto" gave 33,900 images a second on an H100, with 12 38,100 (docs/decisions/0039).
constexpr uint32_t kClientThreads = 4;

// The share with which both finish at once: with it, workers * share / kGpuDecodes seconds of the workers are
// share / kWorkerPasses + (1 - share) / kWorkerDecodes.
uint32_t ShareFor(uint32_t workers) {
  const double share = 1 / kWorkerDecodes / (1 / kWorkerDecodes - 1 / kWorkerPasses + workers / kGpuDecodes);
  return static_cast<uint32_t>(std::clamp(share, 0.001, 1.0) * kWholeShare);
}

// Why no image of this feed can be decoded by a GPU; empty: some can, or the spec has faults.
std::string WhyNotOnGpu(const FeedSpec& spec, const Dataset& dataset) {
  Faults faults;
  std::vector<TransformSpec> specs = spec.transforms;
  const TransformChain transforms = TransformChain::Parse(specs, faults);
  if (!faults.empty()) return "";
  const FieldRoles roles = AssignFieldRoles(dataset.info().fields, spec, transforms, faults);
  transforms.Follow({}, faults);
  if (!faults.empty()) return "";
  if (!roles.image || dataset.info().fields[*roles.image].kind != FieldKind::kEncodedImage)
    return "the dataset has no image files";
  if (!MayFitGpu(transforms)) {
    return "the GPU crops, resizes once and crops the result, and these transforms pad, resize twice or "
           "change an image in another way; leave Pad and the second Resize out, or decode on the CPU";
  }
  return "";
}

}  // namespace

GpuDecodeProgram::GpuDecodeProgram(const FeedSpec& spec, DeferredPixelOps& ops,
                                   std::vector<TensorSpec>& outputs)
    : seed_(spec.seed),
      share_(GpuShare(spec)),
      oriented_(!spec.ignore_exif_orientation),
      image_(ops.tensor),
      plan_(outputs.size()),
      mark_(outputs.size() + 1),
      height_(ops.height),
      width_(ops.width),
      channels_(ops.channels),
      capacity_(std::max<uint64_t>(kMinEncodedBytes, height_ * width_ * channels_)),
      as_is_(TransformChain(), channels_, ImageLayout::kHwc) {
  const std::string name = outputs[image_].name;
  outputs[image_] = {name, DType::kUint8, {static_cast<int64_t>(capacity_)}};
  outputs[image_].extents = static_cast<uint32_t>(outputs.size() + 2);
  outputs.push_back({name + kPlanSuffix, DType::kUint8, {sizeof(ImagePlan)}});
  outputs.push_back({name + kMarkSuffix, DType::kUint8, {}});
  outputs.push_back({name + kExtentsSuffix, DType::kInt64, {2}});
  ops.plan = static_cast<uint32_t>(plan_);
  ops.mark = static_cast<uint32_t>(mark_);
}

bool GpuDecodeProgram::IsForGpu(const SampleKey& key) const {
  return SampleRandom(seed_, key.epoch, key.id, kDecodeDraw).Below(kWholeShare) < share_;
}

Status GpuDecodeProgram::Load(const SampleKey& key, const TransformChain& transforms,
                              const SamplePlaces& places, SampleScratch::Buffers& buffers) const {
  ASSIGN_OR_RETURN(const ImageSize size, buffers.image.decoder.Open(buffers.image.encoded, oriented_));
  RETURN_IF_ERROR(transforms.Plan({seed_, key.epoch, key.id}, size, buffers.plan));
  const ImageMark mark = buffers.plan.flip ? ImageMark::kMirrored : ImageMark::kPlain;
  places[mark_].front() = static_cast<std::byte>(mark);

  const size_t bytes = IsForGpu(key) && int64_t{size.width} * size.height <= kMaxPlanPixels
                           ? buffers.image.decoder.PlainBytes()
                           : 0;
  if (bytes == 0 || bytes > capacity_) return LoadPixels(size, places, buffers);
  const std::optional<ImagePlan> plan = PlanForGpu(buffers.plan, size);
  if (!plan) return LoadPixels(size, places, buffers);
  RETURN_IF_ERROR(buffers.image.decoder.CheckPlain());
  Write(*plan, places[plan_]);
  return places.Pack(image_, std::span(buffers.image.encoded).first(bytes));
}

Status GpuDecodeProgram::LoadPixels(ImageSize size, const SamplePlaces& places,
                                    SampleScratch::Buffers& buffers) const {
  ASSIGN_OR_RETURN(const ImageView source, buffers.image.decoder.Decode(SourceRegion(buffers.plan, size)));
  ASSIGN_OR_RETURN(const ImageView result, RunGeometry(buffers.plan, size, source, buffers.geometry));
  RETURN_IF_ERROR(ResizeForSample(height_ * width_ * channels_, buffers.pixels));
  as_is_.Run(buffers.plan.flip_vertical ? result.UpsideDown() : result, false, buffers.pixels);
  ImagePlan plan{};
  plan.kind = static_cast<uint32_t>(ImagePlanKind::kPixels);
  Write(plan, places[plan_]);
  return places.Pack(image_, buffers.pixels);
}

uint32_t WorkersBesideDecoders(uint32_t workers, uint32_t cpus, uint32_t ranks) {
  const uint32_t own_workers = std::max(workers / ranks, 1U);
  const uint32_t own_cpus = cpus / ranks;
  const uint32_t beside = own_cpus - std::min(own_cpus, kClientThreads);
  return std::min(own_workers, std::max({beside, own_workers / 2, 1U}));
}

Result<DecodeChoice> ChooseDecode(const FeedSpec& spec, const Dataset& dataset, const std::string& no_decoder,
                                  uint32_t workers) {
  if (spec.decode == Decode::kCpu) return DecodeChoice{};
  const std::string unfit = WhyNotOnGpu(spec, dataset);
  const bool open = LeavesDecodeOpen(spec);
  if (unfit.empty() && no_decoder.empty())
    return DecodeChoice{spec.decode, open ? ShareFor(workers) : spec.gpu_share, ""};
  const std::string why = unfit.empty() ? no_decoder : unfit;
  if (open) return DecodeChoice{Decode::kCpu, 0, why};
  const std::string message = "decode: the GPU cannot decode for this feed: " + why;
  return unfit.empty() ? FailedPrecondition(message) : InvalidArgument(message);
}

}  // namespace pinfeed
