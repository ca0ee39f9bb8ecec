// SPDX-License-Identifier: Apache-2.0
// Receives frames from an untrusted client over its lifeline, and sends frames to it.
#pragma once

#include <span>
#include <string>

#include "common/base/result.h"
#include "common/base/status.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

struct ReceivedFrame {
  enum class Kind {
    kNothing,  // nothing to read now
    kHangUp,   // the other side is gone
    kFrame,    // `frame` has the right size, magic and kind, and no descriptors
    kBad,      // anything else; `fault` says what. Received descriptors are closed.
  };
  Kind kind = Kind::kNothing;
  LifelineFrame frame{};
  std::string fault;
};

// Reads one frame. `expected` are the kinds that the client may send now. Never blocks.
ReceivedFrame ReceiveFrame(int fd, std::span<const LifelineKind> expected);

// What a kTaskDone says of its task: done, or an error of the producer, whose text is printable.
Status ResultOf(const LifelineFrame& done);

// Sends kTask. kUnavailable or another error if the producer is gone or does not read.
Status SendTask(int fd, const ProducerTask& task);
// Sends kAnswered: of a message, with its result. The same errors.
Status SendAnswered(int fd, const BatcherMessage& message, const Status& result);
// Sends kReader to a client that decodes: the socket of another one. kUnavailable or another error if the
// client is gone, or has yet to read so many that their descriptors would add up.
Status SendReader(int fd, const ReaderStart& start, int reader);
// Sends kWelcome with the session's or the producer's descriptors. kUnavailable if the client is gone or does
// not read.
Status SendWelcome(int fd, std::span<const int> fds);
// Sends the answer to a kMemory: a descriptor, or why there is none. Errors as above.
Status SendMemory(int fd, const MemoryRequest& request, const Result<UniqueFd>& memory);
// Sends kWelcome with the error's code and message. Ignores that the client may be gone.
void SendRefusal(int fd, const Status& error);

}  // namespace pinfeed
