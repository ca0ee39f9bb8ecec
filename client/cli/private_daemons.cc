// SPDX-License-Identifier: Apache-2.0
#include "client/cli/private_daemons.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "client/cli/text.h"

namespace pinfeed {
namespace {

constexpr std::string_view kSocketName = "/pinfeed.sock";
constexpr size_t kMaxShown = 60;
constexpr std::streamsize kMaxRead = 64 << 10;  // of a command line

std::string Start(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxRead, '\0');
  file.read(text.data(), kMaxRead);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

std::vector<std::string> Words(const std::string& command_line) {
  std::vector<std::string> words;
  std::istringstream stream(command_line);
  for (std::string word; std::getline(stream, word, '\0');) words.push_back(word);
  return words;
}

// Returns the socket in a daemon's command line, if it is a private daemon.
std::optional<std::string> SocketOf(const std::vector<std::string>& words) {
  if (std::ranges::find(words, "--private") == words.end()) return std::nullopt;
  const auto option = std::ranges::find(words, "--socket-dir");
  if (option == words.end() || option + 1 == words.end()) return std::nullopt;
  const std::string& folder = *(option + 1);
  if (!folder.starts_with('/')) return std::nullopt;
  return folder + std::string(kSocketName);
}

// Whether only the user can have created the socket.
bool IsOwn(const std::string& socket_path, uid_t uid) {
  const std::string folder = socket_path.substr(0, socket_path.size() - kSocketName.size());
  struct stat info {};
  const bool safe = ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == uid &&
                    (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  return safe && ::lstat(socket_path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_uid == uid;
}

// Returns the first number after "PPid:" or "Uid:" of a process, or -1.
int64_t NumberIn(const std::string& status, std::string_view name) {
  const size_t at = status.find("\n" + std::string(name) + ":");
  if (at == std::string::npos) return -1;
  const char* first = status.data() + at + name.size() + 2;
  const char* const end = status.data() + status.size();
  while (first != end && (*first == '\t' || *first == ' ')) ++first;
  int64_t number = -1;
  return std::from_chars(first, end, number).ec == std::errc() ? number : -1;
}

// Shortens a command line for display: program and script without their folders, then the arguments.
std::string Shown(const std::string& command_line) {
  std::string text;
  const std::vector<std::string> words = Words(command_line);
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : " ") + (i < 2 ? words[i].substr(words[i].find_last_of('/') + 1) : words[i]);
  return text.size() <= kMaxShown ? Printable(text) : Printable(text.substr(0, kMaxShown - 4)) + " ...";
}

}  // namespace

std::vector<PrivateDaemon> FindPrivateDaemons(uid_t uid, const std::string& proc) {
  std::vector<PrivateDaemon> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(proc, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string process = entry->path().filename();
    if (process.empty() || process.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = Start(entry->path() / "status");
    if (NumberIn(status, "Uid") != int64_t{uid}) continue;
    const std::optional<std::string> address = SocketOf(Words(Start(entry->path() / "cmdline")));
    if (!address || !IsOwn(*address, uid)) continue;
    const auto trainer = static_cast<pid_t>(NumberIn(status, "PPid"));
    const bool known =  // a tool that runs the daemon, such as strace, has the same arguments
        std::ranges::any_of(found, [&](const PrivateDaemon& other) { return other.address == *address; });
    if (!known)
      found.push_back({trainer, Shown(Start(proc + "/" + std::to_string(trainer) + "/cmdline")), *address});
  }
  std::ranges::sort(found, {}, &PrivateDaemon::trainer);
  return found;
}

std::string Describe(const PrivateDaemon& daemon) {
  return "pid " + std::to_string(daemon.trainer) + " (" + daemon.command + "): --address " +
         Printable(daemon.address);
}

}  // namespace pinfeed
