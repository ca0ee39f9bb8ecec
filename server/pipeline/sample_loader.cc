// SPDX-License-Identifier: Apache-2.0
#include "server/pipeline/sample_loader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "server/pipeline/decode.h"
#include "server/pipeline/pointwise.h"
#include "server/pipeline/transform.h"

namespace pinfeed {
namespace {

constexpr char kSampleIdName[] = "sample_id";
constexpr char kMarkSuffix[] = ".mark";  // behind the image's name
// Buffers that one giant sample made larger than this are given back after it.
constexpr size_t kKeptBytes = size_t{64} << 20;

std::span<uint8_t> Bytes(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()};
}

// How the pixels of a tensor field lie.
struct TensorImage {
  ImageSize size;
  size_t channels = 0;
  ImageLayout layout = ImageLayout::kHwc;
};

bool IsChannels(int64_t dimension) {
  return dimension == 1 || dimension == 3;
}

bool LooksLikeImage(const Field& field) {
  const std::vector<int64_t>& shape = field.spec.shape;
  return field.kind == FieldKind::kTensor && field.spec.dtype == DType::kUint8 && shape.size() == 3 &&
         (IsChannels(shape.front()) || IsChannels(shape.back()));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Result<TensorImage> AsImage(const TensorSpec& spec) {
  const bool first = IsChannels(spec.shape.front());
  if (first && IsChannels(spec.shape.back())) {
    return InvalidArgument("transforms: field '" + spec.name + "' of shape " + ShapeText(spec.shape) +
                           " may be channels first or channels last; both ends are 1 or 3");
  }
  const int64_t height = spec.shape[first ? 1 : 0];
  const int64_t width = spec.shape[first ? 2 : 1];
  if (height < 1 || width < 1 || height > kMaxImagePixels / width) {
    return InvalidArgument("transforms: field '" + spec.name + "' of shape " + ShapeText(spec.shape) +
                           " is no image: it must have between 1 and " + std::to_string(kMaxImagePixels) +
                           " pixels");
  }
  return TensorImage{{static_cast<int32_t>(width), static_cast<int32_t>(height)},
                     static_cast<size_t>(first ? spec.shape.front() : spec.shape.back()),
                     first ? ImageLayout::kChw : ImageLayout::kHwc};
}

// The field that decode and transforms work on: the encoded one; else, if there are transforms, a tensor that
// can be seen as an image.
Result<std::optional<size_t>> FindImage(const std::vector<Field>& fields, bool transforms) {
  std::vector<size_t> found;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].kind == FieldKind::kEncodedImage) found.push_back(i);
  }
  if (found.empty() && transforms) {
    for (size_t i = 0; i < fields.size(); ++i) {
      if (!LooksLikeImage(fields[i])) continue;
      if (fields[i].spec.name == "image") return std::optional<size_t>(i);
      found.push_back(i);
    }
    if (found.empty()) {
      return InvalidArgument(
          "transforms: the dataset has no image for them: no encoded one, and no uint8 field of shape "
          "[channels, height, width] or "
          "[height, width, channels] with 1 or 3 channels");
    }
  }
  if (found.size() > 1) {
    std::string names;
    for (const size_t i : found) names += (names.empty() ? "'" : ", '") + fields[i].spec.name + "'";
    return InvalidArgument("transforms: the dataset has several images (" + names +
                           "); one of them must be the only one");
  }
  if (found.empty()) return std::optional<size_t>();
  return std::optional<size_t>(found.front());
}

// The tensor's pixels as RGB, one channel three times. `tensor` has kRowSlack bytes more than the image.
Result<ImageView> ToRgb(const TensorImage& image, const uint8_t* tensor, ImageBuffer& buffer) {
  const size_t stride = 3 * static_cast<size_t>(image.size.width);
  if (image.channels == 3 && image.layout == ImageLayout::kHwc) {
    return ImageView{tensor, image.size.width, image.size.height, stride};
  }
  ASSIGN_OR_RETURN(uint8_t* const out, buffer.Reserve(image.size.width, image.size.height));
  const size_t pixels = static_cast<size_t>(image.size.width) * static_cast<size_t>(image.size.height);
  const size_t plane = image.channels == 1 ? 0 : pixels;
  for (size_t i = 0; i < pixels; ++i) {
    out[3 * i] = tensor[i];
    out[3 * i + 1] = tensor[plane + i];
    out[3 * i + 2] = tensor[2 * plane + i];
  }
  return ImageView{out, image.size.width, image.size.height, stride};
}

}  // namespace

