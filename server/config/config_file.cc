// SPDX-License-Identifier: Apache-2.0
#include "server/config/config_file.h"

#include <fcntl.h>
#include <poll.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "common/base/quote.h"
#include "common/base/unique_handle.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kPipeWaitMs = 2000;  // for `--config /dev/stdin`

Result<std::string> ReadFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return ErrnoStatus("open the configuration " + QuotePath(path), errno);
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    pollfd wait{fd.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, kPipeWaitMs);
    if (ready == 0)
      return InvalidArgument("the configuration " + QuotePath(path) +
                             " is a pipe without a writer; name a file");
    const ssize_t count = ready < 0 ? -1 : ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return ErrnoStatus("read the configuration " + QuotePath(path), errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > kMaxFileBytes)
      return InvalidArgument("the configuration " + QuotePath(path) + " is larger than 1 MiB");
  }
}

// Returns the line of a dotted key with more parts than any valid key, or 0. The parser recurses once per
// part, without a limit of its own.
size_t LineOfOverlongKey(std::string_view text) {
  constexpr size_t kMaxParts = 16;
  size_t line = 1;
  size_t dots = 0;
  char within = 0;  // a string's quote, or '#' in a comment
  for (const char c : text) {
    if (c == '\n') ++line;
    if (within != 0) {
      if ((c == within && c != '#') || c == '\n') within = 0;
    } else if (c == '"' || c == '\'' || c == '#') {
      within = c;
    } else if (c == '.') {
      if (++dots >= kMaxParts) return line;
    } else if (c == '=' || c == ',' || c == '\n') {
      dots = 0;
    }
  }
  return 0;
}

std::string Place(const std::string& path, const toml::source_region& region) {
  return path + ":" + std::to_string(region.begin.line);
}

std::string_view TypeName(toml::node_type type) {
  switch (type) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::date:
      return "a date";
    case toml::node_type::time:
      return "a time";
    case toml::node_type::date_time:
      return "a date-time";
    default:
      return "another type";
  }
}

// Integer items are converted to strings (for user ids).
ConfigValue ArrayValue(const toml::array& array) {
  std::vector<std::string> items;
  for (const toml::node& item : array) {
    if (const auto* text = item.as_string()) {
      items.push_back(text->get());
    } else if (const auto* integer = item.as_integer()) {
      items.push_back(std::to_string(integer->get()));
    } else {
      return ConfigValue::Unusable("an array with items other than strings and integers");
    }
  }
  return ConfigValue::Array(std::move(items));
}

ConfigValue Value(const toml::node& node) {
  if (const auto* text = node.as_string()) return ConfigValue::String(text->get());
  if (const auto* integer = node.as_integer()) {
    const bool octal = (integer->flags() & toml::value_flags::format_as_octal) != toml::value_flags::none;
    return octal ? ConfigValue::Octal(integer->get()) : ConfigValue::Integer(integer->get());
  }
  if (const auto* number = node.as_floating_point()) return ConfigValue::Float(number->get());
  if (const auto* array = node.as_array()) return ArrayValue(*array);
  return ConfigValue::Unusable(TypeName(node.type()));
}

std::vector<ConfigFile::Entry> Entries(const std::string& path, const toml::table& table) {
  std::vector<ConfigFile::Entry> entries;
  for (const auto& [key, node] : table)
    entries.push_back({std::string(key.str()), Value(node), Place(path, key.source())});
  return entries;
}

}  // namespace

Result<ConfigFile> ReadConfigFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (const size_t line = LineOfOverlongKey(text); line != 0)
    return InvalidArgument(path + ":" + std::to_string(line) +
                           ": the key has too many dotted parts; pinfeedd has no such key");
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    const std::string_view what = error.description();
    // toml++ took it for one of these. Others, such as "key-value pair: cannot redefine", lack no quotes.
    static constexpr std::array<std::string_view, 6> kBare = {
        "value:", "integer:", "point:", "date:", "time:", "boolean:"};
    const bool of_value = std::ranges::any_of(
        kBare, [&](std::string_view kind) { return what.find(kind) != std::string_view::npos; });
    return InvalidArgument(Place(path, error.source()) + ": " + std::string(what) +
                           (of_value ? "; what is no number is in quotes, as in pool_bytes = \"8GiB\"" : ""));
  }
  ConfigFile file;
  const toml::table* datasets = root["datasets"].as_table();
  if (datasets != nullptr) {
    for (const auto& [name, node] : *datasets) {
      const std::string place = Place(path, name.source());
      const toml::table* table = node.as_table();
      if (table == nullptr)
        return InvalidArgument(place + ": datasets." + EscapeName(name.str()) +
                               ": expected a table [datasets.NAME]");
      file.datasets.push_back({std::string(name.str()), place, Entries(path, *table)});
    }
    root.erase("datasets");
  } else if (const toml::node* const other = root.get("datasets"); other != nullptr) {
    return InvalidArgument(Place(path, other->source()) + ": datasets: expected tables [datasets.NAME]");
  }
  file.entries = Entries(path, root);
  return file;
}

}  // namespace pinfeed
