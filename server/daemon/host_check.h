// SPDX-License-Identifier: Apache-2.0
// The configuration against this host. In: a configuration. Out: what it comes to here, or what is wrong.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/tls/tls_identity.h"
#include "server/config/config.h"

namespace pinfeed {

// The pool's size here. kInvalidArgument when this process may not have as much.
Result<uint64_t> PoolBytes(const MemorySize& size);
// That this process may give its sockets to the group, by membership or as root with CAP_CHOWN.
Status CheckGroup(gid_t group);
// Nothing when `group`, a name or a number, is empty. kInvalidArgument when there is none of that name.
Result<std::optional<gid_t>> SocketGroup(const std::string& group);

// The files that admin_cert, admin_key and admin_ca name. kInvalidArgument when they do not do.
Result<TlsIdentity> ReadAdminIdentity(const Config& config);
// Logs it when the certificate is not valid now: trainers are served all the same, so no start ends by it.
void WarnOfValidity(const Config& config, const TlsIdentity& identity);

// A message that begins with a key, behind the place which that key's value comes from.
Status AtItsPlace(const Status& status, const CommandLine& command_line);
// For a reload: what it names anew, of allowed roots and datasets, and is not there or not to be read. A look
// at the paths alone; --check opens the datasets. `at` is told of each path before it is looked at.
std::vector<std::string> MissingWarnings(const CommandLine& before, const CommandLine& loaded,
                                         const std::function<void(std::string)>& at);

// The configuration against this host, for --check: what Start refuses for as well (the pool's size, the
// group, the socket directory, the admin endpoint's files), and what may still come with a disk that is
// mounted later: the allowed roots and every named dataset, which is opened as for a feed. kInvalidArgument
// lists every fault, one a line, each with the place its value comes from.
Status CheckHost(const CommandLine& command_line);

}  // namespace pinfeed
