// SPDX-License-Identifier: Apache-2.0
#include "server/config/reload.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/quote.h"
#include "server/config/config_keys.h"

namespace pinfeed {
namespace {

// The keys that take effect without a restart. RunningConfig applies them.
constexpr auto kLiveKeys = std::to_array<std::string_view>(
    {"allowed_uids", "allowed_roots", "dataset_cache", "max_sessions", "admin_cert", "admin_key", "admin_ca",
     "admin_clients", "log_level", "drain_timeout", "stuck_timeout"});

void MergeDatasets(const CommandLine& running, const CommandLine& loaded, Reload& out) {
  const auto note = [&](const std::string& name, std::string_view what) {
    out.changed.push_back("datasets." + EscapeName(name) + ": " + std::string(what));
  };
  for (const auto& [name, dataset] : loaded.config.datasets) {
    const auto known = running.config.datasets.find(name);
    if (known == running.config.datasets.end()) {
      note(name, "added");
    } else if (!(known->second == dataset)) {
      note(name, "changed");
    }
  }
  for (const auto& [name, dataset] : running.config.datasets) {
    if (loaded.config.datasets.count(name) == 0) note(name, "removed");
  }
  out.next.config.datasets = loaded.config.datasets;
}

}  // namespace

bool IsLive(const std::string& key) {
  return std::ranges::find(kLiveKeys, key) != kLiveKeys.end();
}

Reload MergeReloaded(const CommandLine& running, const CommandLine& loaded) {
  Reload out;
  out.next = running;
  out.next.origins = loaded.origins;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name(key.name);
    if (IsLive(name)) key.copy(loaded.config, out.next.config);
    const std::string was = key.print(running.config);
    const std::string is = key.print(loaded.config);
    if (was == is) continue;
    const std::string change = name + " = " + is;
    if (IsLive(name)) {
      out.changed.push_back(change);
    } else {
      const auto origin = loaded.origins.find(name);
      out.need_restart.push_back(change + " (" +
                                 (origin == loaded.origins.end() ? "default" : EscapeName(origin->second)) +
                                 "); " + was + " stays");
    }
  }
  MergeDatasets(running, loaded, out);
  return out;
}

}  // namespace pinfeed
