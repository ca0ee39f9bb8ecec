// SPDX-License-Identifier: Apache-2.0
// Which member of a broadcast decodes images for which others on its GPU. In: members that attach and depart.
// Out: a pair of connected sockets for each two of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/unique_handle.h"
#include "common/os/foreign_fds.h"
#include "server/session/session.h"

namespace pinfeed {

// Purpose: gives a member that can fetch decoded batches (a reader) a link to one that decodes them on its
// GPU (the decoder). Sharing is an optimisation: whatever fails, the member decodes for itself. Owns: a
// duplicate of one end of each link, by which it ends the link of a process that cannot. Threads: one at a
// time. Errors: none. It never blocks. Invariants: 1. a decoder gets every batch that its readers get; 2. no
// link outlives the participation of either member in the feed.
class DecodeLinks {
 public:
  // The session has attached. `lifeline`: its socket, borrowed until Remove. Sends one end of a link to its
  // decoder, and returns the other. Returns none if it decodes for itself, or cannot share.
  UniqueFd Add(const Session& session, int lifeline);
  // The session has departed from its feed, or never came here.
  void Remove(uint64_t session_id);

 private:
  struct Member {
    uint64_t session_id = 0;
    uint64_t feed_id = 0;
    std::string gpu;
    Sampler::Start first;
    int lifeline = -1;
    uint64_t decoder_id = 0;  // the session that decodes for it; 0: none
    UniqueConnection link = {};
  };
  // Ends the link of a reader.
  static void Unlink(Member& reader);
  // The oldest member that can decode for `reader`; null: there is none.
  const Member* DecoderFor(const Member& reader, uint64_t replaced_session) const;

  std::vector<Member> members_;  // in the order in which they attached
};

}  // namespace pinfeed
