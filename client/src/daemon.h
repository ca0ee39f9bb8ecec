// SPDX-License-Identifier: Apache-2.0
// Calls on the daemon's control socket. In: an address and a request. Out: an offer or JSON. Each call makes
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
  std::string gpu_uuid = {};  // empty: tensors on the host
  // Those that were offered for the backend AUTO and failed here, and why.
  std::vector<std::pair<Backend, std::string>> failed_backends = {};
  // The session of a replaceable offer that this one is to take the place of; 0: none.
  uint64_t replaces_session = 0;
};

// kInvalidArgument when the spec is no FeedSpec (unknown fields are refused) or the daemon finds faults; the
// offer is checked, unless it is that of a session to be replaced that has to end first. `stopping`: whether
// the daemon refused with the word that it stops (kUnavailable).
Result<FeedOffer> OpenFeed(const std::string& address, const OpenRequest& request, SteadyTime deadline,
                           bool* stopping);

// pinfeed.v1.GetStatusResponse and ListDatasetsResponse as JSON, with the field names of the .proto file,
// unset fields included.
Result<std::string> StatusJson(const std::string& address, SteadyTime deadline);
Result<std::string> DatasetsJson(const std::string& address, SteadyTime deadline);

// One call of pinfeed.v1.Admin that has one answer: `method` is "Drain", "Evict", "Reload" or "SetLogLevel".
// Request and answer as JSON.
Result<std::string> AdminJson(const std::string& address, const std::string& method,
                              const std::string& request_json, SteadyTime deadline);

// pinfeed.v1.Admin.Trace. While it records, and so several times a second, `on_message` gets nothing; then it
// gets the daemon's messages (pinfeed.v1.TraceResponse) as JSON without the unset fields, one by one: turning
// them into text costs more than recording them did. What came before an error is given too. False ends the
// recording, or the messages. Forks of this process wait meanwhile, see NoForkScope.
using OnTrace = std::function<bool(const std::string* json)>;
Status Trace(const std::string& address, const std::string& request_json, const OnTrace& on_message,
             SteadyTime connect_deadline);

// pinfeed.v1.Cursor from and to JSON. kInvalidArgument for anything else, or a version this library does not
// know.
Result<Cursor> CursorFromJson(const std::string& json);
std::string CursorToJson(const Cursor& cursor);

}  // namespace pinfeed
