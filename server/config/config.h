// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration. In: command line, environment (PINFEED_*), TOML file and defaults, in this
// order of precedence. Out: one checked Config, or every fault with its origin.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/memory_size.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

// Which users may connect to the sockets, besides the daemon's own user and root.
struct AllowedUids {
  bool any = false;
  std::set<uint32_t> uids;
};

// The configurable values. Each has a key of the same name in the file, an environment variable
// PINFEED_<NAME> and a flag --<name>. config_keys.cc defines them and holds the text of --help.
struct Config {
  std::string socket_dir = "/run/pinfeed";
  uint32_t socket_mode = 0660;
  std::string socket_group;
  AllowedUids allowed_uids;
  // Shares of memory are of what is available at the start, unless stated otherwise.
  MemorySize pool_bytes{0, 0.25};
  MemorySize cache_bytes{0, 0};       // for decoded images; not set: off
  std::string gpus = "auto";          // "auto": any that exist; "on": at least one required; "off": none
  MemorySize pinned_bytes{0, 0.125};  // or a share of pool_bytes
  MemorySize gpu_bytes{0, 0.1};       // per GPU, or a share of its memory
  uint32_t workers = 0;               // 0: one per CPU that this process may use
  uint32_t default_slots = 4;
  uint32_t max_sessions = 256;
  // Limits per user, also for root and the daemon's own user. A share refers to the corresponding total.
  uint32_t user_sessions = 0;  // 0: no limit
  uint32_t user_workers = 0;   // 0: no limit
  MemorySize user_pool_bytes{0, 1};
  MemorySize user_pinned_bytes{0, 1};
  MemorySize user_gpu_bytes{0, 1};  // per GPU
  MemorySize user_cache_bytes{0, 1};
  uint32_t dataset_cache = 8;
  std::string index_dir = "auto";  // "auto": the user's cache directory; "off": none; otherwise a path
  std::vector<std::string> allowed_roots;
  std::map<std::string, DatasetSpec> datasets;  // by name; file only
  std::string http_listen = "127.0.0.1:9467";   // empty: off
  std::vector<std::string> http_hosts;          // besides the loopback names and the listening address
  std::string admin_listen;                     // empty: off; otherwise the four below are set
  std::string admin_cert;
  std::string admin_key;
  std::string admin_ca;
  std::vector<std::string> admin_clients;  // names in certificates
  std::string log_level = "info";
  LogFormat log_format = LogFormat::kText;
  std::chrono::milliseconds pending_timeout{5000};
  std::chrono::milliseconds drain_timeout{30000};
  std::chrono::milliseconds stuck_timeout{120000};  // 0: no check
};

enum class Action { kRun, kCheck, kPrintConfig, kPrintAndExit };

struct CommandLine {
  Action action = Action::kRun;
  std::string text;  // kPrintAndExit: the text to print (help, version)
  Config config;
  // Where each key's value comes from: "default", "file.toml:3", ...
  std::map<std::string, std::string> origins;
  // Values in the file that are overridden, and by what: "workers = 3 (file.toml:2) is not in force: ...".
  std::vector<std::string> overridden;
  std::string config_file;           // the file that was read; empty: none
  bool file_by_environment = false;  // named by PINFEED_CONFIG
  // A private daemon serves one process. It ends when the pipe `lifetime_fd` (its read end) hangs up.
  bool private_mode = false;
  int lifetime_fd = -1;
  int ready_fd = -1;  // gets the line "ready" once clients can connect, then is closed
};

// kInvalidArgument with one fault a line; OK if there are none.
Status JoinFaults(const std::vector<std::string>& faults);

// `environment` holds the variables that getenv would see. kInvalidArgument lists every fault, one per line.
Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment);

// The line that --check prints for a valid configuration. It names the file that was read, if any, and the
// environment variables that apply.
std::string DescribeCheck(const CommandLine& command_line);

// The configuration as a TOML file, with the origin of each value as a comment.
std::string PrintConfig(const CommandLine& command_line);

}  // namespace pinfeed
