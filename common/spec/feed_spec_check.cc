// SPDX-License-Identifier: Apache-2.0
#include "common/spec/feed_spec_check.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <set>
#include <string_view>

#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

// So that positions and batches fit 64 bits, and cursors what JSON's readers take for an integer.
constexpr uint64_t kMaxProducedSamples = uint64_t{1} << 53;
constexpr uint32_t kMaxLanes = 256;
constexpr uint32_t kMaxTaskTimeoutMs = 24 * 3600 * 1000;
constexpr uint32_t kMaxBatcherSamples = 4096;
constexpr uint32_t kMaxBatcherDelayUs = 60'000'000;
constexpr uint32_t kMaxBatcherQueue = 65536;
constexpr uint32_t kMaxRequestBytes = uint32_t{64} << 20;
constexpr uint32_t kMaxAnswerBytes = uint32_t{16} << 20;
constexpr size_t kMaxProducedDims = 15;  // and one for the batch: PF_MAX_DIMS
constexpr uint32_t kMaxEncodedImages = 65536;
constexpr uint64_t kMinImageFieldBytes = 64;  // a header that says where the images are

bool IsPrintable(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

void CheckWithin(const char* field, uint64_t value, uint64_t least, uint64_t most, Faults& faults) {
  if (value >= least && value <= most) return;
  faults.Add(field, std::to_string(value) + " is not within " + std::to_string(least) + " to " +
                        std::to_string(most));
}

void CheckProduced(const DatasetSpec& spec, Faults& faults) {
  const ProducedDataset& produced = *spec.produced;
  if (!spec.name.empty() || !spec.path.empty() || !spec.format.empty() || !spec.options.empty())
    faults.Add("dataset.produced",
               "goes without a name, path, format or option: its producers read the samples");
  CheckText(produced.name, kMaxNameBytes, "dataset.produced.name", faults);
  CheckText(produced.fingerprint, kMaxNameBytes, "dataset.produced.fingerprint", faults);
  CheckWithin("dataset.produced.samples", produced.samples, 1, kMaxProducedSamples, faults);
  CheckWithin("dataset.produced.lanes", produced.lanes, 0, kMaxLanes, faults);
  CheckWithin("dataset.produced.task_timeout_ms", produced.task_timeout_ms, 0, kMaxTaskTimeoutMs, faults);
  if (produced.task_timeout_ms != 0 && produced.lanes > 1) {
    faults.Add("dataset.produced.task_timeout_ms",
               "is not possible with lanes: only one of them can fill a batch");
  }
  if (produced.fields.empty() || produced.fields.size() > kMaxNamedFields) {
    return faults.Add("dataset.produced.fields", "has " + std::to_string(produced.fields.size()) +
                                                     " entries, possible are 1 to " +
                                                     std::to_string(kMaxNamedFields));
  }
  std::set<std::string_view> names;
  for (size_t i = 0; i < produced.fields.size(); ++i) {
    const TensorSpec& field = produced.fields[i];
    const std::string at = "dataset.produced.fields[" + std::to_string(i) + "]";
    CheckText(field.name, kMaxNameBytes, at + ".name", faults);
    if (field.name.empty() || field.name == kSampleIdTensor)
      faults.Add(at + ".name", "must be a name, and not that of the samples' ids, 'sample_id'");
    if (!names.insert(field.name).second)
      faults.Add(at + ".name", "is that of an earlier field; each needs a name of its own");
    if (field.shape.size() > kMaxProducedDims)
      faults.Add(at + ".shape", "has more than " + std::to_string(kMaxProducedDims) + " dimensions");
    const Result<uint64_t> bytes = field.SampleBytes();
    if (!bytes.ok()) {
      faults.Add(at, bytes.status().message());
    } else if (*bytes == 0) {
      faults.Add(at, "is empty: it has a dimension of 0");
    }
  }
}

void CheckEncodedImages(const FeedSpec& spec, Faults& faults) {
  if (spec.encoded_images == 0) return;
  if (!spec.dataset.produced) {
    return faults.Add("encoded_images",
                      "is for a produced dataset only: other datasets say themselves what "
                      "their images are");
  }
  CheckWithin("encoded_images", spec.encoded_images, 0, kMaxEncodedImages, faults);
  if (spec.batch_size > 1)
    faults.Add("batch_size",
               "must be 1 with encoded_images: one sample of the feed has all images of a batch");
  if (spec.dataset.produced->fields.empty()) return;
  const TensorSpec& field = spec.dataset.produced->fields.front();
  const Result<uint64_t> bytes = field.SampleBytes();
  if (field.dtype != DType::kUint8 || field.shape.size() != 1 || !bytes.ok() ||
      *bytes < kMinImageFieldBytes) {
    faults.Add("dataset.produced.fields[0]", "must be UINT8 with one dimension of at least " +
                                                 std::to_string(kMinImageFieldBytes) +
                                                 " with encoded_images: producers put them there");
  }
}

// Calls refuse(given, field) for what the daemon does with the samples of a dataset that it reads itself.
void RefuseDatasetOptions(const FeedSpec& spec, const auto& refuse) {
  refuse(spec.on_bad_sample != OnBadSample::kFail, "on_bad_sample");
  refuse(spec.valid, "valid");
  refuse(!spec.masks.empty(), "masks");
  refuse(!spec.fields_unchanged.empty(), "fields_unchanged");
  refuse(!spec.fields.empty(), "fields");
  refuse(spec.sample_path, "sample_path");
  refuse(!spec.pad.empty(), "pad");
  refuse(spec.decode != Decode::kCpu, "decode");
  refuse(spec.resident != Resident::kOff, "resident");
}

// What the daemon does with samples needs samples that it reads itself, or images.
void CheckProducedFeed(const FeedSpec& spec, Faults& faults) {
  static constexpr char kWhy[] = "is not possible with a produced dataset: its producers fill the batches";
  const auto refuse = [&faults](bool given, const char* field) {
    if (given) faults.Add(field, kWhy);
  };
  refuse(!spec.transforms.empty() && spec.encoded_images == 0, "transforms");
  refuse(spec.sample_ids, "sample_ids");  // they are there anyway
  RefuseDatasetOptions(spec, refuse);
  refuse(spec.sharing == Sharing::kQueue, "sharing");
  if (spec.backend != Backend::kHost)
    faults.Add("backend", "must be HOST for a produced dataset: its producers fill host memory");
}

void CheckBatcher(const FeedSpec& spec, Faults& faults) {
  const BatcherSpec& batcher = *spec.batcher;
  static constexpr char kWhy[] = "is not possible with a batcher: its samples are requests of clients";
  const auto refuse = [&faults](bool given, const char* field) {
    if (given) faults.Add(field, kWhy);
  };
  if (spec.dataset != DatasetSpec()) faults.Add("dataset", "must be empty for a batcher");
  if (spec.sharing != Sharing::kQueue)
    faults.Add("sharing", "must be QUEUE for a batcher, whose name is the group");
  CheckWithin("batch_size", spec.batch_size, 1, kMaxBatcherSamples, faults);
  CheckWithin("batcher.max_delay_us", batcher.max_delay_us, 0, kMaxBatcherDelayUs, faults);
  CheckWithin("batcher.queue_limit", batcher.queue_limit, 1, kMaxBatcherQueue, faults);
  CheckWithin("batcher.max_answer_bytes", batcher.max_answer_bytes, 1, kMaxAnswerBytes, faults);
  if (batcher.array) {
    if (batcher.max_request_bytes != 0)
      faults.Add("batcher.max_request_bytes", "is for encoded images only: an array has a fixed size");
    if (batcher.array->shape.size() > kMaxProducedDims)
      faults.Add("batcher.array.shape", "has more than " + std::to_string(kMaxProducedDims) + " dimensions");
    const Result<uint64_t> bytes = batcher.array->SampleBytes();
    if (!bytes.ok()) {
      faults.Add("batcher.array", bytes.status().message());
    } else {
      CheckWithin("batcher.array", *bytes, 1, kMaxRequestBytes, faults);
    }
  } else {
    CheckWithin("batcher.max_request_bytes", batcher.max_request_bytes, 1, kMaxRequestBytes, faults);
  }
  refuse(spec.order != Order::kSequential, "order");
  refuse(spec.world_size != 1, "world_size");
  refuse(spec.epochs != 0, "epochs");
  refuse(spec.drop_last, "drop_last");
  RefuseDatasetOptions(spec, refuse);
}

void CheckDataset(const DatasetSpec& spec, Faults& faults) {
  CheckText(spec.name, kMaxNameBytes, "dataset.name", faults);
  if (spec.produced) return CheckProduced(spec, faults);
  if (spec.name.empty() && spec.path.empty()) faults.Add("dataset", "needs a name or a path");
  if (!spec.name.empty() && !spec.path.empty())
    faults.Add("dataset", "has both a name and a path; give one of them");
  if (spec.path.size() >= PATH_MAX) {
    faults.Add("dataset.path",
               "has " + std::to_string(spec.path.size()) + " bytes, more than a path can have");
  } else if (spec.path.find('\0') != std::string::npos) {
    faults.Add("dataset.path", "holds a NUL byte");
  } else if (!spec.path.empty() && spec.path.front() != '/') {
    faults.Add("dataset.path", "is not absolute; the daemon does not know the client's working directory");
  }
  CheckText(spec.format, kMaxNameBytes, "dataset.format", faults);
}

void CheckSharing(const FeedSpec& spec, Faults& faults) {
  CheckText(spec.group, kMaxGroupBytes, "group", faults);
  if (spec.sharing == Sharing::kExclusive) {
    if (!spec.group.empty()) faults.Add("group", "is for the sharings broadcast and queue only");
    if (spec.group_size > 1) faults.Add("group_size", "is for the sharings broadcast and queue only");
  } else if (spec.group.empty()) {
    faults.Add("group", "must name the group that shares the feed");
  }
}

void CheckDecode(const FeedSpec& spec, Faults& faults) {
  if (spec.gpu_share != 0 && spec.decode != Decode::kAuto)
    faults.Add("gpu_share", "is for the decode AUTO only");
  if (spec.gpu_share > kWholeShare) {
    faults.Add("gpu_share", std::to_string(spec.gpu_share) + " is not within 0 to " +
                                std::to_string(kWholeShare) + ", per mille");
  }
  if (spec.decode == Decode::kCpu) return;
  if (spec.on_bad_sample == OnBadSample::kSkip) {
    faults.Add(
        "on_bad_sample",
        "skip is not possible with the decode GPU or AUTO: damage that only the GPU's decoder finds is "
        "found in a published batch, which cannot get shorter; use zero or fail, or decode on the CPU");
  }
  if (spec.decode == Decode::kGpu && spec.backend != Backend::kAuto) {
    faults.Add("backend",
               "must be AUTO for the decode GPU: the GPU decodes from host memory and writes its own");
  }
}

void CheckResident(const FeedSpec& spec, Faults& faults) {
  if (spec.resident != Resident::kOn) return;
  if (spec.backend != Backend::kAuto && spec.backend != Backend::kVmmFd) {
    faults.Add(
        "resident",
        "is not possible with this backend: trainers share the samples in memory of their GPU that they "
        "can only read, which only the backend VMM_FD gives; use VMM_FD or AUTO");
  }
  if (spec.decode != Decode::kCpu)
    faults.Add("resident", "keeps decoded images, so the decode must be CPU: each image is decoded once");
}

// Whether the dataset has these fields is checked once it is open.
void CheckFieldNames(const std::string& list, const std::vector<std::string>& names, Faults& faults) {
  if (names.size() > kMaxNamedFields) {
    return faults.Add(list, "has " + std::to_string(names.size()) + " names, at most " +
                                std::to_string(kMaxNamedFields) + " are possible");
  }
  std::set<std::string_view> earlier;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string at = list + "[" + std::to_string(i) + "]";
    CheckText(names[i], kMaxNameBytes, at, faults);
    if (names[i].empty()) {
      faults.Add(at, "is empty; it must be the name of a field");
    } else if (!earlier.insert(names[i]).second) {
      faults.Add(at, "is listed twice");
    }
  }
}

