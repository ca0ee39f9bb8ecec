// SPDX-License-Identifier: Apache-2.0
#include "server/config/reload.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/quote.h"
#include "server/config/config_keys.h"

namespace pinfeed {
namespace {

struct LiveKey {
  std::string_view name;
  void (*copy)(const Config& from, Config& to);
};

template <auto Member>
void Copy(const Config& from, Config& to) {
  to.*Member = from.*Member;
}

// The keys that take effect without a restart. RunningConfig applies them.
constexpr auto kLiveKeys = std::to_array<LiveKey>({
    {"allowed_uids", &Copy<&Config::allowed_uids>},
    {"allowed_roots", &Copy<&Config::allowed_roots>},
    {"dataset_cache", &Copy<&Config::dataset_cache>},
    {"max_sessions", &Copy<&Config::max_sessions>},
    {"admin_cert", &Copy<&Config::admin_cert>},
    {"admin_key", &Copy<&Config::admin_key>},
    {"admin_ca", &Copy<&Config::admin_ca>},
    {"admin_clients", &Copy<&Config::admin_clients>},
    {"log_level", &Copy<&Config::log_level>},
    {"drain_timeout", &Copy<&Config::drain_timeout>},
    {"stuck_timeout", &Copy<&Config::stuck_timeout>},
});

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
  return std::any_of(kLiveKeys.begin(), kLiveKeys.end(),
                     [&](const LiveKey& live) { return live.name == key; });
}

Reload MergeReloaded(const CommandLine& running, const CommandLine& loaded) {
  Reload out;
  out.next = running;
  out.next.origins = loaded.origins;
  for (const LiveKey& live : kLiveKeys) live.copy(loaded.config, out.next.config);
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name(key.name);
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
