// SPDX-License-Identifier: Apache-2.0
#include "server/loading/process_batch_producer.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/round_up.h"
#include "server/dataset/fingerprint.h"

namespace pinfeed {
namespace {

// More ids take longer to compute than a trip through the workers' pool.
constexpr uint32_t kFewSamples = 1024;
// What a worker copies at once.
constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

}  // namespace

DatasetInfo InfoOf(const ProducedDataset& dataset) {
  DatasetInfo info{.format = "produced", .path = dataset.name, .samples = dataset.samples};
  Fingerprint fingerprint;
  fingerprint.Add(dataset.samples).Add(dataset.fingerprint);
  for (const TensorSpec& field : dataset.fields) {
    fingerprint.Add(field);
    info.fields.push_back({field});
  }
  info.fingerprint = fingerprint.Hex();
  return info;
}

std::vector<TensorSpec> TensorsOf(const ProducedDataset& dataset, const EncodedImages* images) {
  std::vector<TensorSpec> tensors = dataset.fields;
  if (images != nullptr) {
    tensors.push_back(images->tensor());
    tensors.back().name = kImagesTensor;
    tensors.push_back({std::string(kImageErrorTensor), DType::kUint8, {kImageErrorBytes}});
  }
  tensors.push_back({std::string(kSampleIdTensor), DType::kInt64, {}});
  return tensors;
}

// Purpose: loads the images of a filled batch into its slot. An image that cannot be used becomes zeros.
class ProcessBatchProducer::DecodeTask final : public FillTask {
 public:
  // `places`: those of the request. `field`: the first one, in the memory that the process fills.
  DecodeTask(ProcessBatchProducer& producer, std::shared_ptr<PieceRequest> request, SamplePlaces places,
             std::span<const std::byte> field, std::vector<EncodedImageRow> images)
      : FillTask(request->share(), static_cast<uint32_t>(images.size()), 1),
        producer_(producer),
        request_(std::move(request)),
        places_(std::move(places)),
        field_(field),
        images_(std::move(images)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    const EncodedImages& loader = *producer_.images_;
    const std::span<std::byte> pixels = places_[producer_.info_.fields.size()];
    std::optional<WorkSpans> spans;
    request_->Trace(1, spans);
    SampleTimes times;
    times.spans = spans ? &*spans : nullptr;
    for (uint32_t i = begin; i < end && request_->Wanted(0); ++i) {
      scratch.Begin(images_[i].sample);
      const std::span<std::byte> place = pixels.subspan(i * loader.image_bytes(), loader.image_bytes());
      Status status = loader.Load(images_[i], field_, place, scratch, times);
      if (status.ok()) continue;
      std::ranges::fill(place, std::byte{0});
      const MutexLock lock(mutex_);
      if (i >= first_bad_) continue;
      first_bad_ = i;
      status_ = std::move(status);
    }
    scratch.durations().Record(times);
    producer_.read_ns_.fetch_add(times.read_ns, std::memory_order_relaxed);
    producer_.decode_ns_.fetch_add(times.decode_ns, std::memory_order_relaxed);
  }
  void Done() override {
    Status status;
    {
      const MutexLock lock(mutex_);
      status = std::move(status_);
    }
    producer_.WriteImageError(places_, status);
    request_->Complete(OkStatus());
  }

