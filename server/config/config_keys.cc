// SPDX-License-Identifier: Apache-2.0
#include "server/config/config_keys.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "common/base/ascii_case.h"
#include "common/base/join.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "common/os/tcp_address.h"
#include "common/wire/shared_page.h"
#include "server/dataset/format.h"
#include "server/dataset/open_dataset.h"

namespace pinfeed {
namespace {

constexpr uint32_t kMaxWorkers = 4096;
constexpr uint32_t kMaxSessions = 65536;

std::string TomlStrings(const std::vector<std::string>& items) {
  return "[" + JoinTexts(items, ", ", TomlString) + "]";
}

std::string TomlDuration(std::chrono::milliseconds duration) {
  return TomlString(std::to_string(duration.count()) + "ms");
}

// A key whose value `read` makes of what is given, and `print` shows.
template <typename Value, typename Read, typename Print>
ConfigKey KeyOf(std::string_view name, std::string_view placeholder, Value Config::*member,
                std::string_view help, Read read, Print print) {
  return {name,
          placeholder,
          help,
          [=](const ConfigValue& value, Config& config) -> Status {
            ASSIGN_OR_RETURN(config.*member, read(value));
            return OkStatus();
          },
          [=](const Config& config) { return print(config.*member); },
          [=](const Config& from, Config& to) { to.*member = from.*member; }};
}

ConfigKey UintKey(std::string_view name, uint32_t Config::*member, uint32_t min, uint32_t max,
                  std::string_view help) {
  const auto read = [=](const ConfigValue& value) -> Result<uint32_t> {
    ASSIGN_OR_RETURN(const uint64_t number, value.AsUint(min, max));
    return static_cast<uint32_t>(number);
  };
  return KeyOf(name, "N", member, help, read, [](uint32_t number) { return std::to_string(number); });
}

ConfigKey DurationKey(std::string_view name, std::chrono::milliseconds Config::*member, std::string_view help,
                      std::chrono::milliseconds least = {}) {
  const auto read = [=](const ConfigValue& value) { return value.AsDuration(least); };
  return KeyOf(name, "TIME", member, help, read, TomlDuration);
}

// A text for which `valid` returns true, as `expected` says.
ConfigKey TextKey(std::string_view name, std::string_view placeholder, std::string Config::*member,
                  std::string_view help, bool (*valid)(std::string_view text), const char* expected) {
  const auto read = [=](const ConfigValue& value) -> Result<std::string> {
    Result<std::string> text = value.AsString();
    if (text.ok() && valid(*text)) return text;
    return value.Expected(expected);
  };
  return KeyOf(name, placeholder, member, help, read, TomlString);
}

// The same for each of a list of texts.
ConfigKey ListKey(std::string_view name, std::string_view placeholder,
                  std::vector<std::string> Config::*member, std::string_view help,
                  bool (*valid)(std::string_view text), const char* expected) {
  const auto read = [=](const ConfigValue& value) -> Result<std::vector<std::string>> {
    ASSIGN_OR_RETURN(std::vector<std::string> items, value.AsStrings());
    const auto fault = std::ranges::find_if_not(items, valid);
    if (fault == items.end()) return items;
    return InvalidArgument(std::string("expected ") + expected + ", found " + QuotePath(*fault));
  };
  return KeyOf(name, placeholder, member, help, read, TomlStrings);
}

Result<AllowedUids> ReadAllowedUids(const ConfigValue& value) {
  ASSIGN_OR_RETURN(const std::vector<std::string> items, value.AsStrings());
  AllowedUids allowed;
  for (const std::string& item : items) {
    const std::optional<uint32_t> uid = ParseNumber<uint32_t>(item);
    if (item == "*") {
      allowed.any = true;
    } else if (uid && *uid != UINT32_MAX) {
      allowed.uids.insert(*uid);
    } else {
      return InvalidArgument("expected numeric user ids or \"*\", found " + QuotePath(item));
    }
  }
  return allowed;
}

std::string PrintAllowedUids(const AllowedUids& allowed) {
  std::vector<std::string> items;
  if (allowed.any) items.emplace_back("*");
  for (const uint32_t uid : allowed.uids) items.push_back(std::to_string(uid));
  return TomlStrings(items);
}

// Whether `host` is a name, or an address that inet_pton(3) accepts. A malformed address would never match a
// request.
bool IsHost(std::string_view name) {
  const std::string host(name);
  constexpr std::string_view kHostCharacters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_:[]";
  if (host.empty() || host.size() > 255 || host.find_first_not_of(kHostCharacters) != std::string::npos)
    return false;
  in6_addr binary{};
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (host.find_first_of(":[]") != std::string::npos)
    return ::inet_pton(AF_INET6, (bracketed ? host.substr(1, host.size() - 2) : host).c_str(), &binary) == 1;
  return host.find_first_not_of("0123456789.") != std::string::npos ||
         ::inet_pton(AF_INET, host.c_str(), &binary) == 1;
}

// An empty string or "off" disables the listener.
Result<std::string> AsListenAddress(const ConfigValue& value, std::string_view example) {
  Result<std::string> text = value.AsString();
  if (text.ok() && *text == "off") text->clear();
  if (text.ok() && (text->empty() || IsNumericTcpAddress(*text))) return text;
  return value.Expected("ADDRESS:PORT with a numeric address, such as " + std::string(example) +
                        ", or \"off\"");
}

ConfigKey ListenKey(std::string_view name, std::string Config::*member, std::string_view example,
                    std::string_view help) {
  const auto read = [=](const ConfigValue& value) { return AsListenAddress(value, example); };
  return KeyOf(name, "ADDRESS:PORT", member, help, read,
               [](const std::string& listen) { return TomlString(listen.empty() ? "off" : listen); });
}

ConfigKey FileKey(std::string_view name, std::string Config::*member, std::string_view help) {
  const auto valid = [](std::string_view path) { return path.empty() || path.front() == '/'; };
  return TextKey(name, "FILE", member, help, valid, "an absolute path");
}

bool IsLogLevel(std::string_view level) {
  constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warning", "error"};
  return std::ranges::find(kLevels, level) != kLevels.end();
}

Result<LogFormat> ReadLogFormat(const ConfigValue& value) {
  const Result<std::string> format = value.AsString();
  if (format.ok() && *format == "text") return LogFormat::kText;
  if (format.ok() && *format == "json") return LogFormat::kJson;
  return value.Expected("text or json");
}

Result<std::string> ReadSocketDir(const ConfigValue& value) {
  ASSIGN_OR_RETURN(const std::string directory, value.AsString());
  if (directory.empty()) return InvalidArgument("expected a directory, found an empty string");
  std::error_code error;
  // Clients are given this path and have another working directory.
  std::string absolute = std::filesystem::absolute(directory, error).lexically_normal().string();
  if (error) return InvalidArgument("make " + QuotePath(directory) + " absolute: " + error.message());
  return absolute;
}

std::string PrintMemorySize(const MemorySize& size) {
  if (!size.IsSet()) return TomlString("off");
  if (size.bytes != 0) return TomlString(std::to_string(size.bytes) + "B");
  std::array<char, 32> text{};
  // 15 digits, since 0.07 * 100 is 7.000000000000001.
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), size.share * 100, std::chars_format::general, 15)
          .ptr;
  return TomlString(std::string(text.data(), end) + "%");
}

