// SPDX-License-Identifier: Apache-2.0
// Logging: spdlog, with one process-wide logger that main() sets up. Libraries log through these macros'
// targets only, never to stdout.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace pinfeed {

enum class LogFormat { kText, kJson };

// Replaces the default logger by one that writes to stderr and loses lines rather than wait for a reader.
// `level` is one of trace, debug, info, warning, error; kInvalidArgument otherwise. With kJson each line is
// one JSON object
// {"time","level","thread","message"}, whatever bytes the message holds.
Status InitLogging(std::string_view level, LogFormat format);
// From now on, in the whole process. The same errors.
Status SetLogLevel(std::string_view level);
// One of the names above.
std::string LogLevel();

// `text` as the inside of a JSON string: quotes, backslashes and control characters escaped, invalid UTF-8
// replaced by U+FFFD.
std::string JsonEscape(std::string_view text);

}  // namespace pinfeed
