// SPDX-License-Identifier: Apache-2.0
#include "server/daemon/service_environment.h"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>

#include "common/base/parse_number.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

constexpr int kFirstPassed = 3;

std::optional<std::string> Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool IsThisProcess(const std::optional<std::string>& pid) {
  return pid.has_value() && ParseNumber<int64_t>(*pid) == ::getpid();
}

std::vector<std::string> SplitNames(const std::string& text) {
  std::vector<std::string> names(1);
  for (const char c : text) {
    if (c == ':')
      names.emplace_back();
    else
      names.back() += c;
  }
  return names;
}

Status Faulty(const char* variable, const std::string& value, const std::string& why) {
  return InvalidArgument("the service manager's sockets: $" + std::string(variable) + " is " +
                         QuotePath(value) + ", " + why);
}

}  // namespace

Result<std::vector<std::pair<std::string, UniqueFd>>> TakePassedSockets() {
  const std::optional<std::string> pid = Variable("LISTEN_PID");
  const std::optional<std::string> count_text = Variable("LISTEN_FDS");
  const std::optional<std::string> names_text = Variable("LISTEN_FDNAMES");
  for (const char* name : {"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  std::vector<std::pair<std::string, UniqueFd>> sockets;
  if (!IsThisProcess(pid) || !count_text.has_value()) return sockets;
  const std::optional<int64_t> count = ParseNumber<int64_t>(*count_text);
  if (!count || *count < 0 || *count > std::numeric_limits<int>::max() - kFirstPassed)
    return Faulty("LISTEN_FDS", *count_text, "which is no number of descriptors");
  const std::vector<std::string> names = SplitNames(names_text.value_or(""));
  if (*count > 0 && names_text.has_value() && names.size() != static_cast<size_t>(*count))
    return Faulty("LISTEN_FDNAMES", *names_text, "but $LISTEN_FDS is " + *count_text);
  for (int i = 0; i < static_cast<int>(*count); ++i) {
    const int fd = kFirstPassed + i;
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags < 0 || ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC) != 0)
      return ErrnoStatus("receive descriptor " + std::to_string(fd) + " of the service manager ($LISTEN_FDS)",
                         errno);
    sockets.emplace_back(names_text.has_value() ? names[static_cast<size_t>(i)] : "unknown", UniqueFd(fd));
  }
  return sockets;
}

std::chrono::microseconds WatchdogInterval() {
  const std::optional<std::string> pid = Variable("WATCHDOG_PID");
  const std::optional<std::string> interval = Variable("WATCHDOG_USEC");
  if (!interval.has_value() || (pid.has_value() && !IsThisProcess(pid))) return {};
  return std::chrono::microseconds(std::max<int64_t>(ParseNumber<int64_t>(*interval).value_or(0), 0));
}

std::string CacheDirectory() {
  const auto absolute = [](const std::optional<std::string>& path) { return path && path->starts_with('/'); };
  if (const std::optional<std::string> service = Variable("CACHE_DIRECTORY"); absolute(service))
    return service->substr(0, service->find(':'));
  if (const std::optional<std::string> cache = Variable("XDG_CACHE_HOME"); absolute(cache))
    return *cache + "/pinfeed";
  std::optional<std::string> home = Variable("HOME");
  if (const passwd* const user = absolute(home) ? nullptr : ::getpwuid(::geteuid()); user != nullptr)
    home = user->pw_dir;
  return absolute(home) ? *home + "/.cache/pinfeed" : std::string();
}

}  // namespace pinfeed
