// SPDX-License-Identifier: Apache-2.0
// Checks a configuration against this host. In: a configuration. Out: the resulting values, or what is wrong.
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

// The pool size in bytes on this host. kInvalidArgument when it exceeds what this process may use.
Result<uint64_t> PoolBytes(const MemorySize& size);
// The size of the decoded cache in bytes on this host. kInvalidArgument when pool and cache together exceed
// what this process may use. Precondition: size.IsSet().
Result<uint64_t> CacheBytes(const MemorySize& size, uint64_t pool_bytes);
// Checks that this process may assign its sockets to the group: as a member of it, or with CAP_CHOWN.
Status CheckGroup(gid_t group);
// Resolves `group`, a name or a number. Empty when `group` is empty. kInvalidArgument for an unknown name.
Result<std::optional<gid_t>> SocketGroup(const std::string& group);

// Reads the files named by admin_cert, admin_key and admin_ca. kInvalidArgument when they are unusable.
Result<TlsIdentity> ReadAdminIdentity(const Config& config);
// Says which of these certificates are expired or not yet valid. This never fails the start: the daemon can
// still serve trainers.
std::vector<std::string> ValidityWarnings(const Config& config, const TlsIdentity& identity);

// Prefixes a message that starts with a configuration key with the origin of that key's value.
Status WithOrigin(const Status& status, const CommandLine& command_line);
// Reports allowed roots and datasets that `loaded` adds or changes and that are missing or unreadable. Checks
// only the paths; --check also opens the datasets. Calls `at` before each path.
std::vector<std::string> MissingWarnings(const CommandLine& before, const CommandLine& loaded,
                                         const std::function<void(std::string)>& at);

// What any later start would refuse of the sizes of pool and cache, and of the group's name. Each fault has
// the origin of its value.
std::vector<std::string> StartFaults(const CommandLine& command_line);

// Checks the configuration against this host, for --check. Covers what Start refuses: the sizes of pool and
// cache, the group, the socket directory and the admin endpoint's files. Also covers what may appear later
// with a mount: the allowed roots, and every named dataset, which is opened as for a feed. kInvalidArgument
// lists every fault, one per line, each with the origin of the value. Certificates that are not valid now are
// warnings in the log.
Status CheckHost(const CommandLine& command_line);

}  // namespace pinfeed