struct SampleScratch::Buffers {
  std::vector<std::byte> encoded;  // a file, or a tensor to be seen as an image
  ImageDecoder decoder;
  ImageBuffer widened;
  GeometryPlan plan;
  GeometryScratch geometry;

  void Trim() {
    if (encoded.capacity() > kKeptBytes) std::vector<std::byte>().swap(encoded);
    decoder.Trim(kKeptBytes);
    widened.Trim(kKeptBytes);
    geometry.Trim(kKeptBytes);
  }
};

SampleScratch::SampleScratch() : buffers_(std::make_unique<Buffers>()) {}
SampleScratch::~SampleScratch() = default;

struct SampleLoader::Program {
  std::optional<size_t> image;        // the field that is decoded or transformed
  std::optional<TensorImage> tensor;  // set when that field is a tensor
  std::vector<Transform> transforms;
  std::optional<Pointwise> pointwise;  // set when there is an image
  std::optional<ImageTail> tail;
  bool raw = false;  // the tensor's pixels go into the slot as they are: only the tail changes them
  uint64_t seed = 0;
  bool sample_ids = false;
  bool oriented = true;  // see ImageDecoder::Open

  Status LoadImage(const Dataset& dataset, const SampleKey& key, std::span<const std::span<std::byte>> places,
                   SampleScratch::Buffers& buffers, SampleTimes& times) const {
    const uint64_t start = TraceClockNs();
    Status status = ReadImage(dataset, key.id, places, buffers);
    const uint64_t read = TraceClockNs();
    times.Read(start, read);
    if (!status.ok()) return status;
    if (raw) {
      RETURN_IF_ERROR(PlanGeometry(transforms, {seed, key.epoch, key.id}, tensor->size, buffers.plan));
      WriteMark(buffers.plan.flip ? ImageMark::kMirrored : ImageMark::kPlain, places);
      return OkStatus();
    }
    status = Transformed(key, places, buffers);
    times.Decode(read, TraceClockNs());
    return status;
  }

  // Changes `outputs` to what the slot gets: uint8 pixels, a mark. Precondition: there is an image.
  void LeaveTail(const FeedSpec& spec, size_t channels, std::vector<TensorSpec>& outputs) {
    const auto moves = [](const Transform& t) {
      return std::holds_alternative<RandomHorizontalFlip>(t) || std::holds_alternative<Normalize>(t) ||
             std::holds_alternative<ToDtype>(t);
    };
    raw = tensor.has_value() && std::all_of(transforms.begin(), transforms.end(), moves);
    const Pointwise all(spec.transforms, channels, spec.image_layout);
    TensorSpec& output = outputs[*image];
    const bool chw = spec.image_layout == ImageLayout::kChw;
    ImageTail left;
    left.tensor = static_cast<uint32_t>(*image);
    left.output = output;
    left.height = static_cast<uint32_t>(output.shape[chw ? 1 : 0]);
    left.width = static_cast<uint32_t>(output.shape[chw ? 2 : 1]);
    left.channels = static_cast<uint32_t>(channels);
    left.source_layout = raw ? tensor->layout : ImageLayout::kHwc;
    left.output_layout = spec.image_layout;
    left.table = all.table();
    const bool flips = std::any_of(transforms.begin(), transforms.end(), [](const Transform& t) {
      return std::holds_alternative<RandomHorizontalFlip>(t);
    });
    const bool recolours = std::any_of(transforms.begin(), transforms.end(), [](const Transform& t) {
      return std::holds_alternative<Normalize>(t) || std::holds_alternative<ToDtype>(t);
    });
    pointwise.emplace(std::span<const Transform>(), channels, ImageLayout::kHwc);
    const bool zeroes =
        recolours && spec.on_bad_sample == OnBadSample::kZero;  // which the table would recolour
    if (!flips && !recolours && (left.source_layout == left.output_layout || channels == 1))
      return;  // it is that already
    output.dtype = DType::kUint8;
    if (left.source_layout == ImageLayout::kChw) {
      output.shape = {left.channels, left.height, left.width};
    } else {
      output.shape = {left.height, left.width, left.channels};
    }
    if (flips || zeroes) {
      left.mark = static_cast<uint32_t>(outputs.size());
      outputs.push_back({output.name + kMarkSuffix, DType::kUint8, {}});
    }
    tail = std::move(left);
  }

