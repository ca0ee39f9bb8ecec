// SPDX-License-Identifier: Apache-2.0
// Logging of the daemon and of `common/`, through one process-wide spdlog logger that main() sets up. The
// client library logs through client/src/base/client_log.h instead.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

enum class LogFormat { kText, kJson };

// Replaces the default logger with one that writes to stderr and drops lines rather than wait for a reader.
// `level` is one of trace, debug, info, warning, error; otherwise kInvalidArgument. With kJson, each line is
// a valid JSON object, whatever bytes the message has: the keys time, level and thread, the fields of the
// current LogScope, and message. Lines for journald begin with their priority, as "<6>", which it removes.
Status InitLogging(std::string_view level, LogFormat format);
// Changes the level of the whole process. Same errors.
Status SetLogLevel(std::string_view level);
// The current level, as one of the names above.
std::string LogLevel();

// Escapes `text` for use inside a JSON string: quotes, backslashes and control characters are escaped, and
// invalid UTF-8 becomes U+FFFD.
std::string JsonEscape(std::string_view text);

}  // namespace pinfeed
