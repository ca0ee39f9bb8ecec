// SPDX-License-Identifier: Apache-2.0
#include "server/loading/sample_loader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "server/loading/gpu_decode_program.h"
#include "server/loading/image_source.h"
#include "server/loading/sample_buffers.h"
#include "server/memory/host_memory_ledger.h"
#include "server/transform/field_roles.h"
#include "server/transform/mask.h"
#include "server/transform/pointwise.h"
#include "server/transform/transform_chain.h"

namespace pinfeed {
namespace {

constexpr char kValidName[] = "valid";
constexpr char kLengthSuffix[] = "_length";  // behind a padded field's name

std::span<uint8_t> Bytes(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()};
}

// Adds a fault for each field of spec.pad that cannot be padded.
void CheckPadded(const DatasetInfo& info, const FeedSpec& spec, Faults& faults) {
  for (const PaddedField& padded : spec.pad) {
    const auto found =
        std::ranges::find_if(info.fields, [&](const Field& f) { return f.spec.name == padded.field; });
    const auto left_out =
        std::ranges::find(info.left_out, padded.field, &std::pair<std::string, std::string>::first);
    if (found == info.fields.end() && left_out != info.left_out.end()) {
      faults.Add("pad", "'" + padded.field + "' is not available as a field: " + left_out->second);
    } else if (found == info.fields.end()) {
      faults.Add("pad", "a sample has no field '" + padded.field + "', or fields leaves it out");
    } else if (found->kind != FieldKind::kRagged) {
      faults.Add("pad", "field '" + padded.field +
                            "' has no rows whose number differs from sample to sample: leave it out");
    }
  }
}

}  // namespace

SampleScratch::SampleScratch() : buffers_(std::make_unique<Buffers>()) {}
SampleScratch::~SampleScratch() = default;
void SampleScratch::Trim() {
  buffers_->Trim(0);
}

struct SampleLoader::Program {
  std::optional<size_t> image;                  // the field that is decoded or transformed
  std::optional<TensorImage> tensor;            // set when that field is a tensor
  std::vector<std::optional<MaskField>> masks;  // by field
  TransformChain transforms;
  std::optional<ImageSource> images;   // set when that field is encoded; uses the transforms
  std::optional<Pointwise> pointwise;  // set when there is an image
  std::optional<DeferredPixelOps> tail;
  std::optional<GpuDecodeProgram> gpu_decode;  // then it loads the image
  bool raw = false;  // the tensor's pixels go into the slot as they are: only the tail changes them
  uint64_t seed = 0;
  bool ragged = false;              // there are fields of rows
  std::optional<size_t> sample_id;  // their tensors
  std::optional<size_t> valid;

  Status LoadImage(const Dataset& dataset, const SampleKey& key, const SamplePlaces& places,
                   SampleScratch::Buffers& buffers, SampleTimes& times) const {
    const uint64_t start = TraceClockNs();
    Status status = ReadImage(dataset, key.id, places, buffers);
    const uint64_t read = TraceClockNs();
    times.Read(start, read);
    if (!status.ok()) return status;
    if (raw) {
      RETURN_IF_ERROR(transforms.Plan({seed, key.epoch, key.id}, tensor->size, buffers.plan));
      WriteMark(buffers.plan.flip ? ImageMark::kMirrored : ImageMark::kPlain, places);
      return OkStatus();
    }
    status =
        gpu_decode ? gpu_decode->Load(key, transforms, places, buffers) : Transformed(key, places, buffers);
    times.Decode(read, TraceClockNs());
    return status;
  }

  // Behind LoadImage, whose plan it follows.
  Status LoadMask(const Dataset& dataset, uint64_t id, const MaskField& mask, std::span<std::byte> place,
                  SampleScratch::Buffers& buffers, SampleTimes& times) const {
    const bool moves = !IsIdentity(buffers.plan, tensor->size);
    std::span<std::byte> source = place;
    if (moves) {
      const size_t bytes = mask.planes * mask.pixel_bytes * static_cast<size_t>(tensor->size.width) *
                           static_cast<size_t>(tensor->size.height);
      RETURN_IF_ERROR(ResizeForSample(bytes, buffers.encoded));
      source = buffers.encoded;
    }
    const uint64_t start = TraceClockNs();
    Status status = dataset.ReadTensor(id, mask.field, source);
    const uint64_t read = TraceClockNs();
    times.Read(start, read);
    if (!status.ok() || !moves) return status;
    TransformMask(mask, buffers.plan, tensor->size, source, place, buffers.mask);
    times.Decode(read, TraceClockNs());
    return OkStatus();
  }

