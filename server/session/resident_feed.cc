// SPDX-License-Identifier: Apache-2.0
// Makes feeds whose samples are resident on a GPU (decision 0049).
#include <memory>
#include <string>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/quote.h"
#include "common/spec/names.h"
#include "server/loading/resident_batch_producer.h"
#include "server/session/feed_builder.h"

namespace pinfeed {
namespace {

// With the resident AUTO, samples take at most half of what the user may have: other feeds need memory, too.
constexpr uint64_t kAutoShare = 2;

}  // namespace

Status FeedBuilder::CheckResident() const {
  if (arguments_.gpu_uuid.empty()) return FailedPrecondition("the client names no GPU");
  if (!arguments_.no_resident.empty())
    return FailedPrecondition("the client cannot map them: " + EscapeUnprintable(arguments_.no_resident));
  if (choice_.backend != Backend::kVmmFd) {
    return FailedPrecondition(
        std::string("trainers share them in memory that they can only read, which only vmm-fd gives, and "
                    "batches come to this client by ") +
        BackendName(choice_.backend) + (choice_.fallback.empty() ? "" : " (" + choice_.fallback + ")"));
  }
  const bool on_several = spec_.sharing == Sharing::kBroadcast && spec_.group_size != 1;
  if (spec_.resident == Resident::kAuto && on_several) {
    return FailedPrecondition(
        "the members of a broadcast may have several GPUs, and its samples would be on one; require it if "
        "all of them have the same");
  }
  return OkStatus();
}

Result<std::shared_ptr<ResidentData>> FeedBuilder::MakeResident(
    const ResidentPlan& plan, const std::shared_ptr<const Dataset>& opened,
    const std::shared_ptr<const Dataset>& dataset) const {
  RETURN_IF_ERROR(CheckResident());
  ASSIGN_OR_RETURN(std::unique_ptr<SampleLoader> loader, SampleLoader::Create(dataset, plan.load));
  ASSIGN_OR_RETURN(const BatchLayout layout, BatchLayout::Create(loader->outputs(), plan.load.batch_size));
  const uint64_t limit = parts_.devices->MaxPerUser().device;
  if (spec_.resident == Resident::kAuto && layout.slot_stride > limit / kAutoShare) {
    return ResourceExhausted(
        "the samples take " + ExactByteSize(layout.slot_stride) +
        " of the GPU's memory, more than half of the " + ExactByteSize(limit) +
        " that a user's feeds may have; only samples that must be resident may take more");
  }
  ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(plan.load, plan.load.batch_size));
  const auto make = [&]() -> Result<std::shared_ptr<ResidentData>> {
    const auto make_arena = [&] { return parts_.devices->MakeResident(arguments_.gpu_uuid, layout, owner_); };
    ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena,
                     WithMemory(Backend::kVmmFd, layout.slot_stride, make_arena)
                         .WithContext(std::to_string(plan.load.batch_size) + " samples of together " +
                                      ExactByteSize(layout.slot_stride)));
    auto producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, plan.load, layout,
                                                          parts_.workers, parts_.readers);
    return std::make_shared<ResidentData>(ResidentData::Parts{
        opened, plan, arguments_.gpu_uuid, std::move(arena), std::move(producer), sampler, owner_});
  };
  return parts_.residents->Acquire({owner_, arguments_.gpu_uuid, opened, plan.load}, make);
}

Result<std::unique_ptr<Feed>> FeedBuilder::MakeResidentFeed(const std::shared_ptr<const Dataset>& opened,
                                                            const std::shared_ptr<const Dataset>& dataset,
                                                            const Sampler& sampler, std::string* note) const {
  FeedSpec spec = spec_;
  // With the faults that it would have without resident samples.
  RETURN_IF_ERROR(SampleLoader::Create(dataset, spec).status());
  Result<ResidentPlan> plan = PlanResident(spec, *dataset);
  Result<std::shared_ptr<ResidentData>> data =
      plan.ok() ? MakeResident(*plan, opened, dataset) : plan.status();
  if (!data.ok()) {
    if (spec.resident == Resident::kOn)
      return data.status().WithContext("resident: the samples cannot be kept on the GPU");
    *note = data.status().message();
    return nullptr;
  }
  spec.resident = Resident::kOn;
  ASSIGN_OR_RETURN(BatchLayout layout,
                   BatchLayout::Create({{kIndexTensor, DType::kUint32, {}}}, spec.batch_size));
  auto producer = std::make_unique<ResidentBatchProducer>(
      *std::move(data), *std::move(plan), sampler, spec.on_bad_sample, dataset->info(), parts_.workers);
  return MakeFeed({spec, std::move(layout), sampler, std::move(producer)}, Backend::kHost, spec.slots);
}

}  // namespace pinfeed
