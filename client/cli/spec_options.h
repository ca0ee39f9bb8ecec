// SPDX-License-Identifier: Apache-2.0
// The options that describe a feed, shared by the commands that open one. In: a command line. Out: a
// pinfeed.v1.FeedSpec as JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/json_field.h"

namespace pinfeed {

// Returns {"path": ...}, made absolute, for what looks like a path, and {"name": ...} otherwise.
Json DatasetOf(const std::string& path_or_name);

// Returns the spec as text for the library. Throws UsageError if it holds text that is not UTF-8.
std::string SpecText(const Json& spec);

// Purpose: how a dataset is to be read; what is empty or 0 was not given. CLI11 borrows it while parsing.
struct DatasetOptions {
  std::string format;
  std::string image;
  std::string label;
  uint32_t sequence_length = 0;
  uint32_t stride = 0;
  std::string token_dtype;

  void AddTo(CLI::App& command);
  // Adds them to a pinfeed.v1.DatasetSpec.
  void Write(Json& dataset) const;
};

// Purpose: the options' values. CLI11 borrows it while parsing.
struct SpecOptions {
  std::string dataset;
  std::string spec;        // JSON, or @FILE
  std::string transforms;  // a JSON list, or a file with one
  std::string decode = "cpu";
  DatasetOptions dataset_options;
  uint32_t batch_size = 256;
  uint64_t seed = 0;
  bool shuffle = false;
  bool hwc = false;
  uint32_t slots = 0;
  std::vector<std::string> masks;
  std::vector<std::string> fields_unchanged;

  void AddTo(CLI::App& command);
  // Throws ToolError if a file cannot be read, UsageError if the dataset is missing or JSON is invalid.
  Json Spec() const;
};

}  // namespace pinfeed
