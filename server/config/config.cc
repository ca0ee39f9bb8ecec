// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "common/base/join.h"
#include "common/base/quote.h"
#include "common/spec/parameter_reader.h"
#include "server/config/config_file.h"
#include "server/config/config_flags.h"
#include "server/config/config_keys.h"

namespace pinfeed {
namespace {

// Whether one character was inserted, removed or replaced.
bool DifferByOne(std::string_view one, std::string_view other) {
  if (one.size() > other.size()) std::swap(one, other);
  if (other.size() - one.size() > 1 || one == other) return false;
  const auto [at_one, at_other] = std::ranges::mismatch(one, other);
  const std::string_view rest(at_other + 1, other.end());
  return std::string_view(one.size() == other.size() ? at_one + 1 : at_one, one.end()) == rest;
}

// Applies one value to the configuration, or adds its error to `faults`.
void Apply(const ConfigKey& key, const ConfigValue& value, const std::string& origin, CommandLine& out,
           std::vector<std::string>& faults) {
  if (const Status status = key.set(value, out.config); status.ok()) {
    out.origins[std::string(key.name)] = origin;
  } else {
    faults.push_back(origin + ": " + std::string(key.name) + ": " + status.message());
  }
}

void ApplyDatasets(const ConfigFile& file, CommandLine& out, std::vector<std::string>& faults) {
  for (const ConfigFile::Dataset& table : file.datasets) {
    const std::string at = "datasets." + EscapeName(table.name);
    DatasetSpec dataset;
    dataset.name = table.name;
    for (const ConfigFile::Entry& entry : table.entries) {
      const Status status = SetDatasetKey(entry.key, entry.value, dataset);
      if (!status.ok())
        faults.push_back(entry.place + ": " + at + "." + EscapeName(entry.key) + ": " + status.message());
    }
    for (const std::string& fault : DatasetFaults(dataset))
      faults.push_back(table.place + ": " + at + ": " + fault);
    out.config.datasets[table.name] = std::move(dataset);
    out.origins["datasets." + table.name] = table.place;
  }
}

std::string HelpWithKey(std::string_view unknown) {
  if (DifferByOne(unknown, "datasets")) return "did you mean [datasets.NAME]?";
  for (const ConfigKey& key : ConfigKeys())
    if (DifferByOne(unknown, key.name)) return "did you mean " + std::string(key.name) + "?";
  return "pinfeedd --print-config lists the known ones";
}

void ApplyFile(const std::string& path, CommandLine& out, std::vector<std::string>& faults) {
  Result<ConfigFile> file = ReadConfigFile(path);
  if (!file.ok()) {
    faults.push_back(file.status().message());
    return;
  }
  for (const ConfigFile::Entry& entry : file->entries) {
    const ConfigKey* found = nullptr;
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.name == entry.key) found = &key;
    }
    if (found != nullptr) {
      Apply(*found, entry.value, entry.place, out, faults);
    } else {
      faults.push_back(entry.place + ": " + EscapeName(entry.key) + ": unknown key; " +
                       HelpWithKey(entry.key));
    }
  }
  ApplyDatasets(*file, out, faults);
}

// Defaults for settings that a private daemon does not need or that its user provides.
void ApplyPrivateDefaults(CommandLine& out, std::vector<std::string>& faults) {
  out.config.http_listen.clear();
  out.config.allowed_roots = {"/"};
  out.config.socket_mode = 0600;
  for (const char* key : {"http_listen", "allowed_roots", "socket_mode"})
    out.origins[key] = "default of --private";
  if (out.lifetime_fd < 0)
    faults.emplace_back("--private: requires --lifetime-fd, the read end of a pipe that its user holds open");
}

// The keys of the admin endpoint must be given together or not at all.
void CheckAdminKeys(const CommandLine& out, std::vector<std::string>& faults) {
  const Config& config = out.config;
  const std::array<std::pair<const char*, bool>, 5> keys = {
      {{"admin_listen", !config.admin_listen.empty()},
       {"admin_cert", !config.admin_cert.empty()},
       {"admin_key", !config.admin_key.empty()},
       {"admin_ca", !config.admin_ca.empty()},
       {"admin_clients", !config.admin_clients.empty()}}};
  std::string missing;
  const char* given = nullptr;
  for (const auto& [name, is_set] : keys) {
    if (!is_set) missing += (missing.empty() ? "" : ", ") + std::string(name);
    if (is_set && given == nullptr) given = name;
  }
  if (given == nullptr || missing.empty()) return;
  faults.push_back(out.origins.at(given) + ": " + given + ": requires " + missing + " as well");
}

