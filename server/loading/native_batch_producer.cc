// SPDX-License-Identifier: Apache-2.0
#include "server/loading/native_batch_producer.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/base/first_error.h"
#include "common/base/sync.h"
#include "server/loading/cache_fill.h"
#include "server/loading/piece_task.h"
#include "server/loading/read_ahead.h"

namespace pinfeed {
namespace {

// A chunk of small samples costs a worker about as much as a few trips through the pool's lock: tens of
// microseconds. Of packed samples the layout has the size of the largest only: there the time counts that the
// latest ones took.
constexpr uint64_t kChunkBytes = 512 * 1024;
// With more threads, each waits longer at the lock, and for the memory (decision 0014).
constexpr uint32_t kManyWorkers = 32;
constexpr uint64_t kChunkBytesOfMany = 1024 * 1024;
constexpr uint64_t kChunkNs = 50'000;
constexpr uint32_t kPassedSamples = 4;  // a chunk of images that the GPU decodes

// Of a remote piece: samples that are fetched together, and how many such sections are under way at a time.
// While one is decoded, the other keeps as many readers busy as a daemon has.
constexpr uint32_t kSectionSamples = 32;
constexpr uint32_t kSectionsUnderWay = 2;

}  // namespace

uint32_t WorkersBesideCopies(uint32_t workers) {
  return workers <= kManyWorkers ? workers : std::max(kManyWorkers, workers / 4 * 3);
}

// Purpose: one piece that is loaded from its dataset, on either pool. Owns: the request, which keeps the feed
// alive and so the producer.
class NativeBatchProducer::Task final : public PieceTask {
 public:
  Task(NativeBatchProducer& producer, std::shared_ptr<PieceRequest> request)
      : PieceTask(request->share(), request->end() - request->begin(), producer.ChunkSamples()),
        producer_(producer),
        request_(std::move(request)),
        place_(producer.read_ahead_ == nullptr
                   ? 0
                   : producer.read_ahead_->Add(request_->plan(), request_->begin(), *request_->share())) {}

 private:
  Status Load(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    const uint32_t first = request_->begin();
    if (producer_.read_ahead_ != nullptr) producer_.read_ahead_->Begin(place_ + begin);
    return producer_.Load(*request_, first + begin, first + end, scratch, {}, place_ + begin);
  }
  void End(Status status) override { request_->Complete(std::move(status)); }

  NativeBatchProducer& producer_;
  const std::shared_ptr<PieceRequest> request_;
  const uint64_t place_;  // of the piece's first sample, see ReadAhead
};

// Purpose: one piece of a remote dataset whose samples are decoded or transformed. It is loaded in sections:
// readers fetch the samples of a section into memory, each by one reader; then workers load them from there.
// When a section is loaded, the next one is begun. Owns: the request. Borrows: the producer, which the
// request keeps alive. Threads: any. Errors: a sample that cannot be fetched is bad. Invariants: 1. at most
// kSectionsUnderWay * kSectionSamples samples of the piece are in memory, each until it is loaded; 2. the
// request is completed once, when no section is under way and none is left that is wanted.
class NativeBatchProducer::RemotePiece final : public std::enable_shared_from_this<RemotePiece> {
 public:
  RemotePiece(NativeBatchProducer& producer, std::shared_ptr<PieceRequest> request)
      : producer_(producer),
        request_(std::move(request)),
        order_(producer.remote_pieces_.fetch_add(1, std::memory_order_relaxed)),
        next_(request_->begin()) {}

  void Begin() {
    for (uint32_t i = 0; i < kSectionsUnderWay; ++i) BeginSection();
  }

 private:
  class FetchTask;
  class LoadTask;

  // Begins the next section in place of one that has ended. If there is none, completes the request behind
  // the last one.
  void BeginSection() PF_EXCLUDES(mutex_);

