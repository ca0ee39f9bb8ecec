// SPDX-License-Identifier: Apache-2.0
// The members of a broadcast for which this process decodes on their common GPU. In: their sockets, which the
// daemon sends; their requests. Out: decoded batches in their memory.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "client/src/decode/decode_engine.h"
#include "client/src/decode/decode_ring.h"
#include "client/src/decode/decoded_frame.h"
#include "client/src/link/lifeline.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/os/wake_event.h"

namespace pinfeed {

// Purpose: serves the readers of a ring on a thread of its own, which starts with the first one. Owns: their
// sockets, the mappings of their memory, the thread. Borrows the ring, and the lifeline until Stop. Threads:
// Accept from one decode thread at a time, Wake and Stop from any, Join from the owner; the rest on its own
// thread, which is one of the ring's. Errors: whatever goes wrong with a reader ends its link, and a reader
// whose link ends decodes for itself. Invariants: 1. it waits for no reader; 2. nothing that a reader sends
// is believed before it is checked; 3. a reader without a link keeps no batch in the ring.
class DecodedReaders {
 public:
  DecodedReaders(DecodeRing& ring, std::shared_ptr<DecodeEngine> engine, Lifeline& lifeline)
      : ring_(ring), engine_(std::move(engine)), lifeline_(&lifeline) {}

  // Adds the readers that the daemon has sent on the lifeline. Call it before a batch is begun.
  void Accept() PF_EXCLUDES(mutex_);
  // The ring may have what a reader waits for, or be at its end.
  void Wake() PF_EXCLUDES(mutex_);
  // Reads the lifeline no more, and wakes the thread, which ends with the ring's.
  void Stop() PF_EXCLUDES(mutex_);
  // Precondition: the ring's threads have ended.
  void Join();

 private:
  struct Reader {
    uint64_t id = 0;
    UniqueLink socket;
    std::optional<DecodedRequest> asked = std::nullopt;  // not answered yet
    std::optional<DecodeRing::Place> last = std::nullopt;
    std::array<CopyToForeign, DecodeRing::kEntries> memory = {};
  };

  // The next reader on the lifeline; nothing if there is none now.
  Result<std::optional<ReaderInvitation>> Receive() PF_EXCLUDES(mutex_);
  Status Add(ReaderInvitation invitation) PF_EXCLUDES(mutex_);
  void Serve() PF_EXCLUDES(mutex_);
  void End() PF_EXCLUDES(mutex_);
  void TakeAccepted() PF_EXCLUDES(mutex_);
  // Waits until a reader has sent something, or Wake.
  void Poll(std::vector<Reader*>* ready);
  // Each returns an error that ends the reader's link.
  Status ReceiveRequest(Reader& reader);
  Status Answer(Reader& reader);
  void Drop(Reader& reader, const Status& why);

  DecodeRing& ring_;
  const std::shared_ptr<DecodeEngine> engine_;
  Mutex mutex_;                                          // never held while the ring is called
  Lifeline* lifeline_ PF_GUARDED_BY(mutex_);             // null: it is read no more
  std::optional<WakeEvent> wake_ PF_GUARDED_BY(mutex_);  // from the first reader on
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 0;
  std::vector<Reader> accepted_ PF_GUARDED_BY(mutex_);  // which the thread has yet to take
  bool ended_ PF_GUARDED_BY(mutex_) = false;            // the thread has, or could not start
  std::vector<std::unique_ptr<Reader>> readers_;        // of the thread
  std::thread thread_;  // started by a decode thread, joined once that has ended
};

}  // namespace pinfeed
