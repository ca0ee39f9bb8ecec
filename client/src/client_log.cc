// SPDX-License-Identifier: Apache-2.0
#include "client/src/client_log.h"

#include <cstdio>

#include "common/base/sync.h"

namespace pinfeed {
namespace {

void LogToStderr(pf_log_level level, const char* message, void* /*user*/) {
  if (level >= PF_LOG_WARNING) std::fprintf(stderr, "pinfeed: %s\n", message);
}

struct Target {
  pf_log_function function = LogToStderr;
  void* user = nullptr;
};
Mutex g_mutex;
Target g_target PF_GUARDED_BY(g_mutex);

Target CurrentTarget() {
  const MutexLock lock(g_mutex);
  return g_target;
}

}  // namespace

void SetLogFunction(pf_log_function function, void* user) {
  const MutexLock lock(g_mutex);
  g_target = {function, user};
}

void ClientLog(pf_log_level level, const std::string& message) {
  const Target target = CurrentTarget();
  if (target.function != nullptr) target.function(level, message.c_str(), target.user);
}

}  // namespace pinfeed
