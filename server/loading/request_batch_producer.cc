// SPDX-License-Identifier: Apache-2.0
#include "server/loading/request_batch_producer.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/log_pace.h"
#include "server/dataset/fingerprint.h"
#include "server/loading/piece_task.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {
namespace {

constexpr char kImageField[] = "image";
constexpr char kArrayField[] = "input";
// More than a feed ever numbers, and few enough for cursors in JSON.
constexpr uint64_t kRequests = uint64_t{1} << 53;

DatasetInfo RequestInfo(const FeedSpec& spec) {
  DatasetInfo info{.format = "batcher", .path = spec.group, .samples = kRequests};
  if (spec.batcher->array) {
    info.fields.push_back({*spec.batcher->array});
    info.fields.back().spec.name = kArrayField;
  } else {
    info.fields.push_back({{kImageField, DType::kUnspecified, {}}, FieldKind::kEncodedImage});
  }
  info.fingerprint = Fingerprint().Add(spec.group).Add(info.fields.front().spec).Hex();
  return info;
}

std::string RequestName(uint64_t id) {
  return "request " + std::to_string(id);
}

// Purpose: says what requests look like. None can be read.
class RequestDataset final : public Dataset {
 public:
  explicit RequestDataset(DatasetInfo info) : info_(std::move(info)) {}
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t /*field*/, std::span<std::byte> /*out*/) const override {
    return Unreadable(id);
  }
  Status ReadBytes(uint64_t id, size_t /*field*/, std::vector<std::byte>& /*out*/) const override {
    return Unreadable(id);
  }
  std::string Describe(uint64_t id) const override { return RequestName(id); }

 private:
  static Status Unreadable(uint64_t id) {
    return Internal(RequestName(id) + " is in the memory of its client");
  }
  const DatasetInfo info_;
};

// Purpose: one request as a dataset. Borrows: the request's bytes, which its client may change meanwhile, so
// they are copied before anything looks at them. Threads: one.
class RequestSample final : public Dataset {
 public:
  RequestSample(const DatasetInfo& info, std::span<const std::byte> bytes) : info_(info), bytes_(bytes) {}
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t /*id*/, size_t /*field*/, std::span<std::byte> out) const override {
    PF_CHECK(out.size() == bytes_.size(), "an array's size was checked when it was submitted");
    std::ranges::copy(bytes_, out.begin());
    return OkStatus();
  }
  Status ReadBytes(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& out) const override {
    RETURN_IF_ERROR(ResizeForSample(bytes_.size(), out));
    std::ranges::copy(bytes_, out.begin());
    return OkStatus();
  }
  std::string Describe(uint64_t id) const override { return RequestName(id); }

 private:
  const DatasetInfo& info_;
  const std::span<const std::byte> bytes_;
};

std::optional<uint64_t> ArrayBytes(const SampleLoader& loader) {
  const Field& field = loader.dataset().info().fields.front();
  if (field.kind != FieldKind::kTensor) return std::nullopt;
  const Result<uint64_t> bytes = field.spec.SampleBytes();
  PF_CHECK(bytes.ok(), "the spec was checked");
  return *bytes;
}

}  // namespace

std::unique_ptr<const Dataset> MakeRequestDataset(const FeedSpec& spec) {
  return std::make_unique<RequestDataset>(RequestInfo(spec));
}

// Purpose: requests of one piece, on the workers. Owns: the requests, and so the memory of their clients.
class RequestBatchProducer::Task final : public PieceTask {
 public:
  Task(RequestBatchProducer& producer, BatcherQueue::Load load)
      : PieceTask(load.piece->request().share(), static_cast<uint32_t>(load.requests.size()), 1),
        producer_(producer),
        load_(std::move(load)) {
    producer_.loading_.Begin();
  }

 private:
  Status Load(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    return producer_.LoadSamples(load_, begin, end, scratch);
  }
  void End(Status status) override {
    producer_.loading_.End();  // first: the feed reads this time when the batch is complete
    load_.piece->EndLoad(std::move(status));
  }

  RequestBatchProducer& producer_;
  const BatcherQueue::Load load_;
};

RequestBatchProducer::RequestBatchProducer(const BatcherSpec& spec,
                                           std::unique_ptr<const SampleLoader> loader, WorkerPool& workers,
                                           BatcherQueue::Now now)
    : loader_(std::move(loader)),
      workers_(workers),
      queue_(std::make_shared<BatcherQueue>(
          spec, ArrayBytes(*loader_),
          [this](BatcherQueue::Load load) {
            workers_.Submit(std::make_shared<Task>(*this, std::move(load)));
          },
          std::move(now))) {}

ProducerTimes RequestBatchProducer::times() const {
  return {.decode_ns = decode_ns_.load(std::memory_order_relaxed), .loading_ns = loading_.Ns()};
}

Status RequestBatchProducer::LoadSamples(const BatcherQueue::Load& load, uint32_t begin, uint32_t end,
                                         SampleScratch& scratch) {
  const PieceRequest& piece = load.piece->request();
  SamplePlaces places;
  RETURN_IF_ERROR(piece.Places(load.first + begin, load.first + end, places));
  std::optional<WorkSpans> spans;
  piece.Trace(end - begin, spans);
  SampleTimes times;
  times.spans = spans ? &*spans : nullptr;
  for (uint32_t i = begin; i < end && piece.Wanted(load.first + i); ++i, places.Next()) {
    // The request may have ended: cancelled, or its deadline passed.
    Status status(Code::kCancelled, "the request has ended");
    const BatcherQueue::RequestPtr& request = load.requests[i];
    if (request != nullptr && queue_->Wanted(*request)) {
      scratch.Begin(request->id);
      status = LoadSample(*request, places, scratch, times);
    }
    if (status.ok()) continue;
    if (status.code() == Code::kResourceExhausted) {
      static LogPace pace(1);  // the frame to the client has no room for the numbers
      if (const auto more = pace.Admit()) {
        const LogScope scope({.feed = piece.share()->feed});
        spdlog::warn("feed {}: {} failed: {}{}", piece.share()->feed, RequestName(request->id),
                     status.ToString(), *more);
      }
    }
    piece.LeaveOut(load.first + i);
    queue_->LeaveOut(piece.plan(), load.first + i, status);
  }
  decode_ns_.fetch_add(times.decode_ns, std::memory_order_relaxed);
  return OkStatus();
}

Status RequestBatchProducer::LoadSample(const BatcherQueue::Request& request, const SamplePlaces& places,
                                        SampleScratch& scratch, SampleTimes& times) const {
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, request.client->Read(request.slot, request.bytes));
  const RequestSample sample(loader_->dataset().info(), bytes);
  return loader_->LoadFrom(sample, {request.id, 0}, places, scratch, times);
}

}  // namespace pinfeed
