// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/open_feed_request.h"

#include <string>

#include "common/base/faults.h"
#include "common/spec/feed_spec_check.h"
#include "server/dataset/open_dataset.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

namespace {

// Before anything is copied: they may be many thousands.
void CheckSizesOfLists(const v1::FeedSpec& spec, Faults& faults) {
  const auto check = [&](const char* field, int size) {
    if (size > static_cast<int>(kMaxNamedFields)) {
      faults.Add(field, "has " + std::to_string(size) + " names, at most " + std::to_string(kMaxNamedFields) +
                            " are possible");
    }
  };
  check("dataset.produced.fields", spec.dataset().produced().fields_size());
  check("fields", spec.fields_size());
  check("fields_unchanged", spec.fields_unchanged_size());
  check("masks", spec.masks_size());
  check("pad", spec.pad_size());
}

}  // namespace

Result<OpenFeedArguments> ReadOpenFeedRequest(const v1::OpenFeedRequest& request) {
  Faults faults;
  CheckSizesOfLists(request.spec(), faults);
  RETURN_IF_ERROR(faults.ToStatus());
  OpenFeedArguments arguments = FromProto(request, faults);
  CheckDatasetOptions(arguments.spec.dataset, faults);
  TransformChain::Parse(arguments.spec.transforms, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  return arguments;
}

}  // namespace pinfeed
