// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/host_check.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <vector>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "common/base/unique_handle.h"
#include "common/os/host_limits.h"
#include "server/dataset/dataset_cache.h"
#include "server/net/listener.h"
#include "server/net/socket_dir.h"

namespace pinfeed {
namespace {

Status CheckDirectory(const std::string& path) {
  const UniqueFd directory(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  return directory ? OkStatus() : ErrnoStatus("open the directory " + QuotePath(path), errno);
}

// Faults, each with the origin of its value.
struct FaultList {
  void Add(const std::string& key, const Status& status) {
    if (!status.ok()) faults.push_back(command_line.origins.at(key) + ": " + status.message());
  }
  const CommandLine& command_line;
  std::vector<std::string> faults = {};
};

// The configuration key that the message starts with, or `otherwise`.
std::string KeyOf(const Status& status, const CommandLine& command_line, const std::string& otherwise) {
  const std::string key = status.message().substr(0, status.message().find(':'));
  return command_line.origins.count(key) != 0 ? key : otherwise;
}

}  // namespace

Result<uint64_t> PoolBytes(const MemorySize& size) {
  ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  const uint64_t bytes = size.Of(memory.available_bytes);
  if (bytes > memory.limit_bytes) {
    return InvalidArgument("pool_bytes: " + ExactByteSize(bytes) + " are more than the " +
                           ExactByteSize(memory.limit_bytes) + " that this process may use (" +
                           memory.limited_by + "); set pool_bytes to less, or to a share such as \"25%\"");
  }
  return bytes;
}

Result<uint64_t> CacheBytes(const MemorySize& size, uint64_t pool_bytes) {
  ASSIGN_OR_RETURN(const HostMemory memory, ReadHostMemory());
  const uint64_t bytes = size.Of(memory.available_bytes);
  if (pool_bytes > memory.limit_bytes || bytes > memory.limit_bytes - pool_bytes) {
    return InvalidArgument("cache_bytes: " + ExactByteSize(bytes) + " and the pool's " +
                           ExactByteSize(pool_bytes) + " are more than the " +
                           ExactByteSize(memory.limit_bytes) + " that this process may use (" +
                           memory.limited_by + "); set cache_bytes or pool_bytes to less");
  }
  return bytes;
}

Result<std::optional<gid_t>> SocketGroup(const std::string& group) {
  if (group.empty()) return std::nullopt;
  if (const std::optional<gid_t> number = ParseNumber<gid_t>(group)) return number;
  std::vector<char> buffer(1 << 16);
  struct group entry {};
  struct group* found = nullptr;
  if (::getgrnam_r(group.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return InvalidArgument("socket_group: there is no group " + QuotePath(group));
  }
  return found->gr_gid;
}

Status CheckGroup(gid_t group) {
  if (group == ::getegid()) return OkStatus();
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  if (std::find(groups.begin(), groups.begin() + std::max(0, count), group) != groups.end())
    return OkStatus();
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> capabilities{};
  if (::syscall(SYS_capget, &header, capabilities.data()) == 0 &&
      (capabilities[0].effective & (1U << CAP_CHOWN)) != 0)
    return OkStatus();
  return InvalidArgument("socket_group: this process cannot give the sockets to group " +
                         std::to_string(group) + "; " + GroupAdvice(group));
}

Result<TlsIdentity> ReadAdminIdentity(const Config& config) {
  return ReadTlsIdentity({.ca = {"admin_ca", config.admin_ca},
                          .certificate = {"admin_cert", config.admin_cert},
                          .key = {"admin_key", config.admin_key}},
                         TlsSide::kServer);
}

std::vector<std::string> ValidityWarnings(const Config& config, const TlsIdentity& identity) {
  const auto now = std::chrono::system_clock::now();
  std::vector<std::string> warnings;
  if (const std::string fault = ValidityFault(identity, now); !fault.empty()) {
    warnings.push_back("admin_cert: " + QuotePath(config.admin_cert) + " " + fault +
                       ": its clients will refuse this daemon; renew it, then reload");
  }
  if (now > identity.ca_valid_until) {
    warnings.push_back("admin_ca: " + QuotePath(config.admin_ca) + " expired on " +
                       UtcText(identity.ca_valid_until) + ": nobody is admitted; renew it, then reload");
  }
  return warnings;
}

Status WithOrigin(const Status& status, const CommandLine& command_line) {
  const auto origin = command_line.origins.find(KeyOf(status, command_line, {}));
  return origin == command_line.origins.end() ? status : status.WithContext(EscapeName(origin->second));
}

std::vector<std::string> MissingWarnings(const CommandLine& before, const CommandLine& loaded,
                                         const std::function<void(std::string)>& at) {
  std::vector<std::string> warnings;
  const auto note = [&](const std::string& key, const std::string& name, const Status& status) {
    if (status.ok()) return;
    const auto origin = loaded.origins.find(key);
    warnings.push_back((origin == loaded.origins.end() ? "" : EscapeName(origin->second) + ": ") + name +
                       ": " + status.message() + "; clients cannot read it until that is fixed");
  };
  if (loaded.config.allowed_roots != before.config.allowed_roots) {
    for (const std::string& root : loaded.config.allowed_roots) {
      at("checking " + QuotePath(root) + " (allowed_roots)");
      note("allowed_roots", "allowed_roots", CheckDirectory(root));
    }
  }
  for (const auto& [name, dataset] : loaded.config.datasets) {
    const auto known = before.config.datasets.find(name);
    if (known != before.config.datasets.end() && known->second == dataset) continue;
    at("checking " + QuotePath(dataset.path) + " (datasets." + EscapeName(name) + ")");
    if (::faccessat(AT_FDCWD, dataset.path.c_str(), R_OK, AT_EACCESS) != 0)
      note("datasets." + name, "datasets." + EscapeName(name),
           ErrnoStatus("read " + QuotePath(dataset.path), errno));
  }
  return warnings;
}

std::vector<std::string> StartFaults(const CommandLine& command_line) {
  const Config& config = command_line.config;
  FaultList list{command_line};
  const Result<uint64_t> pool_bytes = PoolBytes(config.pool_bytes);
  list.Add("pool_bytes", pool_bytes.status());
  if (pool_bytes.ok() && config.cache_bytes.IsSet())
    list.Add("cache_bytes", CacheBytes(config.cache_bytes, *pool_bytes).status());
  list.Add("socket_group", SocketGroup(config.socket_group).status());
  return std::move(list.faults);
}

Status CheckHost(const CommandLine& command_line) {
  const Config& config = command_line.config;
  FaultList list{command_line, StartFaults(command_line)};
  const Result<std::optional<gid_t>> group = SocketGroup(config.socket_group);
  if (group.ok() && *group) list.Add("socket_group", CheckGroup(**group));
  list.Add("socket_dir", SocketDir::Check(config.socket_dir).WithContext("socket_dir"));
  if (!config.admin_listen.empty()) {
    const Result<TlsIdentity> identity = ReadAdminIdentity(config);
    list.Add(KeyOf(identity.status(), command_line, "admin_listen"), identity.status());
    if (identity.ok())
      for (const std::string& warning : ValidityWarnings(config, *identity)) spdlog::warn("{}", warning);
  }
  // Told before: storage may not answer.
  for (const std::string& root : config.allowed_roots) {
    spdlog::info("checking {} (allowed_roots)", QuotePath(root));
    list.Add("allowed_roots", CheckDirectory(root).WithContext("allowed_roots"));
  }
  DatasetCache datasets({config.datasets, config.allowed_roots, 0});
  for (const auto& [name, dataset] : config.datasets) {
    DatasetSpec named;
    named.name = name;
    spdlog::info("checking {} (datasets.{})", QuotePath(dataset.path), EscapeName(name));
    list.Add("datasets." + name,
             datasets.Open(::geteuid(), named).status().WithContext("datasets." + EscapeName(name)));
  }
  return JoinFaults(list.faults);
}

}  // namespace pinfeed
