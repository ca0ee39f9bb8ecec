// SPDX-License-Identifier: Apache-2.0
// Frames of the lifeline socket, as they come from and go to a client of which nothing is believed.
#pragma once

#include <span>
#include <string>

#include "common/base/status.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

struct ReceivedFrame {
  enum class Kind {
    kNothing,  // nothing to read now
    kHangUp,   // the other side is gone
    kFrame,    // `frame` holds one of right size, magic and kind, without descriptors
    kBad,      // anything else; `fault` says what. Descriptors that came along are closed.
  };
  Kind kind = Kind::kNothing;
  LifelineFrame frame{};
  std::string fault;
};

// Reads one frame of the kinds that the client may send now. Never blocks.
ReceivedFrame ReceiveFrame(int fd, std::span<const LifelineKind> expected);

// kWelcome with the session's descriptors. kUnavailable when the client is gone or does not read.
Status SendWelcome(int fd, std::span<const int> fds);
// kWelcome with the error's code and message instead. A client that is gone does not matter.
void SendRefusal(int fd, const Status& error);

}  // namespace pinfeed