void CheckFields(const FeedSpec& spec, Faults& faults) {
  CheckFieldNames("fields", spec.fields, faults);
  CheckFieldNames("masks", spec.masks, faults);
  CheckFieldNames("fields_unchanged", spec.fields_unchanged, faults);
  std::vector<std::string> padded;
  for (const PaddedField& field : spec.pad) {
    if (field.rows == 0 && spec.pad.size() <= kMaxNamedFields)
      faults.Add("pad[" + std::to_string(padded.size()) + "]", "has 0 rows; it must be at least 1");
    padded.push_back(field.field);
  }
  CheckFieldNames("pad", padded, faults);
  if (spec.masks.size() > kMaxNamedFields) return;
  for (size_t i = 0; i < spec.fields_unchanged.size() && i < kMaxNamedFields; ++i) {
    if (std::ranges::count(spec.masks, spec.fields_unchanged[i]) > 0)
      faults.Add("fields_unchanged[" + std::to_string(i) + "]",
                 "is in masks too; a field either follows the image or stays as it is");
  }
}

}  // namespace

bool MayShareFeed(const FeedSpec& a, const FeedSpec& b) {
  FeedSpec decided = a;
  if (LeavesDecodeOpen(a) || LeavesDecodeOpen(b)) {
    decided.decode = b.decode;
    decided.gpu_share = b.gpu_share;
  }
  if (a.resident == Resident::kAuto || b.resident == Resident::kAuto) decided.resident = b.resident;
  return decided == b;
}

