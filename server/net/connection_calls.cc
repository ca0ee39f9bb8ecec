// SPDX-License-Identifier: Apache-2.0
#include "server/net/connection_calls.h"

namespace pinfeed {

const ConnectionCalls::Segment& ConnectionCalls::Check(std::string_view bytes) {
  if (segment_.bytes != 0) return segment_;
  const size_t before = open().size();
  segment_ = client_frames_.Next(bytes);
  if (open().size() < before) owner_.ReleaseCall();
  return segment_;
}

void ConnectionCalls::OnServerBytes(std::string_view bytes) {
  for (const uint32_t call : server_frames_.Scan(bytes)) End(call);
}

void ConnectionCalls::End(uint32_t call) {
  if (client_frames_.EndCall(call)) owner_.ReleaseCall();
}

void ConnectionCalls::EndAll() {
  // A call whose HEADERS still wait for credit was never counted.
  const uint32_t uncounted = segment_.opens_call ? last() : 0;
  for (const uint32_t call : std::vector<uint32_t>(open()))
    if (call != uncounted) End(call);
}

}  // namespace pinfeed
