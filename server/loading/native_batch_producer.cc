// SPDX-License-Identifier: Apache-2.0
#include "server/loading/native_batch_producer.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/base/sync.h"

namespace pinfeed {
namespace {

// A chunk of small samples costs a worker about as much as a few trips through the pool's lock: tens of
// microseconds.
constexpr uint64_t kChunkBytes = 512 * 1024;

}  // namespace

// Purpose: one piece on the worker pool.
class NativeBatchProducer::Task final : public FillTask {
 public:
  Task(NativeBatchProducer& producer, std::shared_ptr<PieceRequest> request)
      : FillTask(request->share(), request->end() - request->begin(), producer.chunk_samples_),
        producer_(producer),
        request_(std::move(request)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    const uint32_t first = request_->begin();
    Status status = producer_.Load(*request_, first + begin, first + end, scratch);
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  void Done() override {
    Status status;
    {
      const MutexLock lock(mutex_);
      status = std::move(status_);
    }
    request_->Complete(std::move(status));
  }

 private:
  NativeBatchProducer& producer_;
  const std::shared_ptr<PieceRequest> request_;  // keeps the feed, and so the producer
  Mutex mutex_;
  Status status_ PF_GUARDED_BY(mutex_);
};

NativeBatchProducer::NativeBatchProducer(std::unique_ptr<const SampleLoader> loader, Sampler sampler,
                                         OnBadSample on_bad_sample, const BatchLayout& layout,
                                         WorkerPool& workers)
    : loader_(std::move(loader)),
      sampler_(std::move(sampler)),
      on_bad_sample_(on_bad_sample),
      workers_(workers) {
  const auto& fields = dataset().fields;
  const bool decodes = std::any_of(fields.begin(), fields.end(),
                                   [](const Field& f) { return f.kind == FieldKind::kEncodedImage; });
  uint64_t sample_bytes = 0;
  for (const TensorPlace& tensor : layout.tensors) sample_bytes += tensor.sample_bytes;
  if (!decodes)
    chunk_samples_ =
        static_cast<uint32_t>(std::max<uint64_t>(1, kChunkBytes / std::max<uint64_t>(1, sample_bytes)));
}

void NativeBatchProducer::Produce(std::shared_ptr<PieceRequest> request) {
  workers_.Submit(std::make_shared<Task>(*this, std::move(request)));
}

ProducerTimes NativeBatchProducer::times() const {
  return {read_ns_.load(std::memory_order_relaxed), decode_ns_.load(std::memory_order_relaxed)};
}

Status NativeBatchProducer::Load(const PieceRequest& request, uint32_t begin, uint32_t end,
                                 SampleScratch& scratch) {
  std::vector<std::span<std::byte>> places;
  RETURN_IF_ERROR(request.Places(begin, end, places));
  SampleTimes sum;
  std::optional<WorkSpans> spans;
  request.Trace(end - begin, spans);
  const BatchSamples ids = sampler_.SamplesOf(request.plan());
  for (uint32_t i = begin; i < end && request.Wanted(i); ++i) {
    const SampleKey key{ids[i], request.plan().epoch};
    scratch.Begin(key.id);
    SampleTimes times;
    times.spans = spans ? &*spans : nullptr;
    Status status = loader_->Load(key, places, scratch, times);
    sum.read_ns += times.read_ns;
    sum.decode_ns += times.decode_ns;
    scratch.durations().Record(times);
    if (!status.ok()) {
      if (on_bad_sample_ == OnBadSample::kZero) loader_->WriteZeros(key, places);
      request.Bad(i, std::move(status));
    }
    for (std::span<std::byte>& place : places) place = {place.data() + place.size(), place.size()};
  }
  read_ns_.fetch_add(sum.read_ns, std::memory_order_relaxed);
  decode_ns_.fetch_add(sum.decode_ns, std::memory_order_relaxed);
  return OkStatus();
}

}  // namespace pinfeed
