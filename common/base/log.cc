// SPDX-License-Identifier: Apache-2.0
#include "common/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "common/base/log_context.h"
#include "common/base/quote.h"
#include "common/base/stderr_sink.h"

namespace pinfeed {
namespace {

// %* in the pattern below: the message, escaped for a JSON string.
class JsonMessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string escaped = JsonEscape({message.payload.data(), message.payload.size()});
    out.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessageFlag>();
  }
};

// %~: the fields that LogScope sets.
class JsonContextFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& /*message*/, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    // Lines are formatted on the thread that logs them.
    const std::string fields = LogContextJson(CurrentLogContext());
    out.append(fields.data(), fields.data() + fields.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonContextFlag>();
  }
};

// %#: the priority, by which journald files a line and takes from it (sd-daemon(3)).
class PriorityFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    static constexpr std::array<char, 7> kPriorities = {'7', '7', '6', '4', '3', '2', '6'};  // of levels
    const std::array<char, 3> prefix = {'<', kPriorities.at(message.level), '>'};
    out.append(prefix.data(), prefix.data() + prefix.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }
};

// Whether stderr is a stream to journald, as in a service (systemd.exec(5), $JOURNAL_STREAM).
bool LogsToJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat info {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &info) == 0 &&
         std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino) == stream;
}

}  // namespace

std::string JsonEscape(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text.front());
    size_t length = 1;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += static_cast<char>(byte);
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else if (length = Utf8Length(text); length == 0) {
      out += "\\ufffd";
      length = 1;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

Status InitLogging(std::string_view level, LogFormat format) {
  auto logger = std::make_shared<spdlog::logger>("pinfeed", std::make_shared<StderrSink>(STDERR_FILENO));
  const bool json = format == LogFormat::kJson;
  const std::string pattern =
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l","thread":%t%~,"message":"%*"})"
           : "%Y-%m-%d %H:%M:%S.%e%z %^%-7l%$ %v";
  auto formatter = std::make_unique<spdlog::pattern_formatter>(json ? spdlog::pattern_time_type::utc
                                                                    : spdlog::pattern_time_type::local);
  formatter->add_flag<JsonMessageFlag>('*').add_flag<JsonContextFlag>('~').add_flag<PriorityFlag>('#');
  formatter->set_pattern((LogsToJournal() ? "%#" : "") + pattern);
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return SetLogLevel(level);
}

Status SetLogLevel(std::string_view level) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off || parsed == spdlog::level::critical) {
    return InvalidArgument("log level '" + std::string(level) +
                           "' is none of trace, debug, info, warning, error");
  }
  spdlog::default_logger_raw()->set_level(parsed);
  return OkStatus();
}

std::string LogLevel() {
  const spdlog::string_view_t name = spdlog::level::to_string_view(spdlog::default_logger_raw()->level());
  return {name.data(), name.size()};
}

}  // namespace pinfeed