  void WriteMark(ImageMark mark, std::span<const std::span<std::byte>> places) const {
    if (tail.has_value() && tail->mark.has_value())
      places[*tail->mark].front() = static_cast<std::byte>(mark);
  }

 private:
  // Into its place if it is raw, else into the buffers.
  Status ReadImage(const Dataset& dataset, uint64_t id, std::span<const std::span<std::byte>> places,
                   SampleScratch::Buffers& buffers) const {
    if (raw) return dataset.ReadTensor(id, *image, places[*image]);
    if (!tensor.has_value()) return dataset.ReadEncoded(id, *image, buffers.encoded);
    const size_t bytes =
        tensor->channels * static_cast<size_t>(tensor->size.width) * static_cast<size_t>(tensor->size.height);
    if (buffers.encoded.size() < bytes + kRowSlack) buffers.encoded.resize(bytes + kRowSlack);
    return dataset.ReadTensor(id, *image, std::span(buffers.encoded).first(bytes));
  }
  Status Transformed(const SampleKey& key, std::span<const std::span<std::byte>> places,
                     SampleScratch::Buffers& buffers) const {
    ImageSize size;
    if (tensor.has_value()) {
      size = tensor->size;
    } else {
      ASSIGN_OR_RETURN(const ImageDecoder::Size opened, buffers.decoder.Open(buffers.encoded, oriented));
      size = {opened.width, opened.height};
    }
    RETURN_IF_ERROR(PlanGeometry(transforms, {seed, key.epoch, key.id}, size, buffers.plan));
    const Box region = SourceRegion(buffers.plan, size);
    ImageView source;
    if (tensor.has_value()) {
      ASSIGN_OR_RETURN(const ImageView whole, ToRgb(*tensor, Bytes(buffers.encoded).data(), buffers.widened));
      source = whole.Crop(region);
    } else {
      ASSIGN_OR_RETURN(source, buffers.decoder.Decode(region));
    }
    ASSIGN_OR_RETURN(const ImageView result, RunGeometry(buffers.plan, size, source, buffers.geometry));
    pointwise->Run(result, buffers.plan.flip && !tail.has_value(), places[*image]);
    WriteMark(buffers.plan.flip ? ImageMark::kMirrored : ImageMark::kPlain, places);
    return OkStatus();
  }
};

SampleLoader::SampleLoader(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Program> program,
                           std::vector<TensorSpec> outputs)
    : dataset_(std::move(dataset)), program_(std::move(program)), outputs_(std::move(outputs)) {}
SampleLoader::~SampleLoader() = default;

const std::optional<ImageTail>& SampleLoader::tail() const {
  return program_->tail;
}

