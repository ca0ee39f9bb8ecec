// SPDX-License-Identifier: Apache-2.0
#include "server/loading/resident_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "server/transform/field_roles.h"
#include "server/transform/pointwise.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {
namespace {

// The transforms of the head that change the geometry; those that only recolour are the kernel's.
std::vector<TransformSpec> GeometryOf(const std::vector<TransformSpec>& transforms, size_t count) {
  std::vector<TransformSpec> geometry;
  for (size_t i = 0; i < count; ++i) {
    std::vector<TransformSpec> one = {transforms[i]};
    Faults faults;
    if (TransformChain::Parse(one, faults).Has(GpuForm::kNone)) geometry.push_back(transforms[i]);
  }
  return geometry;
}

// What does not change what is loaded has its default, so that equal specs are equal loads.
FeedSpec LoadSpec(const FeedSpec& spec, uint64_t samples) {
  return {.dataset = spec.dataset,
          .batch_size = static_cast<uint32_t>(samples),
          .epochs = 1,
          .image_layout = ImageLayout::kHwc,
          .on_bad_sample = OnBadSample::kZero,
          .sample_ids = spec.sample_ids,
          .valid = spec.valid,
          .fields_unchanged = spec.fields_unchanged,
          .ignore_exif_orientation = spec.ignore_exif_orientation,
          .fields = spec.fields,
          .sample_path = spec.sample_path,
          .pad = spec.pad};
}

Status CheckShapes(const FeedSpec& spec, const DatasetInfo& info) {
  if (info.samples >= kZeroIndex)
    return FailedPrecondition("the dataset has " + std::to_string(info.samples) + " samples, at most " +
                              std::to_string(kZeroIndex - 1) + " can be resident");
  for (const Field& field : info.fields) {
    const bool padded = std::ranges::find(spec.pad, field.spec.name, &PaddedField::field) != spec.pad.end();
    if (field.kind == FieldKind::kRagged && !padded) {
      return FailedPrecondition("the samples of field '" + field.spec.name +
                                "' have different numbers of rows; give it a fixed shape (pad), or read the "
                                "other fields only (fields)");
    }
  }
  return OkStatus();
}

}  // namespace

Result<ResidentPlan> PlanResident(const FeedSpec& spec, const Dataset& dataset) {
  const DatasetInfo& info = dataset.info();
  if (spec.decode != Decode::kCpu)
    return FailedPrecondition(
        "decoded images are kept, so the GPU has nothing to decode: use the decode CPU");
  RETURN_IF_ERROR(CheckShapes(spec, info));
  std::vector<TransformSpec> specs = spec.transforms;
  Faults faults;
  const TransformChain all = TransformChain::Parse(specs, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  const FieldRoles roles = AssignFieldRoles(info.fields, spec, all, faults);
  PF_CHECK(faults.empty(), "the spec was accepted");
  if (!roles.masks.empty())
    return FailedPrecondition("masks are not resident: they would have to follow the image in the kernel");
  ResidentPlan plan{LoadSpec(spec, info.samples), {}, {}};
  if (!roles.image) return plan;

  const size_t fixed = all.fixed();
  plan.load.transforms = GeometryOf(spec.transforms, fixed);
  std::vector<TransformSpec> head_specs = plan.load.transforms;
  const TransformChain head = TransformChain::Parse(head_specs, faults);
  const ImageForm outcome = all.Follow(roles.form(), faults);
  const ImageForm stored = head.Follow(roles.form(), faults);
  PF_CHECK(faults.empty(), "the spec was accepted");
  if (stored.width == 0) {
    return FailedPrecondition(
        "the images have no fixed size before the first random transform; put Resize([h, w]) or CenterCrop "
        "before it");
  }
  const ImageSize size{stored.width, stored.height};
  Result<SampleView> view = all.View(spec.seed, size, fixed);
  if (!view.ok()) return FailedPrecondition(view.status().message());
  plan.view = *view;
  PF_CHECK(plan.view.width == static_cast<uint32_t>(outcome.width) &&
               plan.view.height == static_cast<uint32_t>(outcome.height) &&
               stored.channels == outcome.channels,
           "the view has the size of the output");

  const Pointwise pointwise(all, outcome.channels, spec.image_layout);
  DeferredPixelOps& image = plan.image.emplace();
  image.tensor = static_cast<uint32_t>(*roles.image);
  image.height = plan.view.height;
  image.width = plan.view.width;
  image.channels = static_cast<uint32_t>(outcome.channels);
  image.source_layout =
      plan.load.transforms.empty() && roles.tensor ? roles.tensor->layout : ImageLayout::kHwc;
  image.output_layout = spec.image_layout;
  image.output = {info.fields[*roles.image].spec.name, outcome.dtype, outcome.Shape(spec.image_layout)};
  image.table = pointwise.table();
  return plan;
}

}  // namespace pinfeed
