// SPDX-License-Identifier: Apache-2.0
// `pinfeed datasets`: the named datasets that the daemon serves, and the roots of allowed paths.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "client/cli/command.h"
#include "client/cli/json_field.h"
#include "client/cli/text.h"
#include "common/base/ascii_case.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

// Returns "HxWx3 (varying size)" or "3x224x224"; empty for a scalar.
std::string Shape(const Json& field) {
  static constexpr std::array<const char*, 2> kVarying = {"H", "W"};  // only images vary
  std::string text;
  bool varies = false;
  size_t dimension = 0;
  for (const Json& size : ListField(field, "shape")) {
    std::string one = size.is_string() ? size.get<std::string>() : size.dump();
    if (one == "-1") {
      varies = true;
      one = kVarying.at(std::min(dimension, kVarying.size() - 1));
    }
    text += (dimension++ == 0 ? "" : "x") + one;
  }
  return text + (varies ? " (varying size)" : "");
}

// Returns "image uint8 HxWx3 (varying size), label int64".
std::string Fields(const Json& dataset) {
  std::string text;
  for (const Json& field : ListField(dataset, "fields")) {
    const std::string shape = Shape(field);
    std::string dtype = TextField(field, "dtype");
    std::ranges::transform(dtype, dtype.begin(), AsciiLower);
    text += (text.empty() ? "" : ", ") + TextField(field, "name") + " " + dtype +
            (shape.empty() ? "" : " " + shape);
  }
  return text;
}

void PrintDatasets(const Json& answer) {
  Table table;
  table.Add({"NAME", "FORMAT", "SAMPLES", "CLASSES", "FIELDS", "PATH"});
  for (const Json& dataset : ListField(answer, "datasets")) {
    const std::string error = TextField(dataset, "error");
    table.Add({TextField(dataset, "name"), TextField(dataset, "format"),
               error.empty() ? Count(UintField(dataset, "samples")) : "-",
               error.empty() ? Count(ListField(dataset, "classes").size()) : "-",
               error.empty() ? Fields(dataset) : "cannot be opened: " + error, TextField(dataset, "path")});
  }
  if (ListField(answer, "datasets").empty()) {
    std::puts("no datasets are named in the daemon's configuration");
  } else {
    table.Print();
  }
  std::puts("");
  if (ListField(answer, "allowed_roots").empty()) std::puts("no other paths are allowed");
  for (const Json& root : ListField(answer, "allowed_roots"))
    std::printf("any path below %s may be opened\n", Printable(root.get<std::string>()).c_str());
}

}  // namespace

void AddDatasetsCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand("datasets", "Lists the datasets that the daemon serves by name.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "pinfeed.v1.ListDatasetsResponse as JSON");
  command->callback([json, &context] {
    ChooseDaemon(context);
    const Json answer = Json::parse(DatasetsJson(context.address));
    if (*json) {
      std::puts(answer.dump(2, ' ', true).c_str());
    } else {
      PrintDatasets(answer);
    }
  });
}

}  // namespace pinfeed