  NativeBatchProducer& producer_;
  const std::shared_ptr<PieceRequest> request_;
  const uint64_t order_;  // older pieces go first
  Mutex mutex_;
  uint32_t next_ PF_GUARDED_BY(mutex_);  // the first sample of the next section
  uint32_t under_way_ PF_GUARDED_BY(mutex_) = kSectionsUnderWay;
  FirstError error_;
};

// Purpose: one section on the workers.
class NativeBatchProducer::RemotePiece::LoadTask final : public FillTask {
 public:
  // `first`: the number of the first sample in the batch.
  LoadTask(std::shared_ptr<RemotePiece> piece, uint32_t first, std::vector<Fetched> samples)
      : FillTask(piece->request_->share(), static_cast<uint32_t>(samples.size()),
                 piece->producer_.ChunkSamples(), piece->order_),
        piece_(std::move(piece)),
        first_(first),
        samples_(std::move(samples)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    piece_->error_.Set(piece_->producer_.Load(*piece_->request_, first_ + begin, first_ + end, scratch,
                                              std::span(samples_).subspan(begin, end - begin)));
  }
  void Done() override {
    samples_.clear();  // those that were not wanted
    piece_->BeginSection();
  }

 private:
  const std::shared_ptr<RemotePiece> piece_;
  const uint32_t first_;
  std::vector<Fetched> samples_;  // null: not wanted
};

// Purpose: one section on the readers.
class NativeBatchProducer::RemotePiece::FetchTask final : public FillTask {
 public:
  FetchTask(std::shared_ptr<RemotePiece> piece, uint32_t first, uint32_t end)
      : FillTask(piece->request_->share(), end - first, 1, piece->order_),
        piece_(std::move(piece)),
        first_(first),
        samples_(end - first) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    const PieceRequest& request = *piece_->request_;
    for (uint32_t i = begin; i < end && request.Wanted(first_ + i); ++i)
      samples_[i] = piece_->producer_.Fetch(request, first_ + i, scratch);
  }
  void Done() override {
    piece_->producer_.workers_.Submit(std::make_shared<LoadTask>(piece_, first_, std::move(samples_)));
  }

 private:
  const std::shared_ptr<RemotePiece> piece_;
  const uint32_t first_;
  std::vector<Fetched> samples_;
};

void NativeBatchProducer::RemotePiece::BeginSection() {
  uint32_t first = 0;
  uint32_t end = 0;
  {
    const MutexLock lock(mutex_);
    // What is not wanted now will not be later, nor will what follows it.
    const bool over = error_.failed() || next_ == request_->end() ||
                      (next_ != request_->begin() && !request_->Wanted(next_));
    if (over) {
      next_ = request_->end();
      if (--under_way_ > 0) return;
    } else {
      first = next_;
      end = first + std::min(kSectionSamples, request_->end() - first);
      next_ = end;
    }
  }
  if (first == end) {
    request_->Complete(error_.Get());
  } else {
    producer_.readers_.Submit(std::make_shared<FetchTask>(shared_from_this(), first, end));
  }
}

NativeBatchProducer::NativeBatchProducer(std::unique_ptr<const SampleLoader> loader, Sampler sampler,
                                         const FeedSpec& spec, const BatchLayout& layout, WorkerPool& workers,
                                         WorkerPool& readers)
    : loader_(std::move(loader)),
      sampler_(std::move(sampler)),
      on_bad_sample_(spec.on_bad_sample),
      remote_(dataset().remote),
      fetches_(remote_ && !loader_->only_reads()),
      workers_(workers),
      readers_(readers),
      read_ahead_(remote_ ? nullptr : std::make_shared<ReadAhead>(loader_, sampler_, spec.epochs, readers)),
      cache_fill_(loader_->cached_head() == nullptr
                      ? nullptr
                      : std::make_shared<CacheFill>(loader_, sampler_, spec, workers, readers)) {
  const auto& fields = dataset().fields;
  const bool decodes = std::any_of(fields.begin(), fields.end(),
                                   [](const Field& f) { return f.kind == FieldKind::kEncodedImage; });
  uint64_t sample_bytes = 0;
  bool packed = false;
  for (const TensorPlace& tensor : layout.tensors) {
    sample_bytes += tensor.sample_bytes;
    packed = packed || tensor.spec.packed();
  }
  // Most of them only pass through.
  if (deferred_pixel_ops() && deferred_pixel_ops()->plan) chunk_samples_ = kPassedSamples;
  // A read of a remote storage takes longer than a trip through the lock, so readers share them out singly.
  const bool by_readers = remote_ && !fetches_;
  by_time_ = packed && !by_readers;
  const uint64_t chunk_bytes = workers_.threads() > kManyWorkers ? kChunkBytesOfMany : kChunkBytes;
  if (!decodes && !by_readers)
    chunk_samples_ =
        static_cast<uint32_t>(std::max<uint64_t>(1, chunk_bytes / std::max<uint64_t>(1, sample_bytes)));
}

