// SPDX-License-Identifier: Apache-2.0
#include "common/spec/differing_fields.h"

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/quote.h"
#include "common/spec/names.h"

namespace pinfeed {
namespace {

std::string Shown(bool value) {
  return value ? "true" : "false";
}
template <std::unsigned_integral T>
requires(!std::same_as<T, bool>) std::string Shown(T value) {
  return std::to_string(value);
}
std::string Shown(const std::string& value) {
  return QuotePath(value);
}
std::string Shown(Sharing value) {
  return SharingName(value);
}
std::string Shown(Backend value) {
  return BackendName(value);
}
std::string Shown(Decode value) {
  return DecodeName(value);
}
std::string Shown(Resident value) {
  return ResidentName(value);
}

// Purpose: lists fields. Threads: one. Errors: none.
class Differences {
 public:
  template <typename T>
  void Add(const T& there, const T& here, std::string_view field) {
    if (there == here) return;
    if (!text_.empty()) text_ += ", ";
    text_ += field;
    if constexpr (requires { Shown(there); })
      text_ += " (" + Shown(there) + " there, " + Shown(here) + " here)";
  }
  // Whether both have it, so that its members are to be compared.
  template <typename T>
  bool BothHave(const std::optional<T>& there, const std::optional<T>& here, std::string_view field) {
    Add(there.has_value(), here.has_value(), field);
    return there && here;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The bytes of a sample; 0 if they are not known.
uint64_t BytesOf(const std::vector<TensorSpec>& fields) {
  uint64_t sum = 0;
  for (const TensorSpec& field : fields)
    if (const Result<uint64_t> bytes = field.SampleBytes(); bytes.ok()) sum += *bytes;
  return sum;
}

void AddDataset(const DatasetSpec& there, const DatasetSpec& here, Differences& out) {
  out.Add(there.name, here.name, "dataset.name");
  out.Add(there.path, here.path, "dataset.path");
  out.Add(there.format, here.format, "dataset.format");
  out.Add(there.options, here.options, "dataset's options");
  if (!out.BothHave(there.produced, here.produced, "dataset.produced")) return;
  const ProducedDataset& theirs = *there.produced;
  const ProducedDataset& own = *here.produced;
  out.Add(theirs.name, own.name, "dataset.produced.name");
  out.Add(theirs.samples, own.samples, "dataset.produced.samples");
  if (const uint64_t bytes = BytesOf(theirs.fields); bytes != BytesOf(own.fields)) {
    out.Add(bytes, BytesOf(own.fields), "bytes of dataset.produced.fields");
  } else {
    out.Add(theirs.fields, own.fields, "dataset.produced.fields");
  }
  out.Add(theirs.fingerprint, own.fingerprint, "dataset.produced.fingerprint");
  out.Add(theirs.lanes, own.lanes, "dataset.produced.lanes");
  out.Add(theirs.task_timeout_ms, own.task_timeout_ms, "dataset.produced.task_timeout_ms");
}

void AddBatcher(const FeedSpec& there, const FeedSpec& here, Differences& out) {
  if (!out.BothHave(there.batcher, here.batcher, "batcher")) return;
  const BatcherSpec& theirs = *there.batcher;
  const BatcherSpec& own = *here.batcher;
  out.Add(theirs.max_delay_us, own.max_delay_us, "batcher.max_delay_us");
  out.Add(theirs.queue_limit, own.queue_limit, "batcher.queue_limit");
  out.Add(theirs.max_request_bytes, own.max_request_bytes, "batcher.max_request_bytes");
  out.Add(theirs.max_answer_bytes, own.max_answer_bytes, "batcher.max_answer_bytes");
  out.Add(theirs.array, own.array, "batcher.array");
  out.Add(theirs.redeal, own.redeal, "batcher.redeal");
}

}  // namespace

std::string DifferingFields(const FeedSpec& there, const FeedSpec& here) {
  Differences out;
  AddDataset(there.dataset, here.dataset, out);
  out.Add(there.batch_size, here.batch_size, "batch_size");
  out.Add(there.order, here.order, "order");
  out.Add(there.seed, here.seed, "seed");
  out.Add(there.epochs, here.epochs, "epochs");
  out.Add(there.drop_last, here.drop_last, "drop_last");
  out.Add(there.rank, here.rank, "rank");
  out.Add(there.world_size, here.world_size, "world_size");
  out.Add(there.transforms, here.transforms, "transforms");
  out.Add(there.image_layout, here.image_layout, "image_layout");
  out.Add(there.on_bad_sample, here.on_bad_sample, "on_bad_sample");
  out.Add(there.slots, here.slots, "slots");
  out.Add(there.sample_ids, here.sample_ids, "sample_ids");
  out.Add(there.valid, here.valid, "valid");
  out.Add(there.masks, here.masks, "masks");
  out.Add(there.fields_unchanged, here.fields_unchanged, "fields_unchanged");
  out.Add(there.sharing, here.sharing, "sharing");
  out.Add(there.group, here.group, "group");
  out.Add(there.group_size, here.group_size, "group_size");
  out.Add(there.backend, here.backend, "backend");
  out.Add(there.ignore_exif_orientation, here.ignore_exif_orientation, "ignore_exif_orientation");
  out.Add(there.fields, here.fields, "fields");
  out.Add(there.sample_path, here.sample_path, "sample_path");
  out.Add(there.pad, here.pad, "pad");
  AddBatcher(there, here, out);
  out.Add(there.decode, here.decode, "decode");
  out.Add(there.gpu_share, here.gpu_share, "gpu_share");
  out.Add(there.encoded_images, here.encoded_images, "encoded_images");
  out.Add(there.resident, here.resident, "resident");
  return out.text();
}

}  // namespace pinfeed
