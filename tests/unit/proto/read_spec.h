// SPDX-License-Identifier: Apache-2.0
// Specs as the daemon reads them from the wire: converted, then with their transforms checked.
#pragma once

#include <utility>

#include "proto/convert.h"
#include "server/rpc/open_feed_request.h"
#include "tests/support/parameters.h"
#include "tests/support/testing.h"
#include "tests/support/transform_specs.h"

namespace pinfeed {

inline v1::FeedSpec ValidSpec() {
  v1::FeedSpec spec;
  spec.mutable_dataset()->set_path("/data/train");
  spec.set_batch_size(8);
  return spec;
}

inline Result<OpenFeedArguments> Read(const v1::OpenFeedRequest& request) {
  return ReadOpenFeedRequest(request);
}

// Of a request that is nothing but the spec.
inline Result<FeedSpec> Read(const v1::FeedSpec& spec) {
  v1::OpenFeedRequest request;
  *request.mutable_spec() = spec;
  ASSIGN_OR_RETURN(OpenFeedArguments arguments, Read(request));
  return std::move(arguments.spec);
}

inline v1::Transform& AddTransform(v1::FeedSpec& spec) {
  return *spec.add_transforms();
}

}  // namespace pinfeed
