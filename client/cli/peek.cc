// SPDX-License-Identifier: Apache-2.0
// `pinfeed peek`: shows the first batch of a dataset: a contact sheet with labels, or the first numbers of
// each tensor.
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "client/cli/command.h"
#include "client/cli/contact_sheet.h"
#include "client/cli/interrupt.h"
#include "client/cli/json_field.h"
#include "client/cli/spec_options.h"
#include "client/cli/text.h"
#include "common/base/quote.h"
#include "common/spec/tensor_spec.h"
#include "pinfeed/pinfeed.hpp"

namespace pinfeed {
namespace {

constexpr char kPeekClient[] = "pinfeed peek";
constexpr uint32_t kMaxSide = 4096;

struct PeekOptions {
  std::string dataset;
  std::string output = "peek.png";
  uint32_t samples = 64;
  uint32_t side = 128;
  std::optional<uint64_t> seed;
  DatasetOptions dataset_options;
};

// What to request in addition to the dataset's fields.
struct PeekExtras {
  bool thumbnails;  // whole images in their aspect ratio, with black borders
  bool own;         // the tensors "sample_id" and "valid"
};

// A small feed of its own, so that the order of a trainer's feed is not disturbed.
Json PeekSpec(const PeekOptions& options, const PeekExtras& extras) {
  Json dataset = DatasetOf(options.dataset);
  options.dataset_options.Write(dataset);
  Json spec = {{"dataset", dataset},
               {"batch_size", options.samples},
               {"slots", 3},
               {"epochs", 1},
               {"sample_ids", extras.own},
               {"valid", extras.own},
               {"on_bad_sample", "ZERO"},
               {"order", options.seed ? "SHUFFLE" : "SEQUENTIAL"},
               {"seed", options.seed.value_or(0)}};
  if (extras.thumbnails) {
    spec["transforms"] = Json::array({{{"resize", {{"max_size", options.side}}}},
                                      {{"center_crop", {{"size", {options.side, options.side}}}}}});
    spec["image_layout"] = "HWC";
  }
  return spec;
}

struct PeekFeed {
  Feed feed;
  bool own;  // see PeekExtras
};

PeekFeed OpenForPeek(const PeekOptions& options, const ToolContext& context) {
  FeedOptions feed_options;
  feed_options.address = context.address;
  feed_options.client_name = kPeekClient;
  // Retries with fewer extras. Without resizable images, or with masks beside them, fields are shown as they
  // are. A dataset may have fields with the names of the extra tensors. Any other fault of the spec fails the
  // last try too.
  for (const PeekExtras extras : {PeekExtras{true, true}, PeekExtras{false, true}}) {
    try {
      return {Feed(SpecText(PeekSpec(options, extras)), feed_options), extras.own};
    } catch (const Error& error) {
      if (error.code() != PF_INVALID_ARGUMENT) throw;
    }
  }
  return {Feed(SpecText(PeekSpec(options, {false, false})), feed_options), false};
}

// A field of the batch.
struct PeekField {
  TensorView tensor;
  std::vector<RowExtent> extents;  // of the samples' rows, if it is packed
};

std::vector<PeekField> Fields(const Feed& feed, const Batch& batch) {
  std::vector<PeekField> fields;
  std::set<uint32_t> hidden;
  for (uint32_t i = 0; i < feed.Info().tensor_count; ++i) hidden.insert(batch[i].raw().extents);
  for (uint32_t i = 0; i < feed.Info().tensor_count; ++i) {
    if (hidden.contains(i + 1)) continue;
    PeekField& field = fields.emplace_back(PeekField{batch[i], {}});
    if (!field.tensor.packed()) continue;
    (void)batch.RowOffsets(i);  // throws if they are wrong
    field.extents.resize(batch.samples());
    const TensorView extents = batch[field.tensor.raw().extents - 1];
    std::memcpy(field.extents.data(), extents.data(), extents.bytes());
  }
  return fields;
}

// A uint8 tensor that can be shown as images: N x height x width x channels, or N x channels x height x
// width.
struct Images {
  const TensorView* tensor = nullptr;  // null: no such tensor
  size_t height = 0;
  size_t width = 0;
  size_t channels = 0;
  bool channels_first = false;
};

Images AsImages(const TensorView& tensor) {
  const std::vector<int64_t> shape = tensor.shape();
  if (tensor.dtype() != PF_UINT8 || shape.size() != 4 || tensor.packed()) return {};
  const auto channels = [](int64_t count) { return count == 1 || count == 3 || count == 4; };
  const auto side = [](int64_t length) { return length > 0 && length <= kMaxSide; };
  const bool last = channels(shape[3]) && side(shape[1]) && side(shape[2]);
  if (!last && !(channels(shape[1]) && side(shape[2]) && side(shape[3]))) return {};
  const size_t first = last ? 1 : 2;  // index of the height
  return {&tensor, static_cast<size_t>(shape[first]), static_cast<size_t>(shape[first + 1]),
          static_cast<size_t>(shape[last ? 3 : 1]), !last};
}

// The tensor named "image", or else the first that can be shown.
Images FindImages(const std::vector<PeekField>& fields) {
  Images found;
  for (const PeekField& field : fields) {
    const Images images = AsImages(field.tensor);
    if (images.tensor != nullptr && (found.tensor == nullptr || std::string(field.tensor.name()) == "image"))
      found = images;
  }
  return found;
}

// Returns the pixels as height x width x channels.
std::vector<uint8_t> PixelsOf(const Images& images, uint32_t sample) {
  const size_t pixels = images.height * images.width;
  const uint8_t* const from = images.tensor->data_as<uint8_t>() + sample * pixels * images.channels;
  std::vector<uint8_t> tile(from, from + pixels * images.channels);
  for (size_t i = 0; images.channels_first && i < tile.size(); ++i)
    tile[i] = from[i % images.channels * pixels + i / images.channels];
  return tile;
}

std::string Number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string Number(std::complex<double> value) {
  return Number(value.real()) + (std::signbit(value.imag()) ? "" : "+") + Number(value.imag()) + "j";
}

// The value of an IEEE 754 binary16.
double FromFloat16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int fraction = bits & 0x3FF;
  double value = std::ldexp(fraction, -24);  // subnormal
  if (exponent == 0x1F) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent > 0) {
    value = std::ldexp(0x400 + fraction, exponent - 25);
  }
  return std::copysign(value, (bits & 0x8000) != 0 ? -1 : 1);
}

