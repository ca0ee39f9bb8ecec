// SPDX-License-Identifier: Apache-2.0
// The one table of configuration keys: flags, environment, file, --help and --print-config all come from it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/config/config.h"

namespace pinfeed {

// Purpose: a value as found: a text from a flag or the environment (still to be parsed), or what a TOML node
// holds. Threads: a value. Errors: the As... functions say what was expected and what was found.
class ConfigValue {
 public:
  struct Other {
    std::string_view type;  // of a TOML node that no key takes: "a table", "a date", ...
  };
  static ConfigValue Text(std::string text) { return ConfigValue(std::move(text), true); }
  static ConfigValue String(std::string text) { return ConfigValue(std::move(text), false); }
  static ConfigValue Integer(int64_t value) { return ConfigValue(value, false); }
  static ConfigValue Float(double value) { return ConfigValue(value, false); }
  static ConfigValue Array(std::vector<std::string> items) { return ConfigValue(std::move(items), false); }
  static ConfigValue Unusable(std::string_view type) { return ConfigValue(Other{type}, false); }

  Result<uint64_t> AsUint(uint64_t min, uint64_t max) const;
  Result<std::string> AsString() const;
  // A string, or a number written as one.
  Result<std::string> AsScalar() const;
  // An array; or a text of items separated by commas.
  Result<std::vector<std::string>> AsStrings() const;
  Result<uint32_t> AsMode() const;  // "0660" is octal; a TOML integer is taken as it is
  Result<MemorySize> AsMemorySize() const;
  Result<std::chrono::milliseconds> AsDuration() const;

 private:
  using Storage = std::variant<std::string, int64_t, double, std::vector<std::string>, Other>;
  ConfigValue(Storage storage, bool text) : storage_(std::move(storage)), text_(text) {}
  Status Expected(std::string_view what) const;

  Storage storage_;
  bool text_;
};

struct ConfigKey {
  std::string_view name;  // "pool_bytes": --pool-bytes, PINFEED_POOL_BYTES
  std::string_view placeholder;
  std::string_view help;
  std::function<Status(const ConfigValue&, Config&)> set;
  std::function<std::string(const Config&)> print;  // as a TOML value
};

const std::vector<ConfigKey>& ConfigKeys();

// The keys of one [datasets.NAME] table.
Status SetDatasetKey(std::string_view key, const ConfigValue& value, DatasetSpec& dataset);
// What can only be told once the whole table was read; `faults` gets one text each.
std::vector<std::string> DatasetFaults(const DatasetSpec& dataset);

// "pool_bytes" -> "PINFEED_POOL_BYTES" / "--pool-bytes".
std::string EnvironmentName(std::string_view key);
std::string FlagName(std::string_view key);
// A TOML basic string, escaped.
std::string TomlString(std::string_view text);

}  // namespace pinfeed
