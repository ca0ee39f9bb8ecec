// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/open_feed_request.h"

#include "common/base/faults.h"
#include "server/dataset/open_dataset.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {

Result<OpenFeedArguments> ReadOpenFeedRequest(const v1::OpenFeedRequest& request) {
  Faults faults;
  OpenFeedArguments arguments = FromProto(request, faults);
  CheckDatasetOptions(arguments.spec.dataset, faults);
  TransformChain::Parse(arguments.spec.transforms, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  return arguments;
}

}  // namespace pinfeed