// The element at `index` from the start of the tensor, as text.
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
    case PF_FLOAT16:
      return Number(FromFloat16(tensor.data_as<uint16_t>()[index]));
    case PF_BFLOAT16:
      return Number(std::bit_cast<float>(uint32_t{tensor.data_as<uint16_t>()[index]} << 16));
    case PF_FLOAT32:
      return Number(tensor.data_as<float>()[index]);
    case PF_FLOAT64:
      return Number(tensor.data_as<double>()[index]);
    case PF_COMPLEX64:
      return Number(std::complex<double>(tensor.data_as<std::complex<float>>()[index]));
    case PF_COMPLEX128:
      return Number(tensor.data_as<std::complex<double>>()[index]);
    default:
      return "?";
  }
}

// The start of one sample: "[5, 7, 2, ...]", or one number, or a text.
std::string Sample(const PeekField& field, uint32_t sample) {
  static constexpr size_t kShown = 6;
  static constexpr size_t kShownBytes = 40;
  const TensorView& tensor = field.tensor;
  size_t elements = 1;  // of the sample, or of one row
  const std::vector<int64_t> shape = tensor.shape();
  for (size_t i = 1; i < shape.size(); ++i) elements *= static_cast<size_t>(shape[i]);
  size_t first = sample * elements;
  if (tensor.packed()) {
    const RowExtent& extent = field.extents[sample];
    first = static_cast<size_t>(extent.first) * elements;
    elements *= static_cast<size_t>(extent.count);
    if (tensor.dtype() == PF_UINT8 && shape.size() == 1) {
      const std::string text(tensor.data_as<char>() + first, elements);
      size_t shown = std::min(elements, kShownBytes);
      while (shown < elements && shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80)
        --shown;
      return EscapeName(text.substr(0, shown)) + (shown < elements ? "..." : "");
    }
  } else if (shape.size() == 1) {
    return Element(tensor, sample);
  }
  std::string text = "[";
  for (size_t i = 0; i < std::min(elements, kShown); ++i)
    text += (i > 0 ? ", " : "") + Element(tensor, first + i);
  return text + (elements > kShown ? ", ...]" : "]");
}

