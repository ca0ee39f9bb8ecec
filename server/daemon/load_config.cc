// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/load_config.h"

#include <string>
#include <utility>

#include "common/base/quote.h"
#include "server/daemon/host_check.h"

namespace pinfeed {

Result<LoadedConfig> LoadConfig(const ReadConfig& read, const CommandLine& running,
                                const Reloader::AtStep& at) {
  LoadedConfig out;
  at("reading the configuration" + (running.config_file.empty() ? "" : " " + QuotePath(running.config_file)));
  ASSIGN_OR_RETURN(out.command_line, read());
  const Config& config = out.command_line.config;
  if (!config.admin_listen.empty()) {
    at("reading " + QuotePath(config.admin_ca) + ", " + QuotePath(config.admin_cert) + " and " +
       QuotePath(config.admin_key) + " (admin_ca, admin_cert, admin_key)");
    Result<TlsIdentity> identity = ReadAdminIdentity(config);
    if (!identity.ok()) return WithOrigin(identity.status(), out.command_line);
    out.identity = *std::move(identity);
    out.warnings = ValidityWarnings(config, *out.identity);
  }
  for (const std::string& fault : StartFaults(out.command_line))
    out.warnings.push_back(fault + "; a restart with this value would fail");
  for (const std::string& overridden : out.command_line.overridden) out.warnings.push_back(overridden);
  for (std::string& missing : MissingWarnings(running, out.command_line, at))
    out.warnings.push_back(std::move(missing));
  return out;
}

}  // namespace pinfeed