ConfigKey MemoryKey(std::string_view name, MemorySize Config::*member, std::string_view help) {
  return KeyOf(name, "SIZE", member, help, std::mem_fn(&ConfigValue::AsMemorySize), PrintMemorySize);
}

Result<MemorySize> ReadCacheBytes(const ConfigValue& value) {
  const Result<std::string> text = value.AsScalar();
  if (text.ok() && (*text == "off" || *text == "0")) return MemorySize{0, 0};
  Result<MemorySize> size = value.AsMemorySize();
  if (!size.ok()) return InvalidArgument(size.status().message() + "; \"off\" disables the cache");
  return size;
}

std::string PrintMode(uint32_t mode) {
  std::array<char, 16> text{};
  return "0o" + std::string(text.data(), std::to_chars(text.data(), text.data() + text.size(), mode, 8).ptr);
}

std::vector<ConfigKey> MakeKeys() {
  return {
      KeyOf("socket_dir", "DIR", &Config::socket_dir,
            "directory of the sockets and the instance lock; must exist", ReadSocketDir, TomlString),
      KeyOf("socket_mode", "OCTAL", &Config::socket_mode, "permission bits of the sockets",
            std::mem_fn(&ConfigValue::AsMode), PrintMode),
      KeyOf("socket_group", "GROUP", &Config::socket_group,
            "group (name or number) that owns the sockets; empty: the daemon's own",
            std::mem_fn(&ConfigValue::AsScalar), TomlString),
      KeyOf("allowed_uids", "UID,...", &Config::allowed_uids,
            "users served besides the daemon's own and root; \"*\": every user that reaches the sockets",
            ReadAllowedUids, PrintAllowedUids),
      MemoryKey("pool_bytes", &Config::pool_bytes,
                "host memory for batches: \"8GiB\", or a share of the available memory, \"25%\""),
      KeyOf("cache_bytes", "SIZE", &Config::cache_bytes,
            "host memory for decoded images, besides pool_bytes: \"64GiB\", or a share of the available "
            "memory; \"off\": they are not cached",
            ReadCacheBytes, PrintMemorySize),
      TextKey(
          "gpus", "auto|on|off", &Config::gpus,
          "auto: feed the GPUs that exist; on: require at least one; off: use host memory only",
          [](std::string_view text) { return text == "auto" || text == "on" || text == "off"; },
          "auto, on or off"),
      MemoryKey("pinned_bytes", &Config::pinned_bytes,
                "host memory pinned at the start for copies to GPUs, or a share of pool_bytes"),
      MemoryKey("gpu_bytes", &Config::gpu_bytes, "memory of each GPU for batches, or a share of its memory"),
      UintKey("workers", &Config::workers, 0, kMaxWorkers,
              "threads that load samples; 0: one per CPU that this process may use"),
      UintKey(
          "default_slots", &Config::default_slots, kMinSlots, kMaxSlots,
          "slots of an arena when the client does not choose; twice as many on a GPU, or on the host where "
          "they take little of the user's memory; up to four times as many for small batches"),
      UintKey("max_sessions", &Config::max_sessions, 1, kMaxSessions,
              "maximum number of concurrent sessions"),
      UintKey("user_sessions", &Config::user_sessions, 0, kMaxSessions,
              "maximum number of concurrent sessions per user; 0: as many as max_sessions"),
      UintKey("user_workers", &Config::user_workers, 0, kMaxWorkers,
              "workers that may serve the feeds of one user at the same time; 0: all"),
      MemoryKey("user_pool_bytes", &Config::user_pool_bytes,
                "host memory limit for the feeds of one user, or a share of pool_bytes"),
      MemoryKey("user_pinned_bytes", &Config::user_pinned_bytes,
                "pinned memory limit for the feeds of one user, or a share of pinned_bytes"),
      MemoryKey("user_gpu_bytes", &Config::user_gpu_bytes,
                "memory limit on each GPU for the feeds of one user, or a share of gpu_bytes"),
      MemoryKey("user_cache_bytes", &Config::user_cache_bytes,
                "memory limit for the decoded images of one user, or a share of cache_bytes"),
      UintKey("dataset_cache", &Config::dataset_cache, 0, 1024,
              "datasets kept open after their last feed ended"),
      TextKey(
          "index_dir", "auto|off|DIR", &Config::index_dir,
          "directory that keeps the file names of large datasets from one start to the next; auto: the cache "
          "directory of the service or of the user; off: none",
          [](std::string_view text) { return text == "auto" || text == "off" || text.starts_with('/'); },
          "auto, off or an absolute path"),
      ListKey(
          "allowed_roots", "DIR,...", &Config::allowed_roots,
          "directories under which clients may open datasets by path",
          [](std::string_view root) { return root.starts_with('/'); }, "absolute paths"),
      ListenKey("http_listen", &Config::http_listen, "127.0.0.1:9467",
                "address of /metrics, /healthz and /readyz; port 0: any free one; \"off\": disabled"),
      ListKey("http_hosts", "NAME,...", &Config::http_hosts,
              "host names accepted in HTTP requests, besides localhost and the address of http_listen",
              IsHost, "host names or addresses without a port"),
      ListenKey("admin_listen", &Config::admin_listen, "10.0.0.7:9468",
                "address for operators on other hosts, over TLS; port 0: any free one; \"off\": disabled"),
      FileKey("admin_cert", &Config::admin_cert, "certificate (PEM) of the admin endpoint"),
      FileKey("admin_key", &Config::admin_key,
              "private key (PEM) of admin_cert; must not be readable by every user"),
      FileKey("admin_ca", &Config::admin_ca,
              "certificates (PEM) of the CA that issues the clients' certificates"),
      ListKey(
          "admin_clients", "NAME,...", &Config::admin_clients,
          "names (DNS or URI, else the CN) in the certificates of allowed clients",
          [](std::string_view name) {
            return !name.empty() && name.size() <= 1024 && name.find('*') == std::string_view::npos;
          },
          "full names as in the clients' certificates, without wildcards"),
      TextKey("log_level", "LEVEL", &Config::log_level, "trace, debug, info, warning or error", IsLogLevel,
              "one of trace, debug, info, warning, error"),
      KeyOf("log_format", "FORMAT", &Config::log_format, "text or json", ReadLogFormat,
            [](LogFormat format) { return TomlString(format == LogFormat::kJson ? "json" : "text"); }),
      DurationKey("pending_timeout", &Config::pending_timeout,
                  "time for a client to connect its lifeline after opening a feed",
                  std::chrono::milliseconds(1)),
      DurationKey("drain_timeout", &Config::drain_timeout, "time for clients to leave after SIGTERM"),
      DurationKey(
          "stuck_timeout", &Config::stuck_timeout,
          "time without progress of a worker or a GPU's copies after which the daemon lets the service "
          "manager's watchdog expire; 0: never"),
  };
}

