// SPDX-License-Identifier: Apache-2.0
#include "server/loading/batcher_queue.h"

#include <algorithm>

#include "common/base/byte_size.h"
#include "common/base/quote.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxErrorText = 200;  // what a frame has room for

Status Ended() {
  return Unavailable(
      "submit: the batcher has ended or drains: its consumers left, or the daemon stops; make a new client "
      "once they are back");
}

uint64_t SinceNs(BatcherQueue::Time begin, BatcherQueue::Time end) {
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count()));
}

}  // namespace

BatcherQueue::~BatcherQueue() {
  PF_CHECK(unclosed_.empty() || cancelled_, "a batcher's feed is stopped before it is destroyed");
}

void BatcherQueue::Announce(const PieceRequest& piece) {
  const MutexLock lock(mutex_);
  const BatchKey key = KeyOf(piece.plan());
  const auto [at, added] = batches_.try_emplace(key);
  if (!added) return;
  at->second.samples = piece.plan().samples;
  unclosed_.push_back(key);
}

void BatcherQueue::Produce(std::shared_ptr<PieceRequest> piece) {
  After after;
  bool cancelled = false;
  {
    const MutexLock lock(mutex_);
    cancelled = cancelled_;
    if (!cancelled) {
      const auto found = batches_.find(KeyOf(piece->plan()));
      if (found == batches_.end()) {  // all its requests ended before this piece had memory
        after.loads.emplace_back(std::move(piece), std::vector<RequestPtr>());
      } else if (found->second.closed) {
        std::vector<RequestPtr> requests = RequestsOf(found->second, *piece);
        after.loads.emplace_back(std::move(piece), std::move(requests));
      } else {
        found->second.pieces.push_back(std::move(piece));
        CloseDue(now_(), after);
      }
    }
  }
  if (cancelled) piece->Complete(OkStatus());
  Do(std::move(after));
}

std::vector<BatcherQueue::RequestPtr> BatcherQueue::RequestsOf(const Batch& batch,
                                                               const PieceRequest& piece) {
  const size_t begin = std::min<size_t>(piece.begin(), batch.requests.size());
  const size_t end = std::min<size_t>(piece.end(), batch.requests.size());
  return {batch.requests.begin() + static_cast<std::ptrdiff_t>(begin),
          batch.requests.begin() + static_cast<std::ptrdiff_t>(end)};
}

void BatcherQueue::CloseDue(Time now, After& after) {
  while (!unclosed_.empty()) {
    const BatchKey key = unclosed_.front();
    Batch& batch = batches_.at(key);
    if (batch.pieces.empty()) return;  // announced, and Produce follows
    if (!draining_ && waiting_.size() < batch.samples) {
      if (waiting_.empty()) return;
      const Request& oldest = *pending_.at(*waiting_.begin()).request;
      if (now < oldest.arrived + std::chrono::microseconds(spec_.max_delay_us)) return;
    }
    unclosed_.pop_front();
    Close(key, batch, after);
  }
}

void BatcherQueue::Close(BatchKey key, Batch& batch, After& after) {
  batch.closed = true;
  const size_t count = std::min<size_t>(batch.samples, waiting_.size());
  for (size_t i = 0; i < count; ++i) {
    Pending& pending = pending_.at(*waiting_.begin());
    waiting_.erase(waiting_.begin());
    pending.batch = key;
    batch.requests.push_back(pending.request);
  }
  batch.open = static_cast<uint32_t>(count);
  for (std::shared_ptr<PieceRequest>& piece : std::exchange(batch.pieces, {})) {
    std::vector<RequestPtr> requests = RequestsOf(batch, *piece);
    after.loads.emplace_back(std::move(piece), std::move(requests));
  }
}

void BatcherQueue::Expire(Time now, After& after) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Fail(
        deadlines_.begin()->second, RequestEnd::kDeadline,
        Status(Code::kDeadlineExceeded,
               "the request's deadline passed before an answer came: the consumers are too slow, or stopped"),
        after);
  }
}

BatcherQueue::RequestPtr BatcherQueue::End(uint64_t id, RequestEnd how) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return nullptr;
  const Pending pending = std::move(found->second);
  pending_.erase(found);
  const Request& request = *pending.request;
  slots_.erase({request.client.get(), request.slot});
  if (request.deadline) deadlines_.erase({*request.deadline, id});
  if (pending.batch) {
    const auto batch = batches_.find(*pending.batch);
    // Nobody waits for the answers of a batch that was taken.
    if (batch != batches_.end() && --batch->second.open == 0 && batch->second.consumer != 0)
      batches_.erase(batch);
  } else {
    waiting_.erase(id);
  }
  ++counts_.ends[static_cast<size_t>(how)];
  if (how == RequestEnd::kAnswered) counts_.latency.Add(SinceNs(request.arrived, now_()));
  return pending.request;
}