void NoteOverridden(const CommandLine& by_default, const CommandLine& by_file, CommandLine& out) {
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name(key.name);
    const std::string& place = by_file.origins.at(name);
    const std::string& origin = out.origins.at(name);
    if (place == by_default.origins.at(name) || origin == place) continue;
    const std::string value = key.print(by_file.config);
    if (value == key.print(out.config)) continue;
    out.overridden.push_back(name + " = " + value + " (" + EscapeName(place) + ") is not in force: " +
                             EscapeName(origin) + " overrides it; remove that or change it there");
  }
}

// A variable that is nearly the name of a setting would have no effect, and nobody would notice. Short names
// are near to many others. Kubernetes sets variables for each of its services, such as
// PINFEED_PORT=tcp://10.0.0.1:80.
void CheckSpelling(const std::map<std::string, std::string>& environment, std::vector<std::string>& faults) {
  constexpr std::string_view kPrefix = "PINFEED_";
  constexpr size_t kLeastSpelled = kPrefix.size() + 3;
  std::vector<std::string> names{"PINFEED_CONFIG", "PINFEED_ADDRESS", "PINFEED_LIBRARY", "PINFEED_DAEMON"};
  for (const ConfigKey& key : ConfigKeys()) names.push_back(EnvironmentName(key.name));
  for (const auto& variable : environment) {
    const std::string& given = variable.first;
    if (!given.starts_with(kPrefix) || given.size() < kLeastSpelled ||
        variable.second.starts_with("tcp://") || std::ranges::find(names, given) != names.end())
      continue;
    const auto near = std::ranges::find_if(names, [&](const auto& name) { return DifferByOne(given, name); });
    if (near != names.end())
      faults.push_back("environment " + EscapeName(given) + ": there is no such setting; did you mean " +
                       *near + "? If not, unset it");
  }
}

}  // namespace

Status JoinFaults(const std::vector<std::string>& faults) {
  return faults.empty() ? OkStatus() : InvalidArgument(JoinTexts(faults, "\n"));
}

Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment) {
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(arguments));
  CommandLine out = flags.command_line;
  if (out.action == Action::kPrintAndExit) return out;

  std::vector<std::string> faults;
  for (const ConfigKey& key : ConfigKeys()) out.origins[std::string(key.name)] = "default";
  if (out.private_mode) ApplyPrivateDefaults(out, faults);
  const CommandLine by_default = out;
  const auto configured = environment.find("PINFEED_CONFIG");
  if (out.config_file.empty() && configured != environment.end() && !configured->second.empty()) {
    out.config_file = configured->second;
    out.file_by_environment = true;
  }
  if (!out.config_file.empty()) ApplyFile(out.config_file, out, faults);
  const CommandLine by_file = out;
  CheckSpelling(environment, faults);
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = EnvironmentName(key.name);
    if (const auto found = environment.find(name); found != environment.end()) {
      Apply(key, ConfigValue::Text(found->second), "environment " + name, out, faults);
    }
  }
  for (const ConfigKey& key : ConfigKeys()) {
    if (const auto found = flags.values.find(std::string(key.name)); found != flags.values.end()) {
      Apply(key, ConfigValue::Text(found->second), "flag " + FlagName(key.name), out, faults);
    }
  }
  NoteOverridden(by_default, by_file, out);
  if (faults.empty()) CheckAdminKeys(out, faults);
  RETURN_IF_ERROR(JoinFaults(faults));
  return out;
}

std::string DescribeCheck(const CommandLine& command_line) {
  std::string text = "OK: ";
  if (command_line.config_file.empty()) {
    text += "no file was read, since neither --config nor PINFEED_CONFIG names one";
  } else {
    text += EscapeName(command_line.config_file);
    if (command_line.file_by_environment) text += " (PINFEED_CONFIG)";
  }
  std::string variables;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = EnvironmentName(key.name);
    if (command_line.origins.at(std::string(key.name)) == "environment " + name) variables += " " + name;
  }
  if (!variables.empty()) text += "; variables that apply:" + variables;
  return text;
}

std::string PrintConfig(const CommandLine& command_line) {
  std::ostringstream out;
  for (const ConfigKey& key : ConfigKeys()) {
    out << "# " << key.help << "\n# from: " << EscapeName(command_line.origins.at(std::string(key.name)))
        << '\n'
        << key.name << " = " << key.print(command_line.config) << "\n\n";
  }
  for (const auto& [name, dataset] : command_line.config.datasets) {
    out << "[datasets." << TomlString(name)
        << "]\n# from: " << EscapeName(command_line.origins.at("datasets." + name))
        << "\npath = " << TomlString(dataset.path) << '\n';
    if (!dataset.format.empty()) out << "format = " << TomlString(dataset.format) << '\n';
    for (const auto& [option, value] : dataset.options) {
      const auto* const words = std::get_if<std::vector<std::string>>(&value);
      out << option << " = "
          << (words != nullptr ? TomlString(words->front())
                               : NumberText(std::get<std::vector<double>>(value).front()))
          << '\n';
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace pinfeed
