// SPDX-License-Identifier: Apache-2.0
// The calls of one connection. In: the bytes of both sides. Out: which of the client's may pass, and which
// calls are open.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/net/client_frames.h"
#include "server/net/connection_owner.h"

namespace pinfeed {

// Purpose: checks the client's frames and follows gRPC's, to count each call at the owner from its beginning
// to its end. Borrows: the owner. Threads: one at a time. Errors: Segment::fault. Invariant: what Admit
// counted is released exactly once, at the latest by the destructor.
class ConnectionCalls {
 public:
  using Segment = ClientFrameChecker::Segment;

  explicit ConnectionCalls(ConnectionOwner& owner) : owner_(owner) {}
  ~ConnectionCalls() { EndAll(); }
  ConnectionCalls(const ConnectionCalls&) = delete;
  ConnectionCalls& operator=(const ConnectionCalls&) = delete;

  // Returns the client's next bytes that are forwarded together or not at all: the same until Pass. `bytes`
  // begins after those that have passed.
  const Segment& Check(std::string_view bytes);
  // Returns the checked segment, which is paid now. Admit follows.
  Segment Pass() { return std::exchange(segment_, {}); }
  // Counts the call that the segment opens, or its bytes of a message. Returns why they are refused; empty if
  // they are allowed.
  std::string Admit(const Segment& passed);
  // Follows what gRPC has sent.
  void OnServerBytes(std::string_view bytes);
  void End(uint32_t call);
  // Ends the calls when gRPC is gone.
  void EndAll();

  // Whether the client's preface and SETTINGS are complete.
  bool begun() const { return client_frames_.begun(); }
  uint32_t last() const { return client_frames_.last_call(); }
  const std::vector<uint32_t>& open() const { return client_frames_.open_calls(); }
  // Whether the guard may send the client a frame of its own.
  bool between_server_frames() const { return server_frames_.between_frames(); }

 private:
  void Release(uint32_t call);

  ConnectionOwner& owner_;
  ClientFrameChecker client_frames_;
  ServerFrameTracker server_frames_;
  Segment segment_;                             // checked, but not paid yet
  std::map<uint32_t, uint64_t> message_bytes_;  // of open calls
};

}  // namespace pinfeed
