// SPDX-License-Identifier: Apache-2.0
// Delivers the library's messages to the function that the program set, or else to stderr.
#pragma once

#include <string>

#include "client/include/pinfeed/pinfeed.h"

namespace pinfeed {

// Process-wide. Null silences the log.
void SetLogFunction(pf_log_function function, void* user);

// Calls the function on this thread without holding a lock. If no function was set, prints warnings to stderr
// and drops other messages. On a thread of the library (LibraryThread) the message waits for PassOnLog.
void ClientLog(pf_log_level level, const std::string& message);

// Delivers what the library's own threads had to say. Called on the program's threads where it may run code
// of its own: when it asks for a batch, and when it closes a feed. One relaxed load if there is nothing.
void PassOnLog();

// Purpose: marks the calling thread as one of the library while it lives. The program's function may need a
// lock (Python's has the GIL) that a thread holds which waits for this one.
class LibraryThread {
 public:
  LibraryThread();
  ~LibraryThread();
  LibraryThread(const LibraryThread&) = delete;
  LibraryThread& operator=(const LibraryThread&) = delete;
};

}  // namespace pinfeed
