// SPDX-License-Identifier: Apache-2.0
// `pinfeed peek`: the first batch of a dataset as people see it: a contact sheet and its labels, or the first
// numbers of each tensor.
#include <cstdio>
#include <memory>
#include <optional>

#include "client/cli/command.h"
#include "client/cli/contact_sheet.h"
#include "client/cli/interrupt.h"
#include "client/cli/spec_options.h"
#include "client/cli/text.h"
#include "common/quote.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

constexpr uint32_t kMaxSide = 4096;

struct PeekOptions {
  std::string dataset;
  std::string output = "peek.png";
  uint32_t samples = 64;
  uint32_t side = 128;
  std::optional<uint64_t> seed;
  std::string format;            // empty: found out
  uint32_t sequence_length = 0;  // of tokens
};

// Its own small feed: the order of a trainer's feed is not disturbed by looking.
Json PeekSpec(const PeekOptions& options, bool images) {
  Json dataset = DatasetOf(options.dataset);
  if (!options.format.empty()) dataset["format"] = options.format;
  if (options.sequence_length > 0) dataset["sequence_length"] = options.sequence_length;
  Json spec = {{"dataset", dataset},
               {"batch_size", options.samples},
               {"slots", 3},
               {"epochs", 1},
               {"sample_ids", true},
               {"on_bad_sample", "ZERO"},
               {"order", options.seed ? "SHUFFLE" : "SEQUENTIAL"},
               {"seed", options.seed.value_or(0)}};
  if (images) {
    // Whole images with their aspect ratio, and black around them.
    spec["transforms"] = Json::array({{{"resize", {{"max_size", options.side}}}},
                                      {{"center_crop", {{"size", {options.side, options.side}}}}}});
    spec["image_layout"] = "HWC";
  }
  return spec;
}

Feed OpenForPeek(const PeekOptions& options, const ToolContext& context) {
  FeedOptions feed_options;
  feed_options.address = context.address;
  feed_options.client_name = "pinfeed peek";
  try {
    return Feed(SpecText(PeekSpec(options, true)), feed_options);
  } catch (const Error& error) {
    if (error.code() != PF_INVALID_ARGUMENT) throw;
  }
  // The dataset has no images that could be resized: show its numbers. Another fault of the spec is told by
  // this second try.
  return Feed(SpecText(PeekSpec(options, false)), feed_options);
}

std::vector<TensorView> Tensors(const Feed& feed, const Batch& batch) {
  std::vector<TensorView> tensors;
  for (uint32_t i = 0; i < feed.Info().tensor_count; ++i) tensors.push_back(batch[i]);
  return tensors;
}

// N x height x width x channels of uint8.
const TensorView* FindImages(const std::vector<TensorView>& tensors) {
  for (const TensorView& tensor : tensors) {
    const std::vector<int64_t> shape = tensor.shape();
    const bool colours = shape.size() == 4 && (shape[3] == 1 || shape[3] == 3 || shape[3] == 4);
    if (tensor.dtype() == PF_UINT8 && colours && shape[1] > 0 && shape[2] > 0 && shape[1] <= kMaxSide &&
        shape[2] <= kMaxSide)
      return &tensor;
  }
  return nullptr;
}

// The index-th element from the start of the tensor, as text.
std::string Element(const TensorView& tensor, size_t index) {
  switch (tensor.dtype()) {
    case PF_BOOL:
    case PF_UINT8:
      return std::to_string(tensor.data_as<uint8_t>()[index]);
    case PF_INT8:
      return std::to_string(tensor.data_as<int8_t>()[index]);
    case PF_UINT16:
      return std::to_string(tensor.data_as<uint16_t>()[index]);
    case PF_INT16:
      return std::to_string(tensor.data_as<int16_t>()[index]);
    case PF_UINT32:
      return std::to_string(tensor.data_as<uint32_t>()[index]);
    case PF_INT32:
      return std::to_string(tensor.data_as<int32_t>()[index]);
    case PF_UINT64:
      return std::to_string(tensor.data_as<uint64_t>()[index]);
    case PF_INT64:
      return std::to_string(tensor.data_as<int64_t>()[index]);
    case PF_FLOAT32:
      return Fixed(tensor.data_as<float>()[index], 4);
    case PF_FLOAT64:
      return Fixed(tensor.data_as<double>()[index], 4);
    default:
      return "?";
  }
}

