// SPDX-License-Identifier: Apache-2.0
// Descriptors that come from other users, by Unix sockets, are closed by threads of their own. Closing the
// last descriptor of a file blocks for as long as its owner likes: a TCP socket may linger, and the server of
// a FUSE file need not answer. The thread that closes a connection with messages that were not read closes
// what is in them, too.
#pragma once

#include "common/base/unique_handle.h"

namespace pinfeed {

// Has the kernel refuse messages with descriptors (SO_PASSRIGHTS) on this socket, and on connections that a
// listening one accepts from now on. Kernels before Linux 6.16 cannot.
void RefuseForeignFds(int socket);

// Closes a descriptor without waiting for it. Up to 15 that hang do not delay others.
void CloseApart(UniqueFd fd) noexcept;

// Closes a connection of another user without waiting for what it has sent. The user sees the end at once.
struct ConnectionTraits : FdTraits {
  static void Close(int fd) noexcept;
};
using UniqueConnection = UniqueHandle<ConnectionTraits>;

}  // namespace pinfeed
