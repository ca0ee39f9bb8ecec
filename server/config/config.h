// SPDX-License-Identifier: Apache-2.0
// What the daemon is told to do. In: command line, environment (PINFEED_*), TOML file, defaults, in this
// order of precedence. Out: one checked Config, or every fault with the place it was found.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

// A number of bytes, or a share of something (of the memory available at the start, if nothing else is said).
struct MemorySize {
  uint64_t bytes = 0;  // 0: `share` counts
  double share = 0.25;

  uint64_t Of(uint64_t whole) const {
    return bytes != 0 ? bytes : static_cast<uint64_t>(static_cast<double>(whole) * share);
  }
};

// Whom the sockets serve, besides the daemon's own user and root.
struct AllowedUids {
  bool any = false;
  std::set<uint32_t> uids;
};

// The values that can be configured. Each has a key of its name in the file, an environment variable
// PINFEED_<NAME> and a flag --<name> (see config_keys.cc, which also gives the text of --help).
struct Config {
  std::string socket_dir = "/run/pinfeed";
  uint32_t socket_mode = 0660;
  std::string socket_group;
  AllowedUids allowed_uids;
  MemorySize pool_bytes;
  std::string gpus = "auto";          // "auto": those there are; "on": there must be some; "off"
  MemorySize pinned_bytes{0, 0.125};  // a share is one of pool_bytes
  MemorySize gpu_bytes{0, 0.1};       // of each GPU; a share is one of its memory
  uint32_t workers = 0;               // 0: from the CPUs this process may use
  uint32_t default_slots = 4;
  uint32_t max_sessions = 256;
  // What each user may have of these, root and the daemon's own included; a share is one of the whole.
  uint32_t user_sessions = 0;  // 0: all
  uint32_t user_workers = 0;   // 0: all
  MemorySize user_pool_bytes{0, 1};
  MemorySize user_pinned_bytes{0, 1};
  MemorySize user_gpu_bytes{0, 1};  // of each GPU
  uint32_t dataset_cache = 8;
  std::vector<std::string> allowed_roots;
  std::map<std::string, DatasetSpec> datasets;  // by name; only in the file
  std::string http_listen = "127.0.0.1:9467";   // empty: off
  std::vector<std::string> http_hosts;          // names, besides loopback's and the address
  std::string admin_listen;                     // empty: off; else the four below are there
  std::string admin_cert;
  std::string admin_key;
  std::string admin_ca;
  std::vector<std::string> admin_clients;  // names in certificates
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kText;
  std::chrono::milliseconds pending_timeout{5000};
  std::chrono::milliseconds drain_timeout{30000};
  std::chrono::milliseconds stuck_timeout{120000};  // 0: nothing counts as stuck
};

enum class Action { kRun, kCheck, kPrintConfig, kPrintAndExit };

struct CommandLine {
  Action action = Action::kRun;
  std::string text;  // kPrintAndExit: what to print (help, version)
  Config config;
  std::map<std::string, std::string>
      origins;  // where each key's value comes from: "default", "file.toml:3", ...
  // Values of the file that are not in force, and by what: "workers = 3 (file.toml:2) is not in force: ...".
  std::vector<std::string> overridden;
  std::string config_file;           // the one that was read; empty: none
  bool file_by_environment = false;  // PINFEED_CONFIG named it
  // A daemon for one process: it ends when the pipe's read end `lifetime_fd` hangs up.
  bool private_mode = false;
  int lifetime_fd = -1;
  int ready_fd = -1;  // gets one line "ready" once clients can connect; closed then, or by the exit
};

// `environment` is what getenv would see: name -> value. kInvalidArgument lists every fault, one a line.
Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment);

// What --check says of a configuration without a fault, in a line: the file that was read, or that there was
// none, and the variables that count.
std::string Checked(const CommandLine& command_line);

// The configuration as a TOML file, with the origin of each value as a comment.
std::string PrintConfig(const CommandLine& command_line);

}  // namespace pinfeed
