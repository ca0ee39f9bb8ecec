// SPDX-License-Identifier: Apache-2.0
// Calls to the daemon's control socket. In: an address and a request. Out: an offer or JSON. Each call makes
// its own connection and leaves no thread, socket or gRPC object behind.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/offer.h"
#include "client/src/unix_socket.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

struct OpenRequest {
  std::string spec_json;  // pinfeed.v1.FeedSpec
  std::optional<Cursor> cursor;
  std::string client_name;
  std::string gpu_uuid = {};  // empty: host memory
  // Backends that the daemon offered under AUTO but that failed in this process, with the error.
  std::vector<std::pair<Backend, std::string>> failed_backends = {};
  // The replaceable session whose place the new one takes; 0: none.
  uint64_t replaces_session = 0;
};

// Sends OpenFeed. Returns kInvalidArgument if the spec is not a valid FeedSpec (unknown fields are refused)
// or the daemon rejects it. Checks the offer, except one that only says `end_first`. Sets `stopping` if the
// daemon refused because it is stopping (kUnavailable).
Result<FeedOffer> OpenFeed(const std::string& address, const OpenRequest& request, SteadyTime deadline,
                           bool* stopping);

// Return pinfeed.v1.GetStatusResponse and ListDatasetsResponse as JSON, with the field names of the .proto
// file, unset fields included.
Result<std::string> StatusJson(const std::string& address, SteadyTime deadline);
Result<std::string> DatasetsJson(const std::string& address, SteadyTime deadline);

// Calls a unary method of pinfeed.v1.Admin: "Drain", "Evict", "Reload" or "SetLogLevel". Request and response
// are JSON.
Result<std::string> AdminJson(const std::string& address, const std::string& method,
                              const std::string& request_json, SteadyTime deadline);

// Calls pinfeed.v1.Admin.Trace. During the recording `on_message` is called with nothing, several times a
// second. Afterwards it gets each message (pinfeed.v1.TraceResponse) as JSON without unset fields; converting
// earlier would cost more than the recording itself. Messages received before an error are delivered too.
// Returning false ends the recording or the delivery. Forks of this process wait meanwhile, see NoForkScope.
using OnTrace = std::function<bool(const std::string* json)>;
Status Trace(const std::string& address, const std::string& request_json, const OnTrace& on_message,
             SteadyTime connect_deadline);

// Convert pinfeed.v1.Cursor from and to JSON. kInvalidArgument for anything else, or for an unknown version.
Result<Cursor> CursorFromJson(const std::string& json);
std::string CursorToJson(const Cursor& cursor);

}  // namespace pinfeed