// The start of sample `sample`: "[5, 7, 2, ...]", or one number.
std::string Sample(const TensorView& tensor, uint32_t sample) {
  static constexpr size_t kShown = 6;
  size_t elements = 1;
  const std::vector<int64_t> shape = tensor.shape();
  for (size_t i = 1; i < shape.size(); ++i) elements *= static_cast<size_t>(shape[i]);
  if (shape.size() == 1) return Element(tensor, sample);
  std::string text = "[";
  for (size_t i = 0; i < std::min(elements, kShown); ++i)
    text += (i > 0 ? ", " : "") + Element(tensor, sample * elements + i);
  return text + (elements > kShown ? ", ...]" : "]");
}

void PrintSamples(const std::vector<TensorView>& tensors, const TensorView* images,
                  const std::vector<std::string>& classes, size_t columns, uint32_t samples) {
  Table table;
  std::vector<std::string> heading{"SAMPLE"};
  if (images != nullptr) heading = {"ROW", "COLUMN"};
  for (const TensorView& tensor : tensors) {
    if (&tensor != images) heading.emplace_back(tensor.name());
  }
  if (!classes.empty()) heading.emplace_back("class");
  table.Add(heading);
  for (uint32_t i = 0; i < samples; ++i) {
    std::vector<std::string> row{std::to_string(i)};
    if (images != nullptr) row = {std::to_string(i / columns + 1), std::to_string(i % columns + 1)};
    std::string name;
    for (const TensorView& tensor : tensors) {
      if (&tensor == images) continue;
      row.push_back(Sample(tensor, i));
      if (std::string(tensor.name()) != "label" || tensor.dtype() != PF_INT64 || tensor.raw().dims != 1)
        continue;
      const auto label = static_cast<uint64_t>(tensor.data_as<int64_t>()[i]);
      if (label < classes.size()) name = IsUtf8(classes[label]) ? classes[label] : EscapeName(classes[label]);
    }
    if (!classes.empty()) row.push_back(name);
    table.Add(row);
  }
  table.Print();
}

void RunPeek(const PeekOptions& options, const ToolContext& context) {
  Feed feed = OpenForPeek(options, context);
  const std::optional<Batch> batch = NextUnlessInterrupted(feed);
  if (!batch) throw ToolError("the dataset gave no samples");
  const std::vector<TensorView> tensors = Tensors(feed, *batch);
  const TensorView* images = FindImages(tensors);
  size_t columns = 1;
  if (images != nullptr) {
    const std::vector<int64_t> shape = images->shape();
    const auto height = static_cast<size_t>(shape[1]), width = static_cast<size_t>(shape[2]),
               channels = static_cast<size_t>(shape[3]);
    ContactSheet sheet(batch->samples(), height, width, channels);
    for (uint32_t i = 0; i < batch->samples(); ++i)
      sheet.Place(i, images->data_as<uint8_t>() + i * height * width * channels);
    sheet.Write(options.output);
    columns = sheet.columns();
    std::printf("%s: %s in %s\n\n", options.output.c_str(), Counted(batch->samples(), "image").c_str(),
                Counted(sheet.rows(), "row").c_str());
  }
  PrintSamples(tensors, images, feed.Classes(), columns, batch->samples());
}

}  // namespace

void AddPeekCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "peek", "Shows samples of a dataset: images as a contact sheet with a table of labels, else numbers.");
  const auto options = std::make_shared<PeekOptions>();
  command
      ->add_option("dataset", options->dataset,
                   "a dataset's name (see `pinfeed datasets`) or path (with a slash)")
      ->required();
  command->add_option("-o,--output", options->output, "the contact sheet, a PNG")->capture_default_str();
  command->add_option("-n,--samples", options->samples, "how many")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--side", options->side, "pixels of a thumbnail's side")
      ->capture_default_str()
      ->check(CLI::Range(8, 1024));
  command->add_option("--seed", options->seed,
                      "look at random samples, drawn from this seed; else at the first ones");
  command->add_option("--format", options->format, "image_folder, npy or tokens; found out by default");
  command
      ->add_option("--sequence-length", options->sequence_length, "tokens of a sample, of a file of tokens")
      ->check(CLI::PositiveNumber);
  command->callback([options, &context] { RunPeek(*options, context); });
}

}  // namespace pinfeed