 private:
  ProcessBatchProducer& producer_;
  const std::shared_ptr<PieceRequest> request_;  // keeps the feed, and so the producer
  const SamplePlaces places_;
  const std::span<const std::byte> field_;
  const std::vector<EncodedImageRow> images_;
  Mutex mutex_;
  uint32_t first_bad_ PF_GUARDED_BY(mutex_) = UINT32_MAX;
  Status status_ PF_GUARDED_BY(mutex_);  // of that image
};

ProcessBatchProducer::ProcessBatchProducer(uint64_t feed, const FeedSpec& spec, Sampler sampler,
                                           WorkerPool& workers, std::unique_ptr<Arena> staging,
                                           std::unique_ptr<OneOffMemory> one_off,
                                           std::unique_ptr<const EncodedImages> images)
    : info_(InfoOf(*spec.dataset.produced)),
      id_tensor_(info_.fields.size() + (images == nullptr ? 0 : 2)),
      batch_size_(spec.batch_size),
      sampler_(std::move(sampler)),
      workers_(workers),
      staging_(std::move(staging)),
      images_(std::move(images)),
      group_(std::make_shared<ProducerGroup>(
          feed, *spec.dataset.produced,
          [this](std::shared_ptr<PieceRequest> filled) { OnFilled(std::move(filled)); },
          std::move(one_off))) {}

void ProcessBatchProducer::Produce(std::shared_ptr<PieceRequest> request) {
  PF_CHECK(request->begin() == 0 && request->end() == request->plan().samples,
           "on the host a piece is a whole batch");
  if (!prepared_[request->slot()].load(std::memory_order_acquire) || request->end() > kFewSamples)
    return workers_.Submit(std::make_shared<FunctionTask>(
        request->share(), 1,
        [this, request](uint32_t, uint32_t, SampleScratch&) { PrepareAndProduce(request); }));
  PrepareAndProduce(std::move(request));
}

void ProcessBatchProducer::PrepareAndProduce(std::shared_ptr<PieceRequest> request) {
  Status prepared = Prepare(*request);
  if (prepared.ok()) return group_->Produce(std::move(request));
  group_->Withdraw(*request);
  request->Complete(std::move(prepared));
}

ProducerTimes ProcessBatchProducer::times() const {
  const ProducerGroup::Counts counts = group_->counts();
  return {.read_ns = counts.worked_ns + read_ns_.load(std::memory_order_relaxed),
          .decode_ns = decode_ns_.load(std::memory_order_relaxed),
          .processes_ns = counts.worked_ns,
          .staged_bytes = staged_bytes_.load(std::memory_order_relaxed),
          .processes_at_work = counts.dealt != 0};
}

void ProcessBatchProducer::OnFilled(std::shared_ptr<PieceRequest> request) {
  if (staging_ == nullptr) return DecodeImages(std::move(request));
  // The process that filled it may have given some of it back, which a copy would allocate again.
  if (Status kept = PieceRequest::Prepare(*staging_, PieceOf(*request), 0, request->end()); !kept.ok()) {
    request->Complete(std::move(kept));
    return;
  }
  workers_.Submit(std::make_shared<FunctionTask>(
      request->share(), static_cast<uint32_t>(PartsOf(staging_->slot_stride(), kCopyBytes)),
      [this, request](uint32_t begin, uint32_t end, SampleScratch&) {
        Copy(*request, begin * kCopyBytes, end * kCopyBytes);
      },
      [this, request] { DecodeImages(request); }));
}

void ProcessBatchProducer::Copy(const PieceRequest& request, uint64_t begin, uint64_t end) {
  for (size_t t = 0; t < info_.fields.size(); ++t) {
    const TensorPlace& tensor = staging_->layout().tensors[t];
    const uint64_t first = std::max(begin, tensor.offset);
    const uint64_t behind = std::min(end, tensor.offset + request.end() * tensor.sample_bytes);
    if (first >= behind) continue;
    const std::byte* const from = staging_->FillAddress(PieceOf(request), t);
    std::memcpy(request.Address(t) + (first - tensor.offset), from + (first - tensor.offset), behind - first);
    staged_bytes_.fetch_add(behind - first, std::memory_order_relaxed);
  }
}

void ProcessBatchProducer::DecodeImages(std::shared_ptr<PieceRequest> request) {
  if (images_ == nullptr) {
    request->Complete(OkStatus());
    return;
  }
  // The slot was prepared. But a process that can write to it may have given its memory back since.
  SamplePlaces places;
  if (Status prepared = request->Places(0, 1, places); !prepared.ok()) {
    request->Complete(std::move(prepared));
    return;
  }
  std::span<const std::byte> field = places[0];
  if (staging_ != nullptr) field = {staging_->FillAddress(PieceOf(*request), 0), field.size()};
  Result<std::vector<EncodedImageRow>> rows = images_->ReadTable(field);
  if (!rows.ok() || rows->empty()) {
    WriteImageError(places, rows.status());
    request->Complete(OkStatus());
  } else {
    workers_.Submit(
        std::make_shared<DecodeTask>(*this, std::move(request), std::move(places), field, *std::move(rows)));
  }
}

void ProcessBatchProducer::WriteImageError(const SamplePlaces& places, const Status& status) const {
  const std::span<std::byte> place = places[info_.fields.size() + 1];
  std::ranges::fill(place, std::byte{0});
  place.front() = static_cast<std::byte>(status.code());
  std::string text = status.message();
  const size_t room = place.size() - 2;
  if (text.size() > room) {  // because of a long path, which the reason follows
    constexpr std::string_view kCut = " [...] ";
    text.replace(room / 2, text.size() - room + kCut.size(), kCut);
  }
  std::memcpy(place.data() + 1, text.data(), text.size());
}

Piece ProcessBatchProducer::PieceOf(const PieceRequest& request) {
  return {request.slot(), request.begin(), request.end(), 0};
}

Status ProcessBatchProducer::Prepare(const PieceRequest& request) {
  SamplePlaces places;
  RETURN_IF_ERROR(request.Places(0, request.end(), places));
  const Piece piece = PieceOf(request);
  std::byte* staged = nullptr;
  if (staging_ != nullptr) {
    RETURN_IF_ERROR(PieceRequest::Prepare(*staging_, piece, 0, request.end()));
    staging_->Deliver(piece, {},
                      [](const Status& /*status*/, const CopyTime& /*time*/) {});  // it is allocated
    staged = staging_->FillAddress(piece, id_tensor_);
  }
  const BatchSamples ids = sampler_.SamplesOf(request.plan());
  for (uint32_t i = 0; i < request.end(); ++i, places.Next()) {
    const auto id = static_cast<int64_t>(ids[i]);
    std::memcpy(places[id_tensor_].data(), &id, sizeof id);
    if (staged != nullptr) std::memcpy(staged + i * sizeof id, &id, sizeof id);
  }
  if (request.end() == batch_size_) prepared_[request.slot()].store(true, std::memory_order_release);
  return OkStatus();
}

}  // namespace pinfeed