  // `output`: of the field.
  Status LoadRows(const Dataset& dataset, uint64_t id, size_t field, const TensorSpec& output,
                  const SamplePlaces& places, SampleScratch::Buffers& buffers, SampleTimes& times) const {
    const uint64_t start = TraceClockNs();
    Status status = dataset.ReadBytes(id, field, buffers.encoded);
    times.Read(start, TraceClockNs());
    if (!status.ok()) return status;
    const std::vector<std::byte>& rows = buffers.encoded;
    if (output.extents) return places.Pack(field, rows);
    const std::span<std::byte> place = places[field];
    const auto count = static_cast<int64_t>(rows.size() / output.RowBytes());
    if (rows.size() > place.size()) {
      return InvalidArgument("field '" + output.name + "' has " + std::to_string(count) + " rows, and pad " +
                             std::to_string(output.shape[0]) +
                             ": give pad more rows, or leave it out to get the field packed");
    }
    std::ranges::copy(rows, place.begin());
    std::ranges::fill(place.subspan(rows.size()), std::byte{0});
    std::memcpy(places[*output.lengths].data(), &count, sizeof count);
    return OkStatus();
  }

  // The tensors that are made, not read.
  void WriteOwn(const SampleKey& key, bool good, const SamplePlaces& places) const {
    const auto id = static_cast<int64_t>(key.id);
    if (sample_id) std::memcpy(places[*sample_id].data(), &id, sizeof id);
    if (valid) places[*valid].front() = std::byte{good};
  }

  // Changes `outputs` to what the slot gets: uint8 pixels, a mark. Precondition: there is an image.
  void LeaveTail(const FeedSpec& spec, const ImageForm& outcome, std::vector<TensorSpec>& outputs) {
    raw = tensor.has_value() && transforms.FitsGpu();
    const Pointwise all(transforms, outcome.channels, spec.image_layout);
    TensorSpec& output = outputs[*image];
    DeferredPixelOps left;
    left.tensor = static_cast<uint32_t>(*image);
    left.output = output;
    left.height = static_cast<uint32_t>(outcome.height);
    left.width = static_cast<uint32_t>(outcome.width);
    left.channels = static_cast<uint32_t>(outcome.channels);
    left.source_layout = raw ? tensor->layout : ImageLayout::kHwc;
    left.output_layout = spec.image_layout;
    left.table = all.table();
    const bool flips = transforms.Has(GpuForm::kMirror);
    const bool recolours = transforms.Has(GpuForm::kTable);
    pointwise.emplace(TransformChain(), outcome.channels, ImageLayout::kHwc);
    if (DecodesOnGpu(spec)) {
      gpu_decode.emplace(spec, left, outputs);
      tail = std::move(left);
      return;
    }
    const bool zeroes =
        recolours && spec.on_bad_sample == OnBadSample::kZero;  // which the table would recolour
    if (!flips && !recolours && (left.source_layout == left.output_layout || outcome.channels == 1))
      return;  // it is that already
    output.dtype = DType::kUint8;
    output.shape = outcome.Shape(left.source_layout);
    if (flips || zeroes) {
      left.mark = static_cast<uint32_t>(outputs.size());
      outputs.push_back({output.name + kMarkSuffix, DType::kUint8, {}});
    }
    tail = std::move(left);
  }

  void WriteMark(ImageMark mark, const SamplePlaces& places) const {
    if (tail.has_value() && tail->mark.has_value())
      places[*tail->mark].front() = static_cast<std::byte>(mark);
  }

