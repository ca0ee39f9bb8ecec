// SPDX-License-Identifier: Apache-2.0
// The client's gRPC calls to the daemon. In: the daemon's address and a request. Out: an offer or JSON. Each
// call makes its own connection and leaves no thread, socket or gRPC object behind.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/base/unix_socket.h"
#include "client/src/link/offer.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

struct OpenRequest {
  std::string spec_json;         // pinfeed.v1.FeedSpec
  std::optional<Cursor> cursor;  // where to resume, if anywhere
  std::string client_name;
  std::string gpu_uuid = {};  // empty: host memory
  // Backends that the daemon offered to this process (backend AUTO) and that failed here, with the error.
  std::vector<std::pair<Backend, std::string>> failed_backends = {};
  // The id of the session that the new one replaces (FeedOffer::replaceable); 0: none.
  uint64_t replaces_session = 0;
  // Whether this process can decode on that GPU, and if not, why. Sent if the spec asks for it.
  bool decodes_on_gpu = false;
  std::string no_gpu_decoder = {};
  // Replaces the spec's decode and gpu_share: what the daemon decided before.
  std::optional<std::pair<Decode, uint32_t>> decode = std::nullopt;
  // Replaces a spec's resident AUTO in the same way. / Why resident samples cannot be used here.
  std::optional<Resident> resident = std::nullopt;
  std::string no_resident = {};
};

// Whether the spec (JSON) has a decode other than CPU. kInvalidArgument if it is not valid.
Result<bool> AsksForGpuDecode(const std::string& spec_json);

// Sends OpenFeed. Returns kInvalidArgument if the spec is not a valid FeedSpec (unknown fields are refused)
// or the daemon rejects it. Checks the offer (CheckOffer), unless it only says FeedOffer::end_first. Sets
// `stopping` if the daemon refused because it is stopping (kUnavailable).
Result<FeedOffer> OpenFeed(const std::string& address, const OpenRequest& request, SteadyTime deadline,
                           bool* stopping);

// Asks for a place at a batcher: a pinfeed.v1.JoinBatcherRequest and BatcherInvitation as JSON.
Result<std::string> JoinBatcherJson(const std::string& address, const std::string& request_json,
                                    SteadyTime deadline);

// Return pinfeed.v1.GetStatusResponse and ListDatasetsResponse as JSON, with the field names of the .proto
// file, unset fields included.
Result<std::string> StatusJson(const std::string& address, SteadyTime deadline);
Result<std::string> DatasetsJson(const std::string& address, SteadyTime deadline);

// Calls a unary method of pinfeed.v1.Admin: "Drain", "Evict", "Reload", "SetLogLevel" or
// "DropCache". Request and response are JSON.
Result<std::string> AdminJson(const std::string& address, const std::string& method,
                              const std::string& request_json, SteadyTime deadline);

// Calls pinfeed.v1.Admin.Trace. During the recording, calls `on_message` with null several times a second.
// Afterwards, calls it with each received message (pinfeed.v1.TraceResponse) as JSON without unset fields.
// Messages are converted only then, since converting costs more than the recording itself. If the call fails,
// the messages received before are still delivered. `on_message` returns false to end the recording or the
// delivery. A fork of this process waits until Trace returns, see NoForkScope.
using OnTrace = std::function<bool(const std::string* json)>;
Status Trace(const std::string& address, const std::string& request_json, const OnTrace& on_message,
             SteadyTime connect_deadline);

// Convert a pinfeed.v1.Cursor from and to JSON. kInvalidArgument if the JSON is not a cursor, or has an
// unknown version.
Result<Cursor> CursorFromJson(const std::string& json);
std::string CursorToJson(const Cursor& cursor);

}  // namespace pinfeed
