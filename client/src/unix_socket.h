// SPDX-License-Identifier: Apache-2.0
// Connecting to the daemon's sockets with an exact reason when that fails. In: a path. Out: a connected
// descriptor.
#pragma once

#include <chrono>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

using SteadyTime = std::chrono::steady_clock::time_point;

// A non-blocking, close-on-exec socket of `type` (SOCK_STREAM or SOCK_SEQPACKET) connected to `path`. Waits
// while the daemon's backlog is full, at most until `deadline`. kUnavailable when nobody listens (so that
// callers know to try again), kPermissionDenied, kDeadlineExceeded.
Result<UniqueFd> ConnectUnix(const std::string& path, int type, SteadyTime deadline);

// Whether gRPC will find the descriptors that it needs: it ends the process where it finds none.
// kResourceExhausted when the process is at its limit of open files. `fd` is any open descriptor.
Status CheckSpareDescriptors(int fd);

// Milliseconds until `deadline` for poll(2), rounded up; 0 when it has passed.
int PollTimeout(SteadyTime deadline);

}  // namespace pinfeed