void BatcherQueue::Fail(uint64_t id, RequestEnd how, const Status& why, After& after) {
  if (RequestPtr request = End(id, how)) after.answers.push_back({std::move(request), why, {}});
}

void BatcherQueue::Do(After after) {
  for (const After::Told& told : after.answers)
    told.request->client->Answer(told.request->slot, told.status, told.answer);
  for (auto& [piece, requests] : after.loads) load_(std::move(piece), std::move(requests));
  for (const std::shared_ptr<Client>& client : after.hang_ups) client->HangUp();
}

void BatcherQueue::Drain() {
  After after;
  {
    const MutexLock lock(mutex_);
    draining_ = true;
    CloseDue(now_(), after);
    while (!waiting_.empty()) Fail(*waiting_.begin(), RequestEnd::kFeedEnded, Ended(), after);
  }
  Do(std::move(after));
}

void BatcherQueue::Cancel() {
  After after;
  std::vector<std::shared_ptr<PieceRequest>> pieces;
  {
    const MutexLock lock(mutex_);
    draining_ = cancelled_ = true;
    while (!pending_.empty()) Fail(pending_.begin()->first, RequestEnd::kFeedEnded, Ended(), after);
    for (auto& [key, batch] : batches_)
      std::ranges::move(std::exchange(batch.pieces, {}), std::back_inserter(pieces));
    batches_.clear();
    unclosed_.clear();
    after.hang_ups.assign(clients_.begin(), clients_.end());
    clients_.clear();
  }
  Do(std::move(after));
  for (const std::shared_ptr<PieceRequest>& piece : pieces) piece->Complete(OkStatus());
}

bool BatcherQueue::Wanted(const Request& request) const {
  const MutexLock lock(mutex_);
  return pending_.contains(request.id);
}

void BatcherQueue::LeaveOut(const BatchPlan& plan, uint32_t index, const Status& why) {
  After after;
  {
    const MutexLock lock(mutex_);
    const auto found = batches_.find(KeyOf(plan));
    if (found == batches_.end()) return;  // cancelled
    const RequestPtr request = std::exchange(found->second.requests.at(index), nullptr);
    if (request != nullptr) Fail(request->id, RequestEnd::kBadInput, why, after);
  }
  Do(std::move(after));
}

Status BatcherQueue::AddClient(const std::shared_ptr<Client>& client) {
  const MutexLock lock(mutex_);
  if (draining_) return Ended();
  if (clients_.size() >= kMaxClients) {
    return ResourceExhausted("attach a client: the batcher has " + std::to_string(kMaxClients) +
                             " clients, which is the limit; let several threads share one");
  }
  clients_.insert(client);
  return OkStatus();
}

void BatcherQueue::RemoveClient(const std::shared_ptr<Client>& client) {
  const MutexLock lock(mutex_);
  clients_.erase(client);
  std::vector<uint64_t> ids;
  for (auto at = slots_.lower_bound({client.get(), 0}); at != slots_.end() && at->first.first == client.get();
       ++at)
    ids.push_back(at->second);
  for (const uint64_t id : ids) End(id, RequestEnd::kClientGone);
}

Status BatcherQueue::Submit(Request request) {
  After after;
  Status refused;
  {
    const MutexLock lock(mutex_);
    const Slot slot(request.client.get(), request.slot);
    if (slots_.contains(slot)) {
      return FailedPrecondition("submit: slot " + std::to_string(request.slot) +
                                " has a request that is not answered yet");
    }
    ++counts_.requests;
    request.arrived = now_();
    if (draining_) {
      refused = Ended();
    } else if (request_bytes_ && request.bytes != *request_bytes_) {
      refused = InvalidArgument("submit: the request has " + std::to_string(request.bytes) +
                                " bytes, and the batcher's arrays have " + std::to_string(*request_bytes_));
    } else if (request.bytes == 0 || request.bytes > max_request_bytes()) {
      refused = InvalidArgument("submit: the request has " + std::to_string(request.bytes) +
                                " bytes, and 1 to " + std::to_string(max_request_bytes()) +
                                " are possible (the batcher's max_request_bytes)");
    } else if (waiting_.size() >= spec_.queue_limit) {
      refused = ResourceExhausted("submit: the batcher's queue is full: " + std::to_string(waiting_.size()) +
                                  " requests wait (queue_limit); try again later, or add consumers");
    }
    if (refused.ok()) {
      request.id = next_id_++;
      const uint64_t id = request.id;
      if (request.deadline) deadlines_.emplace(*request.deadline, id);
      slots_.emplace(slot, id);
      pending_.emplace(id, Pending{std::make_shared<const Request>(std::move(request))});
      waiting_.insert(id);
      CloseDue(now_(), after);
    } else {
      ++counts_.ends[static_cast<size_t>(draining_ ? RequestEnd::kFeedEnded : RequestEnd::kRefused)];
      after.answers.push_back({std::make_shared<const Request>(std::move(request)), refused, {}});
    }
  }
  Do(std::move(after));
  return OkStatus();
}