 private:
  // Into its place if it is raw, else into the buffers.
  Status ReadImage(const Dataset& dataset, uint64_t id, const SamplePlaces& places,
                   SampleScratch::Buffers& buffers) const {
    if (raw) return dataset.ReadTensor(id, *image, places[*image]);
    if (images.has_value()) return images->Read(dataset, id, buffers.image);
    const size_t bytes =
        tensor->channels * static_cast<size_t>(tensor->size.width) * static_cast<size_t>(tensor->size.height);
    RETURN_IF_ERROR(ResizeForSample(bytes + kRowSlack, buffers.encoded));
    return dataset.ReadTensor(id, *image, std::span(buffers.encoded).first(bytes));
  }
  Status Transformed(const SampleKey& key, const SamplePlaces& places,
                     SampleScratch::Buffers& buffers) const {
    const RandomKey random{seed, key.epoch, key.id};
    ImageSize size;
    ImageView pixels;
    if (images.has_value()) {
      ASSIGN_OR_RETURN(size, images->Open(transforms, random, buffers.image, buffers.plan, buffers.geometry));
      ASSIGN_OR_RETURN(pixels, ImageSource::Decode(SourceRegion(buffers.plan, size), buffers.image));
    } else {
      size = tensor->size;
      RETURN_IF_ERROR(transforms.Plan(random, size, buffers.plan));
      ASSIGN_OR_RETURN(const ImageView whole, ToRgb(*tensor, Bytes(buffers.encoded).data(), buffers.widened));
      pixels = whole.Crop(SourceRegion(buffers.plan, size));
    }
    ASSIGN_OR_RETURN(const ImageView result, RunGeometry(buffers.plan, size, pixels, buffers.geometry));
    pointwise->Run(buffers.plan.flip_vertical ? result.UpsideDown() : result,
                   buffers.plan.flip && !tail.has_value(), places[*image]);
    WriteMark(buffers.plan.flip ? ImageMark::kMirrored : ImageMark::kPlain, places);
    return OkStatus();
  }
};

SampleLoader::SampleLoader(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Program> program,
                           std::vector<TensorSpec> outputs)
    : dataset_(std::move(dataset)), program_(std::move(program)), outputs_(std::move(outputs)) {}
SampleLoader::~SampleLoader() = default;

const ImageSource* SampleLoader::images() const {
  return program_->images.has_value() ? &*program_->images : nullptr;
}

CachedHead* SampleLoader::cached_head() const {
  return images() != nullptr ? images()->cached_head() : nullptr;
}

const std::optional<DeferredPixelOps>& SampleLoader::tail() const {
  return program_->tail;
}

bool SampleLoader::only_reads() const {
  return !program_->image.has_value() || (program_->raw && program_->masks.empty());
}

Result<std::unique_ptr<SampleLoader>> SampleLoader::Create(std::shared_ptr<const Dataset> dataset,
                                                           const FeedSpec& spec, PixelOpsAt tail_at,
                                                           const CacheAccess& cache) {
  const std::vector<Field>& fields = dataset->info().fields;
  auto program = std::make_unique<Program>();
  program->seed = spec.seed;
  Faults faults;
  std::vector<TransformSpec> transforms = spec.transforms;
  program->transforms = TransformChain::Parse(transforms, faults);
  RETURN_IF_ERROR(faults.ToStatus());
  const FieldRoles roles = AssignFieldRoles(fields, spec, program->transforms, faults);
  program->image = roles.image;
  program->tensor = roles.tensor;
  if (!roles.masks.empty()) program->masks.resize(fields.size());
  for (const MaskField& mask : roles.masks) program->masks[mask.field] = mask;
  const ImageForm outcome = program->transforms.Follow(roles.form(), faults);
  if (faults.empty() && program->image.has_value() && outcome.width == 0) {
    faults.Add("transforms",
               "image sizes vary, or may: add Resize([h, w]), CenterCrop or RandomResizedCrop so that "
               "every sample has one shape (Resize of one value keeps each image's aspect ratio)");
  }
  std::vector<TensorSpec> outputs;
  outputs.reserve(fields.size() + 3);  // with the loader's own
  for (const Field& field : fields) outputs.push_back(field.spec);
  if (program->image.has_value()) {
    outputs[*program->image].dtype = outcome.dtype;
    outputs[*program->image].shape = outcome.Shape(spec.image_layout);
  }
  for (const MaskField& mask : roles.masks) {
    outputs[mask.field].shape[mask.height_axis] = outcome.height;
    outputs[mask.field].shape[mask.height_axis + 1] = outcome.width;
  }
  const auto add = [&](const char* option, const std::string& name, DType dtype) {
    if (std::ranges::count(outputs, name, &TensorSpec::name) > 0)
      faults.Add(option, "the dataset has a field '" + name + "' of its own; leave " + option +
                             " out, or rename the field");
    outputs.push_back({name, dtype, {}});
    return outputs.size() - 1;
  };
  CheckPadded(dataset->info(), spec, faults);
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto padded = std::ranges::find(spec.pad, fields[i].spec.name, &PaddedField::field);
    if (fields[i].kind != FieldKind::kRagged) continue;
    program->ragged = true;
    const std::string extents = fields[i].spec.name + kExtentsSuffix;
    if (padded != spec.pad.end()) {
      outputs[i].shape[0] = padded->rows;
      outputs[i].lengths = static_cast<uint32_t>(add("pad", padded->field + kLengthSuffix, DType::kInt64));
    } else if (std::ranges::count(outputs, extents, &TensorSpec::name) > 0) {
      faults.Add("fields", "the tensor '" + extents + "' tells where the rows of the field '" +
                               fields[i].spec.name + "' lie, and the dataset has a field '" + extents +
                               "' of its own; rename one of the two, or select fields without one of them");
    }
  }
  if (spec.sample_ids) program->sample_id = add("sample_ids", std::string(kSampleIdTensor), DType::kInt64);
  if (spec.valid) program->valid = add("valid", kValidName, DType::kBool);
  RETURN_IF_ERROR(faults.ToStatus());
  if (program->image.has_value() && !program->tensor.has_value()) {
    // A remote storage's files have no versions. What a GPU decodes is never served from pixels of a CPU.
    const bool cached = cache.cache != nullptr && !dataset->info().remote && !DecodesOnGpu(spec);
    program->images.emplace(
        *program->image, !spec.ignore_exif_orientation,
        cached ? std::make_unique<CachedHead>(cache, spec, dataset->info(), program->transforms) : nullptr);
  }
  if (program->image.has_value()) {
    if (tail_at == PixelOpsAt::kClient) {
      program->LeaveTail(spec, outcome, outputs);
    } else {
      program->pointwise.emplace(program->transforms, outcome.channels, spec.image_layout);
    }
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].kind != FieldKind::kRagged || outputs[i].lengths) continue;
    outputs[i].extents = static_cast<uint32_t>(outputs.size());
    outputs.push_back({outputs[i].name + kExtentsSuffix, DType::kInt64, {2}});
  }
  return std::unique_ptr<SampleLoader>(
      new SampleLoader(std::move(dataset), std::move(program), std::move(outputs)));
}