void NativeBatchProducer::Produce(std::shared_ptr<PieceRequest> request) {
  if (fetches_) return std::make_shared<RemotePiece>(*this, std::move(request))->Begin();
  (remote_ ? readers_ : workers_).Submit(std::make_shared<Task>(*this, std::move(request)));
}

NativeBatchProducer::~NativeBatchProducer() {
  Cancel();
}

void NativeBatchProducer::Cancel() {
  if (read_ahead_ != nullptr) read_ahead_->Stop();
  Drain();
}

void NativeBatchProducer::Drain() {
  if (cache_fill_ != nullptr) cache_fill_->Stop();
}

uint32_t NativeBatchProducer::ChunkSamples() const {
  if (!by_time_) return chunk_samples_;
  const uint64_t sample_ns = latest_sample_ns_.load(std::memory_order_relaxed);
  return std::max(chunk_samples_, static_cast<uint32_t>(kChunkNs / std::max<uint64_t>(1, sample_ns)));
}

ProducerTimes NativeBatchProducer::times() const {
  return {read_ns_.load(std::memory_order_relaxed), decode_ns_.load(std::memory_order_relaxed)};
}

Status NativeBatchProducer::Load(const PieceRequest& request, uint32_t begin, uint32_t end,
                                 SampleScratch& scratch, std::span<Fetched> fetched, uint64_t place) {
  SamplePlaces places;
  RETURN_IF_ERROR(request.Places(begin, end, places));
  SampleTimes sum;
  std::optional<WorkSpans> spans;
  request.Trace(end - begin, spans);
  const BatchSamples ids = sampler_.SamplesOf(request.plan());
  if (CachedHead* const head = loader_->cached_head())
    head->At({request.plan().epoch, request.plan().next_position});
  uint32_t i = begin;
  for (; i < end && request.Wanted(i); ++i) {
    const SampleKey key{ids[i], request.plan().epoch};
    scratch.Begin(key.id);
    if (cache_fill_ != nullptr) cache_fill_->Begin(request.plan(), i, *request.share());
    SampleTimes times{.spans = spans ? &*spans : nullptr, .fetched = !fetched.empty()};
    PF_CHECK(!times.fetched || fetched[i - begin] != nullptr, "a sample that is wanted was so before");
    const Dataset& source = times.fetched ? *fetched[i - begin] : loader_->dataset();
    Status status = loader_->LoadFrom(source, key, places, scratch, times);
    sum.read_ns += times.read_ns;
    sum.decode_ns += times.decode_ns;
    scratch.durations().Record(times);
    if (read_ahead_ != nullptr) read_ahead_->Took(place + (i - begin), times.read_ns);
    if (times.fetched) fetched[i - begin].reset();
    if (!status.ok()) {
      if (on_bad_sample_ == OnBadSample::kZero) loader_->WriteZeros(key, places);
      request.Bad(i, std::move(status));
    }
    places.Next();
  }
  read_ns_.fetch_add(sum.read_ns, std::memory_order_relaxed);
  decode_ns_.fetch_add(sum.decode_ns, std::memory_order_relaxed);
  if (by_time_ && i > begin)
    latest_sample_ns_.store((sum.read_ns + sum.decode_ns) / (i - begin), std::memory_order_relaxed);
  return OkStatus();
}

CacheUse NativeBatchProducer::cache_use() const {
  const CachedHead* const head = loader_->cached_head();
  return head == nullptr ? CacheUse() : CacheUse{head->hits(), head->misses()};
}

ReadAheadUse NativeBatchProducer::read_ahead_use() const {
  return read_ahead_ == nullptr ? ReadAheadUse() : read_ahead_->use();
}

NativeBatchProducer::Fetched NativeBatchProducer::Fetch(const PieceRequest& request, uint32_t index,
                                                        SampleScratch& scratch) {
  std::optional<WorkSpans> spans;
  request.Trace(1, spans);
  const uint64_t id = sampler_.SamplesOf(request.plan())[index];
  scratch.Begin(id);
  SampleTimes times;
  times.spans = spans ? &*spans : nullptr;
  const uint64_t start = TraceClockNs();
  Fetched sample = FetchedSample::Fetch(loader_->dataset(), id);
  times.Read(start, TraceClockNs());
  scratch.durations().Record(times);
  read_ns_.fetch_add(times.read_ns, std::memory_order_relaxed);
  return sample;
}

}  // namespace pinfeed
