// SPDX-License-Identifier: Apache-2.0
#include "client/cli/spec_options.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "client/cli/command.h"

namespace pinfeed {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ToolError("read " + path + ": " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Json ParseJson(const std::string& text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw UsageError(origin + " is no JSON: " + error.what());
  }
}

}  // namespace

Json DatasetOf(const std::string& path_or_name) {
  if (path_or_name.find('/') == std::string::npos && path_or_name != "." && path_or_name != "..")
    return {{"name", path_or_name}};
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path_or_name, error);
  return {{"path", error ? path_or_name : absolute.lexically_normal().string()}};
}

void SpecOptions::AddTo(CLI::App& command) {
  command.add_option("dataset", dataset, "a dataset's name (see `pinfeed datasets`) or path (with a slash)");
  command.add_option("--batch-size", batch_size, "samples in a batch")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_flag("--shuffle", shuffle, "in an order drawn from the seed; else in the dataset's order");
  command.add_option("--seed", seed, "of order and random transforms")->capture_default_str();
  command.add_option("--transforms", transforms,
                     R"(JSON list or file, e.g. '[{"random_resized_crop": {"size": [224]}}]')");
  command.add_flag("--hwc", hwc, "images as height x width x channels");
  command.add_option("--format", format, "image_folder, npy or tokens; else found out");
  command.add_option("--sequence-length", sequence_length, "tokens in a sample");
  command.add_option("--slots", slots, "batches the arena holds; 0: the daemon's default")
      ->capture_default_str();
  command.add_option("--spec", spec,
                     "a whole pinfeed.v1.FeedSpec as JSON, or @FILE; the options above are then ignored");
}

Json SpecOptions::Spec() const {
  if (!spec.empty())
    return spec.front() == '@' ? ParseJson(ReadFile(spec.substr(1)), spec.substr(1))
                               : ParseJson(spec, "--spec");
  if (dataset.empty()) throw UsageError("give a dataset (its name or path) or --spec");
  Json result = {{"dataset", DatasetOf(dataset)},
                 {"batch_size", batch_size},
                 {"seed", seed},
                 {"order", shuffle ? "SHUFFLE" : "SEQUENTIAL"}};
  if (hwc) result["image_layout"] = "HWC";
  if (slots != 0) result["slots"] = slots;
  if (!format.empty()) result["dataset"]["format"] = format;
  if (sequence_length != 0) result["dataset"]["sequence_length"] = sequence_length;
  if (!transforms.empty()) {
    const bool inline_json = transforms.find('[') != std::string::npos;
    result["transforms"] =
        inline_json ? ParseJson(transforms, "--transforms") : ParseJson(ReadFile(transforms), transforms);
  }
  return result;
}

}  // namespace pinfeed