Status SampleLoader::LoadFields(const Dataset& source, const SampleKey& key, const SamplePlaces& places,
                                SampleScratch& scratch, SampleTimes& times) const {
  const Program& program = *program_;
  const std::vector<Field>& fields = source.info().fields;
  Status status;
  if (!program.image.has_value() && !program.ragged) {
    const uint64_t start = TraceClockNs();
    status = source.ReadTensors(key.id, places.First(fields.size()));
    times.Read(start, TraceClockNs());
    return status;
  }
  SampleScratch::Buffers& buffers = scratch.buffers();
  if (program.image.has_value()) {
    RETURN_IF_ERROR(
        WithMemory(scratch, [&] { return program.LoadImage(source, key, places, buffers, times); }));
  }
  for (size_t i = 0; i < fields.size() && status.ok(); ++i) {
    if (i == program.image) continue;
    if (fields[i].kind == FieldKind::kRagged) {
      status = WithMemory(
          scratch, [&] { return program.LoadRows(source, key.id, i, outputs_[i], places, buffers, times); });
      continue;
    }
    if (!program.masks.empty() && program.masks[i]) {
      status = WithMemory(scratch, [&] {
        return program.LoadMask(source, key.id, *program.masks[i], places[i], buffers, times);
      });
      continue;
    }
    const uint64_t start = TraceClockNs();
    status = source.ReadTensor(key.id, i, places[i]);
    times.Read(start, TraceClockNs());
  }
  return status;
}

Status SampleLoader::LoadFrom(const Dataset& source, const SampleKey& key, const SamplePlaces& places,
                              SampleScratch& scratch, SampleTimes& times) const {
  Status status;
  try {
    status = LoadFields(source, key, places, scratch, times);
  } catch (const std::bad_alloc&) {
    status = NoMemory();
  }
  if (!status.ok()) {
    const std::string name = dataset_->Describe(key.id);
    return status.message().find(name) == std::string::npos ? status.WithContext(name) : status;
  }
  program_->WriteOwn(key, true, places);
  return OkStatus();
}

Prefetched SampleLoader::Prefetch(uint64_t id, uint64_t count) const {
  Prefetched sum;
  for (size_t field = 0; field < dataset_->info().fields.size(); ++field) {
    if (program_->images && field == *program_->image) {
      for (uint64_t i = 0; i < count; ++i) sum.Add(program_->images->Prefetch(*dataset_, id + i));
    } else {
      sum.Add(dataset_->Prefetch(id, count, field));
    }
  }
  return sum;
}

void SampleLoader::WriteZeros(const SampleKey& key, const SamplePlaces& places) const {
  places.WriteZeros();
  program_->WriteMark(ImageMark::kZero, places);
  program_->WriteOwn(key, false, places);
}

}  // namespace pinfeed
