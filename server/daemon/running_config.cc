// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/running_config.h"

#include <utility>
#include <vector>

#include "common/base/join.h"
#include "common/base/log.h"
#include "server/daemon/daemon_parts.h"

namespace pinfeed {

ReloadReport RunningConfig::Adopt(const std::string& who, const LoadedConfig& loaded, DaemonParts& parts) {
  Reload reload = MergeReloaded(command_line_, loaded.command_line);
  command_line_ = std::move(reload.next);
  Apply(parts);
  if (loaded.identity && parts.admin_access) {
    const std::string until = UtcText(loaded.identity->valid_until);
    if (parts.admin_access->SetIdentity(*loaded.identity))
      reload.changed.push_back("admin endpoint: the certificates were reloaded; its own is valid until " +
                               until);
  }
  loaded_at_ = WallClock::now();
  const char* const none = reload.need_restart.empty() ? "nothing changed" : "no change takes effect now";
  spdlog::info("{}: the configuration was loaded: {}", who,
               reload.changed.empty() ? none : JoinTexts(reload.changed, "; "));
  if (!reload.need_restart.empty())
    spdlog::warn("takes effect only after a restart: {}", JoinTexts(reload.need_restart, "; "));
  for (const std::string& warning : loaded.warnings) spdlog::warn("{}", warning);
  return {std::move(reload.changed), std::move(reload.need_restart), loaded.warnings};
}

// Applies the keys that server/config/reload.cc lists as live.
void RunningConfig::Apply(DaemonParts& parts) {
  const Config& config = command_line_.config;
  users_.Set(config.allowed_uids);
  parts.datasets->cache.SetOptions({config.datasets, config.allowed_roots, config.dataset_cache});
  parts.sessions->SetLimit(config.max_sessions);
  parts.progress->SetLimit(config.stuck_timeout);
  drain_timeout_ = config.drain_timeout;
  if (parts.admin_access) parts.admin_access->SetClients(config.admin_clients);
  if (const Status set = SetLogLevel(config.log_level); !set.ok()) spdlog::error("{}", set.message());
}

}  // namespace pinfeed
