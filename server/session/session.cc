// SPDX-License-Identifier: Apache-2.0
#include "server/session/session.h"

#include "common/base/quote.h"
#include "server/session/feed_table.h"

namespace pinfeed {

const char* SessionStateName(SessionState state) {
  switch (state) {
    case SessionState::kPending:
      return "pending";
    case SessionState::kAttached:
      return "attached";
    case SessionState::kOrphaned:
      return "orphaned";
    case SessionState::kEvicted:
      return "evicted";
    case SessionState::kLeft:
      return "left";
    case SessionState::kEnded:
      return "ended";
  }
  return "unknown";
}

Session::~Session() {
  table.Release(*this);
}

bool HasLeft(const Session& session) {
  return session.state == SessionState::kOrphaned || MayHold(session);
}

bool MayHold(const Session& session) {
  return session.state == SessionState::kEvicted || session.state == SessionState::kLeft;
}

std::string Describe(const Session& session) {
  return "session " + std::to_string(session.id) + " (" + Describe(session.peer) + ", " +
         QuotePath(session.client_name) + ")";
}

LogContext ContextOf(const Session& session) {
  return {session.id, session.feed->id(), session.trace_id};
}

}  // namespace pinfeed
