// SPDX-License-Identifier: Apache-2.0
// Logging through spdlog, with one process-wide logger that main() sets up. Libraries log only through
// spdlog, never to stdout.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

enum class LogFormat { kText, kJson };

// Replaces the default logger with one that writes to stderr and drops lines rather than wait for a reader.
// `level` is one of trace, debug, info, warning, error; otherwise kInvalidArgument. With kJson, each line is
// a JSON object {"time","level","thread","message"}, for any bytes in the message.
Status InitLogging(std::string_view level, LogFormat format);
// Changes the level of the whole process. Same errors.
Status SetLogLevel(std::string_view level);
// The current level, as one of the names above.
std::string LogLevel();

// Escapes `text` for use inside a JSON string: quotes, backslashes and control characters are escaped, and
// invalid UTF-8 becomes U+FFFD.
std::string JsonEscape(std::string_view text);

}  // namespace pinfeed
