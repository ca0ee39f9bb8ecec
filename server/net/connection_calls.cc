// SPDX-License-Identifier: Apache-2.0
#include "server/net/connection_calls.h"

#include <algorithm>

namespace pinfeed {

const ConnectionCalls::Segment& ConnectionCalls::Check(std::string_view bytes) {
  if (segment_.bytes != 0) return segment_;
  segment_ = client_frames_.Next(bytes);
  if (segment_.ended_call != 0) Release(segment_.ended_call);
  return segment_;
}

std::string ConnectionCalls::Admit(const Segment& passed) {
  if (passed.opens_call) return owner_.AdmitCall(open().size());
  if (passed.message_bytes == 0 || std::ranges::find(open(), passed.message_call) == open().end()) return {};
  message_bytes_[passed.message_call] += passed.message_bytes;
  return owner_.AdmitMessage(passed.message_bytes);
}

void ConnectionCalls::OnServerBytes(std::string_view bytes) {
  for (const uint32_t call : server_frames_.Scan(bytes)) End(call);
}

void ConnectionCalls::End(uint32_t call) {
  if (client_frames_.EndCall(call)) Release(call);
}

void ConnectionCalls::Release(uint32_t call) {
  const auto ended = message_bytes_.extract(call);
  owner_.ReleaseCall(ended ? ended.mapped() : 0);
}

void ConnectionCalls::EndAll() {
  // A call whose HEADERS still wait for credit was never counted.
  const uint32_t uncounted = segment_.opens_call ? last() : 0;
  for (const uint32_t call : std::vector<uint32_t>(open()))
    if (call != uncounted) End(call);
}

}  // namespace pinfeed
