// SPDX-License-Identifier: Apache-2.0
#include "client/cli/spec_options.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "client/cli/command.h"
#include "common/base/parse_number.h"
#include "common/base/quote.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {
namespace {

constexpr double kMaxCount = UINT32_MAX;
constexpr size_t kShownBytes = 24;  // of JSON shown around a fault

std::string ReadFile(const std::string& path) {
  // Opening a directory succeeds; only reading it fails, and a stream does not report why.
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw ToolError("read " + QuotePath(path) + ": it is a directory");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ToolError("read " + QuotePath(path) + ": " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Returns the text around `place`, without cutting characters.
std::string Around(const std::string& text, size_t place) {
  size_t begin = place > kShownBytes ? place - kShownBytes : 0;
  while (begin < text.size() && IsContinuation(text[begin])) ++begin;
  size_t end = std::min(text.size(), place + 1);
  while (end < text.size() && IsContinuation(text[end])) ++end;
  return QuotePath(std::string_view(text).substr(begin, end - begin));
}

Json ParseJson(const std::string& text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t place = std::min(std::max<size_t>(error.byte, 1) - 1, text.size());
    if (text.find_first_not_of(" \t\r\n") == std::string::npos)
      throw UsageError(origin + " is not JSON: it is empty");
    throw UsageError(origin + " is not JSON: " +
                     (place == text.size() ? "it ends too early, after " : "the fault is at the end of ") +
                     Around(text, place));
  } catch (const Json::out_of_range&) {
    throw UsageError(origin + " holds a number that is too large for any field");
  }
}

Json CheckObject(Json spec) {
  if (!spec.is_object()) throw UsageError("the spec must be a JSON object, such as {\"dataset\": ...}");
  return spec;
}

// Parses `given` as JSON if it starts like JSON, or else the file of that name.
Json ParseTransforms(const std::string& given) {
  const size_t start = given.find_first_not_of(" \t\r\n");
  const bool is_json = start != std::string::npos && (given[start] == '[' || given[start] == '{');
  std::error_code ignored;
  if (!is_json && !std::filesystem::exists(given, ignored)) {
    throw UsageError(
        "--transforms " + QuotePath(given) +
        R"( is neither a JSON list nor a file, e.g. '[{"random_resized_crop": {"size": [224]}}]')");
  }
  Json transforms = ParseJson(is_json ? given : ReadFile(given), is_json ? "--transforms" : QuotePath(given));
  if (!transforms.is_array())
    throw UsageError((is_json ? "--transforms" : QuotePath(given)) + " must be a JSON list: put it into [ ]");
  return transforms;
}

// Adds who decodes JPEG: "cpu", "gpu", "auto" or "auto:787".
void AddDecode(const std::string& given, Json& spec) {
  if (given == "cpu") return;
  const std::string mode = given.substr(0, given.find(':'));
  uint32_t share = 0;
  if (mode != given) {
    share = ParseNumber<uint32_t>(given.substr(mode.size() + 1)).value_or(0);
    if (share < 1 || share > kWholeShare) share = UINT32_MAX;
  }
  if ((mode != "auto" && given != "gpu") || share == UINT32_MAX) {
    throw UsageError("--decode " + QuotePath(given) +
                     " is neither cpu, gpu, auto nor auto: with the GPU's share per mille, such as auto:787");
  }
  spec["decode"] = mode == "gpu" ? "DECODE_GPU" : "DECODE_AUTO";
  if (share != 0) spec["gpu_share"] = share;
}

}  // namespace

Json DatasetOf(const std::string& path_or_name) {
  if (path_or_name.find('/') == std::string::npos && path_or_name != "." && path_or_name != "..")
    return {{"name", path_or_name}};
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path_or_name, error);
  if (error) return {{"path", path_or_name}};
  const std::filesystem::path plain = absolute.lexically_normal();
  // Behind a symbolic link, ".." is where the kernel goes.
  const std::filesystem::path real = std::filesystem::weakly_canonical(absolute, error);
  if (error) return {{"path", plain.string()}};
  const bool same = std::filesystem::weakly_canonical(plain, error) == real;
  return {{"path", (same || error ? plain : real).string()}};
}

