// SPDX-License-Identifier: Apache-2.0
// How the samples of a feed are kept on a GPU (decision 0049). In: the spec. Out: what is loaded once, and
// what the client's kernel makes of it for each batch; or the reason why that is not possible.
#pragma once

#include <optional>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/sample_view.h"
#include "server/dataset/dataset.h"
#include "server/transform/deferred_pixel_ops.h"

namespace pinfeed {

// The only tensor of the feed's slots: the index of each sample (uint32).
inline constexpr char kIndexTensor[] = "resident.index";

struct ResidentPlan {
  // Loads each sample once, as one batch of the whole dataset in its own order. It has those transforms that
  // do the same every time and change the geometry. Bad samples are zeros. Feeds whose plans agree in this
  // share the memory.
  FeedSpec load;
  // Of the image, if there is one; without `mark` and `plan`. `tensor` is that of the load.
  std::optional<DeferredPixelOps> image;
  SampleView view{};  // of the image
};

// Precondition: SampleLoader::Create accepts the spec for that dataset. kFailedPrecondition says why the
// samples cannot be resident, and what to change.
Result<ResidentPlan> PlanResident(const FeedSpec& spec, const Dataset& dataset);

}  // namespace pinfeed
