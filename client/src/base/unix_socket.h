// SPDX-License-Identifier: Apache-2.0
// Connects to the daemon's sockets and reports exactly why if that fails. In: a path. Out: a connected
// descriptor.
#pragma once

#include <chrono>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

using SteadyTime = std::chrono::steady_clock::time_point;

// Returns a non-blocking, close-on-exec socket of `type` (SOCK_STREAM or SOCK_SEQPACKET) connected to `path`.
// Waits until `deadline` while the daemon's backlog is full. Errors: kUnavailable if no process listens (a
// retry may help), kPermissionDenied, kDeadlineExceeded.
Result<UniqueFd> ConnectUnix(const std::string& path, int type, SteadyTime deadline);

// Checks that gRPC will find the descriptors it needs, because gRPC aborts the process if it does not.
// Returns kResourceExhausted at the process's limit of open files. `fd` is any open descriptor.
Status CheckSpareDescriptors(int fd);

}  // namespace pinfeed