void DatasetOptions::AddTo(CLI::App& command) {
  command.add_option("--format", format,
                     "image_folder, manifest, npy, tokens or webdataset; default: detected");
  command.add_option("--image", image, "manifest: the column with the images' paths; default: file_name");
  command.add_option("--label", label, "manifest: the column that becomes label; default: label");
  command.add_option("--sequence-length", sequence_length, "tokens: how many a sample has")
      ->check(Within(1, kMaxCount));
  command.add_option("--stride", stride, "tokens: from one sample's start to the next's")
      ->check(Within(1, kMaxCount));
  command.add_option("--token-dtype", token_dtype,
                     "tokens: uint16 or uint32, for a file that does not say so");
}

void DatasetOptions::Write(Json& dataset) const {
  if (!format.empty()) dataset["format"] = format;
  if (!image.empty()) dataset["image"] = image;
  if (!label.empty()) dataset["label"] = label;
  if (sequence_length != 0) dataset["sequence_length"] = sequence_length;
  if (stride != 0) dataset["stride"] = stride;
  if (!token_dtype.empty()) dataset["token_dtype"] = token_dtype;
}

void SpecOptions::AddTo(CLI::App& command) {
  command.add_option("dataset", dataset, "a dataset's name (see `pinfeed datasets`) or path (with a slash)");
  command.add_option("--batch-size", batch_size, "samples per batch")
      ->capture_default_str()
      ->check(Within(1, kMaxCount));
  command.add_flag("--shuffle", shuffle, "shuffle with the seed; default: the dataset's order");
  command.add_option("--seed", seed, "seed of the order and of random transforms")->capture_default_str();
  command.add_option("--transforms", transforms,
                     R"(JSON list or file, e.g. '[{"random_resized_crop": {"size": [224]}}]')");
  command.add_option("--masks", masks, "fields that follow the image's crops, resizes and flips: a,b")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--fields-unchanged", fields_unchanged,
                  "fields that stay unchanged although they have the image's height and width: a,b")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--decode", decode, "what decodes JPEG: cpu, gpu, auto, or auto:787 (per mille by the GPU)")
      ->capture_default_str();
  command.add_flag("--hwc", hwc, "image layout height x width x channels");
  dataset_options.AddTo(command);
  command.add_option("--slots", slots, "number of batches in the arena; 0: the daemon's default")
      ->capture_default_str();
  command.add_option("--spec", spec,
                     "a whole pinfeed.v1.FeedSpec as JSON, or @FILE; the options above are then ignored");
}

Json SpecOptions::Spec() const {
  if (!spec.empty())
    return CheckObject(spec.front() == '@' ? ParseJson(ReadFile(spec.substr(1)), QuotePath(spec.substr(1)))
                                           : ParseJson(spec, "--spec"));
  if (dataset.empty()) throw UsageError("give a dataset (its name or path) or --spec");
  Json result = {{"dataset", DatasetOf(dataset)},
                 {"batch_size", batch_size},
                 {"seed", seed},
                 {"order", shuffle ? "SHUFFLE" : "SEQUENTIAL"}};
  AddDecode(decode, result);
  if (hwc) result["image_layout"] = "HWC";
  if (slots != 0) result["slots"] = slots;
  dataset_options.Write(result["dataset"]);
  if (!masks.empty()) result["masks"] = masks;
  if (!fields_unchanged.empty()) result["fields_unchanged"] = fields_unchanged;
  if (!transforms.empty()) result["transforms"] = ParseTransforms(transforms);
  return result;
}

std::string SpecText(const Json& spec) {
  try {
    return spec.dump();
  } catch (const Json::type_error&) {
    throw UsageError(
        "the spec holds text that is not UTF-8; the daemon accepts names and paths in UTF-8 only");
  }
}

}  // namespace pinfeed
