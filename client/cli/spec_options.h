// SPDX-License-Identifier: Apache-2.0
// The options that say what a feed reads, shared by the commands that open one. In: a command line. Out: a
// pinfeed.v1.FeedSpec as JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// {"path": ...} for what looks like a path (made absolute), {"name": ...} otherwise.
Json DatasetOf(const std::string& path_or_name);

// The spec as the library takes it. Throws UsageError when it holds text that is not UTF-8.
std::string SpecText(const Json& spec);

// Purpose: the options' values. Borrowed by the command while it is parsed.
struct SpecOptions {
  std::string dataset;
  std::string spec;        // JSON, or @FILE
  std::string transforms;  // JSON list, or a file with one
  std::string format;
  uint32_t batch_size = 256;
  uint64_t seed = 0;
  bool shuffle = false;
  bool hwc = false;
  uint32_t slots = 0;
  uint32_t sequence_length = 0;
  std::vector<std::string> masks;
  std::vector<std::string> fields_unchanged;

  void AddTo(CLI::App& command);
  // Throws ToolError when a file cannot be read, UsageError when the dataset is missing or JSON is none.
  Json Spec() const;
};

}  // namespace pinfeed