Result<std::unique_ptr<SampleLoader>> SampleLoader::Create(std::shared_ptr<const Dataset> dataset,
                                                           const FeedSpec& spec, TailAt tail_at) {
  const std::vector<Field>& fields = dataset->info().fields;
  auto program = std::make_unique<Program>();
  program->transforms = spec.transforms;
  program->seed = spec.seed;
  program->sample_ids = spec.sample_ids;
  program->oriented = !spec.ignore_exif_orientation;
  std::vector<std::string> faults;
  if (auto image = FindImage(fields, !spec.transforms.empty()); image.ok()) {
    program->image = image.value();
  } else {
    faults.push_back(image.status().message());
  }
  std::optional<ImageSize> size;
  size_t channels = 3;
  if (program->image.has_value() && fields[*program->image].kind == FieldKind::kTensor) {
    if (auto tensor = AsImage(fields[*program->image].spec); tensor.ok()) {
      program->tensor = tensor.value();
      size = tensor->size;
      channels = tensor->channels;
    } else {
      faults.push_back(tensor.status().message());
    }
  }
  const size_t faults_before = faults.size();
  const ImageOutcome outcome = CheckTransforms(spec.transforms, size, channels, faults);
  if (faults.size() == faults_before && program->image.has_value() && outcome.width == 0 && faults.empty()) {
    faults.push_back(
        "transforms: image sizes vary: add Resize([h, w]), CenterCrop or RandomResizedCrop so that every "
        "sample has one shape");
  }
  std::vector<TensorSpec> outputs;
  for (size_t i = 0; i < fields.size(); ++i) {
    outputs.push_back(fields[i].spec);
    if (i != program->image) continue;
    const auto c = static_cast<int64_t>(channels);
    outputs.back().dtype = outcome.dtype;
    outputs.back().shape = spec.image_layout == ImageLayout::kChw
                               ? std::vector<int64_t>{c, outcome.height, outcome.width}
                               : std::vector<int64_t>{outcome.height, outcome.width, c};
  }
  if (spec.sample_ids) {
    if (std::any_of(fields.begin(), fields.end(),
                    [](const Field& field) { return field.spec.name == kSampleIdName; })) {
      faults.push_back("sample_ids: the dataset has a field 'sample_id' of its own; leave sample_ids out");
    }
    outputs.push_back({kSampleIdName, DType::kInt64, {}});
  }
  if (!faults.empty()) {
    std::string text;
    for (const std::string& fault : faults) text += (text.empty() ? "" : "\n") + fault;
    return InvalidArgument(text);
  }
  if (program->image.has_value()) {
    if (tail_at == TailAt::kClient) {
      program->LeaveTail(spec, channels, outputs);
    } else {
      program->pointwise.emplace(spec.transforms, channels, spec.image_layout);
    }
  }
  return std::unique_ptr<SampleLoader>(
      new SampleLoader(std::move(dataset), std::move(program), std::move(outputs)));
}

Status SampleLoader::LoadFields(const SampleKey& key, std::span<const std::span<std::byte>> places,
                                SampleScratch& scratch, SampleTimes& times) const {
  const size_t fields = dataset_->info().fields.size();
  Status status;
  if (!program_->image.has_value()) {
    const uint64_t start = TraceClockNs();
    status = dataset_->ReadTensors(key.id, places.first(fields));
    times.Read(start, TraceClockNs());
  }
  for (size_t i = 0; program_->image.has_value() && status.ok() && i < fields; ++i) {
    if (i == program_->image) {
      status = program_->LoadImage(*dataset_, key, places, scratch.buffers(), times);
      continue;
    }
    const uint64_t start = TraceClockNs();
    status = dataset_->ReadTensor(key.id, i, places[i]);
    times.Read(start, TraceClockNs());
  }
  return status;
}

Status SampleLoader::Load(const SampleKey& key, std::span<const std::span<std::byte>> places,
                          SampleScratch& scratch, SampleTimes& times) const {
  Status status;
  try {
    status = LoadFields(key, places, scratch, times);
  } catch (const std::bad_alloc&) {
    // How much a sample takes is its file's word: for want of that much, one sample is bad, not the daemon.
    status = ResourceExhausted(
        "no memory to read, decode or transform the sample (std::bad_alloc): give the daemon more, or fewer "
        "workers");
  }
  scratch.buffers().Trim();
  if (!status.ok()) {
    const std::string name = dataset_->Describe(key.id);
    return status.message().find(name) == std::string::npos ? status.WithContext(name) : status;
  }
  if (program_->sample_ids) {
    const auto id = static_cast<int64_t>(key.id);
    std::memcpy(places[dataset_->info().fields.size()].data(), &id, sizeof id);
  }
  return OkStatus();
}

void SampleLoader::LoadZero(const SampleKey& key, std::span<const std::span<std::byte>> places) const {
  const std::vector<Field>& fields = dataset_->info().fields;
  const auto read = [&](size_t field) {
    try {
      return dataset_->ReadTensor(key.id, field, places[field]).ok();
    } catch (const std::bad_alloc&) {
      return false;
    }
  };
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i == program_->image || !read(i)) {
      std::fill(places[i].begin(), places[i].end(), std::byte{0});
    }
  }
  program_->WriteMark(ImageMark::kZero, places);
  if (program_->sample_ids) {
    const auto id = static_cast<int64_t>(key.id);
    std::memcpy(places[fields.size()].data(), &id, sizeof id);
  }
}

}  // namespace pinfeed