void CheckText(const std::string& text, size_t limit, const std::string& field, Faults& faults) {
  if (text.size() > limit) {
    faults.Add(field, "has " + std::to_string(text.size()) + " bytes, at most " + std::to_string(limit) +
                          " are possible");
  } else if (!IsPrintable(text)) {
    faults.Add(field, "holds a control character");
  }
}

void CheckFeedSpec(const FeedSpec& spec, Faults& faults) {
  if (spec.batcher) {
    CheckBatcher(spec, faults);
  } else {
    CheckDataset(spec.dataset, faults);
  }
  if (spec.batch_size == 0) faults.Add("batch_size", "must be at least 1");
  if (spec.world_size == 0) faults.Add("world_size", "must be at least 1");
  if (spec.rank >= spec.world_size && spec.world_size != 0) {
    faults.Add("rank", std::to_string(spec.rank) + " is not below the world_size of " +
                           std::to_string(spec.world_size));
  }
  CheckFields(spec, faults);
  if (spec.slots != 0) CheckWithin("slots", spec.slots, kMinSlots, kMaxSlots, faults);
  CheckSharing(spec, faults);
  CheckDecode(spec, faults);
  CheckResident(spec, faults);
  CheckEncodedImages(spec, faults);
  if (spec.dataset.produced) CheckProducedFeed(spec, faults);
}

}  // namespace pinfeed