void PrintSamples(const std::vector<PeekField>& fields, const TensorView* images,
                  const std::vector<std::string>& classes, size_t columns, uint32_t samples, bool own) {
  Table table;
  // A bad sample is only named: it has no contents.
  const TensorView* valid = nullptr;
  for (const PeekField& field : fields) {
    if (std::string(field.tensor.name()) == "valid" && own) valid = &field.tensor;
  }
  std::vector<std::string> heading{"SAMPLE"};
  if (images != nullptr) heading = {"ROW", "COLUMN"};
  for (const PeekField& field : fields) {
    if (&field.tensor != images && &field.tensor != valid) heading.emplace_back(field.tensor.name());
  }
  if (!classes.empty()) heading.emplace_back("class");
  table.Add(heading);
  for (uint32_t i = 0; i < samples; ++i) {
    std::vector<std::string> row{std::to_string(i)};
    if (images != nullptr) row = {std::to_string(i / columns + 1), std::to_string(i % columns + 1)};
    const bool bad = valid != nullptr && valid->data_as<uint8_t>()[i] == 0;
    std::string name = bad ? "bad" : "";
    for (const PeekField& field : fields) {
      const TensorView& tensor = field.tensor;
      if (&tensor == images || &tensor == valid) continue;
      row.push_back(bad && std::string(tensor.name()) != "sample_id" ? "bad" : Sample(field, i));
      if (bad) continue;
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

const TensorView& FieldNamed(const std::vector<PeekField>& fields, std::string_view name) {
  for (const PeekField& field : fields)
    if (field.tensor.name() == name) return field.tensor;
  throw ToolError("the batch has no tensor " + std::string(name));
}

// Prints why samples of the batch are bad. The daemon keeps only the newest reasons of a feed.
void PrintBadSamples(const std::vector<PeekField>& fields, uint32_t samples, const ToolContext& context) {
  const auto* const valid = FieldNamed(fields, "valid").data_as<uint8_t>();
  const auto* const ids = FieldNamed(fields, "sample_id").data_as<int64_t>();
  std::set<uint64_t> bad;
  for (uint32_t i = 0; i < samples; ++i)
    if (valid[i] == 0) bad.insert(static_cast<uint64_t>(ids[i]));
  if (bad.empty()) return;
  const Json feed = OwnFeed(Json::parse(StatusJson(context.address)), kPeekClient);
  std::puts("");
  for (const Json& note : ListField(feed, "last_bad_samples")) {
    const uint64_t id = UintField(note, "sample_id");
    if (bad.erase(id) == 0) continue;
    std::printf("bad: sample %s: %s\n", std::to_string(id).c_str(),
                Printable(TextField(note, "reason")).c_str());
  }
  if (!bad.empty())
    std::printf("bad: %s more; the daemon's log has some of them\n", Counted(bad.size(), "sample").c_str());
}

void RunPeek(const PeekOptions& options, const ToolContext& context) {
  auto [feed, own] = OpenForPeek(options, context);
  const std::optional<Batch> batch = NextUnlessInterrupted(feed);
  if (!batch) throw ToolError("the dataset has no samples");
  const std::vector<PeekField> fields = Fields(feed, *batch);
  const Images images = FindImages(fields);
  size_t columns = 1;
  if (images.tensor != nullptr) {
    ContactSheet sheet(batch->samples(), images.height, images.width, images.channels);
    for (uint32_t i = 0; i < batch->samples(); ++i) sheet.Place(i, PixelsOf(images, i).data());
    sheet.Write(options.output);
    PrintBeside(options.output);
    columns = sheet.columns();
    std::printf("%s: %s in %s\n\n", options.output.c_str(), Counted(batch->samples(), "image").c_str(),
                Counted(sheet.rows(), "row").c_str());
  }
  PrintSamples(fields, images.tensor, feed.Classes(), columns, batch->samples(), own);
  if (own) PrintBadSamples(fields, batch->samples(), context);
  for (const std::string& column : feed.LeftOut())
    std::printf("left out: %s\n", EscapeUnprintable(column).c_str());
}

}  // namespace

void AddPeekCommand(CLI::App& tool, ToolContext& context) {
  CLI::App* command = tool.add_subcommand(
      "peek",
      "Shows samples of a dataset: images as a contact sheet with a table of labels, other data as numbers.");
  const auto options = std::make_shared<PeekOptions>();
  command
      ->add_option("dataset", options->dataset,
                   "a dataset's name (see `pinfeed datasets`) or path (with a slash)")
      ->required();
  command->add_option("-o,--output", options->output, "the contact sheet to write, a PNG")
      ->capture_default_str();
  command->add_option("-n,--samples", options->samples, "number of samples")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--side", options->side, "side of a thumbnail in pixels")
      ->capture_default_str()
      ->check(CLI::Range(8, 1024));
  command->add_option("--seed", options->seed,
                      "show random samples drawn with this seed instead of the first ones");
  options->dataset_options.AddTo(*command);
  command->callback([options, &context] { RunPeek(*options, context); });
}

}  // namespace pinfeed