void BatcherQueue::CancelRequest(const std::shared_ptr<Client>& client, uint32_t slot) {
  After after;
  {
    const MutexLock lock(mutex_);
    const auto found = slots_.find({client.get(), slot});
    if (found == slots_.end()) return;
    Fail(found->second, RequestEnd::kCancelled, Status(Code::kCancelled, "the client cancelled the request"),
         after);
  }
  Do(std::move(after));
}

uint32_t BatcherQueue::Take(BatchKey key, ConsumerId consumer) {
  const MutexLock lock(mutex_);
  const auto found = batches_.find(key);
  if (found == batches_.end() || !found->second.closed) return 0;
  Batch& batch = found->second;
  batch.consumer = consumer;
  const uint32_t open = batch.open;
  if (open == 0) batches_.erase(found);
  return open;
}

Result<uint32_t> BatcherQueue::Answer(BatchKey key, ConsumerId consumer, std::span<const Output> outputs) {
  After after;
  uint32_t answered = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = batches_.find(key);
    // Dealt again, or all its requests ended: nobody waits for these answers.
    if (found == batches_.end() || found->second.consumer != consumer) return 0;
    std::vector<RequestPtr> requests = found->second.requests;
    std::erase(requests, nullptr);
    if (outputs.size() != requests.size()) {
      return InvalidArgument("answer: there are " + std::to_string(outputs.size()) +
                             " outputs for a batch of " + std::to_string(requests.size()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Output& output = outputs[i];
      Status status;
      if (output.failed) {
        // Copied first: the consumer may change it meanwhile.
        const std::string text(reinterpret_cast<const char*>(output.bytes.data()),
                               std::min(output.bytes.size(), kMaxErrorText));
        status = Status(Code::kUnknown, "the consumer answered with an error: " + EscapeUnprintable(text));
      } else if (output.bytes.size() > spec_.max_answer_bytes) {
        status = Status(Code::kUnknown, "the consumer's answer has " + std::to_string(output.bytes.size()) +
                                            " bytes, and at most " + std::to_string(spec_.max_answer_bytes) +
                                            " are possible (the batcher's max_answer_bytes)");
      }
      RequestPtr request =
          End(requests[i]->id, status.ok() ? RequestEnd::kAnswered : RequestEnd::kModelError);
      if (request == nullptr) continue;
      ++answered;
      After::Told told{std::move(request), std::move(status), {}};
      if (told.status.ok()) told.answer.assign(output.bytes.begin(), output.bytes.end());
      after.answers.push_back(std::move(told));
    }
    batches_.erase(key);
  }
  Do(std::move(after));
  return answered;
}

void BatcherQueue::RemoveConsumer(ConsumerId consumer) {
  After after;
  {
    const MutexLock lock(mutex_);
    for (auto at = batches_.begin(); at != batches_.end();) {
      if (at->second.consumer != consumer) {
        ++at;
        continue;
      }
      const std::vector<RequestPtr> requests = std::move(at->second.requests);
      at = batches_.erase(at);
      for (const RequestPtr& request : requests) {
        const auto pending = request == nullptr ? pending_.end() : pending_.find(request->id);
        if (pending == pending_.end()) continue;
        if (spec_.redeal && pending->second.again < kMaxDealtAgain) {
          ++pending->second.again;
          pending->second.batch.reset();
          waiting_.insert(request->id);
          ++counts_.again;
        } else {
          Fail(
              request->id, RequestEnd::kConsumerGone,
              Unavailable("the process that had taken the request's batch ended without an answer; submit it "
                          "again, or let the batcher deal such requests again (redeal)"),
              after);
        }
      }
    }
    CloseDue(now_(), after);
  }
  Do(std::move(after));
}

std::optional<BatcherQueue::Time> BatcherQueue::Poll() {
  After after;
  std::optional<Time> next;
  {
    const MutexLock lock(mutex_);
    const Time now = now_();
    Expire(now, after);
    CloseDue(now, after);
    if (!deadlines_.empty()) next = deadlines_.begin()->first;
    if (!waiting_.empty()) {
      // Once that is past, the batch closes as soon as it has a slot.
      const Time due =
          pending_.at(*waiting_.begin()).request->arrived + std::chrono::microseconds(spec_.max_delay_us);
      if (due > now && (!next || due < *next)) next = due;
    }
  }
  Do(std::move(after));
  return next;
}

BatcherQueue::Counts BatcherQueue::counts() const {
  const MutexLock lock(mutex_);
  Counts counts = counts_;
  counts.waiting = static_cast<uint32_t>(waiting_.size());
  counts.clients = static_cast<uint32_t>(clients_.size());
  return counts;
}

}  // namespace pinfeed
