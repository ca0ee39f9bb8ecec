// SPDX-License-Identifier: Apache-2.0
// The table of configuration keys. Flags, environment variables, file keys, --help and --print-config are all
// derived from it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/config/config.h"

namespace pinfeed {

// Purpose: a configuration value as found in its source: unparsed text from a flag or variable, or a TOML
// value. Threads: a plain value. Errors: the As... functions return what was expected and what was found.
class ConfigValue {
 public:
  struct Other {
    std::string_view type;  // a TOML type that no key accepts: "a table", "a date", ...
  };
  static ConfigValue Text(std::string text) { return ConfigValue(std::move(text), true); }
  static ConfigValue String(std::string text) { return ConfigValue(std::move(text), false); }
  static ConfigValue Integer(int64_t value) { return ConfigValue(value, false); }
  // An integer that was written as 0o660.
  static ConfigValue Octal(int64_t value) {
    ConfigValue octal = Integer(value);
    octal.octal_ = true;
    return octal;
  }
  static ConfigValue Float(double value) { return ConfigValue(value, false); }
  static ConfigValue Array(std::vector<std::string> items) { return ConfigValue(std::move(items), false); }
  static ConfigValue Unusable(std::string_view type) { return ConfigValue(Other{type}, false); }

  Result<uint64_t> AsUint(uint64_t min, uint64_t max) const;
  Result<std::string> AsString() const;
  // A string, or a number converted to one.
  Result<std::string> AsScalar() const;
  // An array, or text with comma-separated items.
  Result<std::vector<std::string>> AsStrings() const;
  // Text such as "0660" is octal; a TOML integer must be written so.
  Result<uint32_t> AsMode() const;
  Result<MemorySize> AsMemorySize() const;
  Result<std::chrono::milliseconds> AsDuration(std::chrono::milliseconds least) const;
  // The error of a value that is not `what`.
  Status Expected(std::string_view what) const;

 private:
  using Storage = std::variant<std::string, int64_t, double, std::vector<std::string>, Other>;
  ConfigValue(Storage storage, bool text) : storage_(std::move(storage)), text_(text) {}

  Storage storage_;
  bool octal_ = false;
  bool text_;
};

struct ConfigKey {
  std::string_view name;  // "pool_bytes": --pool-bytes, PINFEED_POOL_BYTES
  std::string_view placeholder;
  std::string_view help;
  std::function<Status(const ConfigValue&, Config&)> set;
  std::function<std::string(const Config&)> print;  // as a TOML value
  std::function<void(const Config& from, Config& to)> copy;
};

const std::vector<ConfigKey>& ConfigKeys();

// Sets one key of a [datasets.NAME] table.
Status SetDatasetKey(std::string_view key, const ConfigValue& value, DatasetSpec& dataset);
// Checks a complete dataset table. Returns one text per fault.
std::vector<std::string> DatasetFaults(const DatasetSpec& dataset);

// "pool_bytes" -> "PINFEED_POOL_BYTES" / "--pool-bytes".
std::string EnvironmentName(std::string_view key);
std::string FlagName(std::string_view key);
// A TOML basic string, escaped.
std::string TomlString(std::string_view text);

}  // namespace pinfeed