Status SetDatasetPath(const ConfigValue& value, DatasetSpec& dataset) {
  ASSIGN_OR_RETURN(dataset.path, value.AsString());
  if (dataset.path.empty() || dataset.path.front() != '/') {
    return InvalidArgument("expected an absolute path, found " + QuotePath(dataset.path));
  }
  return OkStatus();
}

// An option of some format: a number, or a word.
Status SetDatasetOption(const std::string& option, const ConfigValue& value, DatasetSpec& dataset) {
  if (const Result<uint64_t> number = value.AsUint(1, UINT32_MAX); number.ok()) {
    dataset.options[option] = std::vector<double>{static_cast<double>(*number)};
  } else if (const Result<std::string> word = value.AsString(); word.ok()) {
    dataset.options[option] = std::vector<std::string>{*word};
  } else {
    return number.status();
  }
  Faults faults;
  DatasetSpec alone;
  alone.name = "configured";  // other options may follow
  alone.options[option] = dataset.options[option];
  CheckDatasetOptions(alone, faults);
  return faults.ToStatus();
}

}  // namespace

const std::vector<ConfigKey>& ConfigKeys() {
  static const std::vector<ConfigKey> keys = MakeKeys();
  return keys;
}

Status SetDatasetKey(std::string_view key, const ConfigValue& value, DatasetSpec& dataset) {
  if (key == "path") return SetDatasetPath(value, dataset);
  if (key == "format") {
    ASSIGN_OR_RETURN(dataset.format, value.AsString());
    return CheckDatasetFormat(dataset.format);
  }
  if (FormatOfOption(key) != nullptr) return SetDatasetOption(std::string(key), value, dataset);
  std::string known;
  for (const DatasetFormat* const format : DatasetFormats())
    for (const std::string_view option : format->options()) known += ", " + std::string(option);
  return InvalidArgument("unknown key; a dataset has path, format" + known);
}

std::vector<std::string> DatasetFaults(const DatasetSpec& dataset) {
  std::vector<std::string> faults;
  const auto in_name = [](char c) { return IsAsciiAlphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  if (dataset.name.empty() || dataset.name.size() > 128 || !std::ranges::all_of(dataset.name, in_name)) {
    faults.emplace_back("a name consists of 1 to 128 letters, digits, '.', '_' and '-'");
  }
  if (dataset.path.empty()) faults.emplace_back("path is missing");
  return faults;
}

std::string EnvironmentName(std::string_view key) {
  std::string name = "PINFEED_";
  for (const char c : key) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

std::string FlagName(std::string_view key) {
  std::string name = "--" + std::string(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string TomlString(std::string_view text) {
  return '"' + JsonEscape(text) + '"';
}

}  // namespace pinfeed
