// SPDX-License-Identifier: Apache-2.0
#include "server/loading/batcher_queue.h"

#include <algorithm>

namespace pinfeed {
namespace {

Status Ended() {
  return Unavailable(
      "submit: the batcher has ended or drains: its consumers left, or the daemon stops; make a new client "
      "once they are back");
}

}  // namespace

BatcherQueue::~BatcherQueue() {
  PF_CHECK(unclosed_.empty() || cancelled_, "a batcher's feed is stopped before it is destroyed");
}

void BatcherQueue::Announce(const PieceRequest& piece) {
  const MutexLock lock(mutex_);
  const BatchKey key = KeyOf(piece.plan());
  const auto [at, added] = batches_.try_emplace(key);
  at->second.announced += piece.end() - piece.begin();
  if (!added) return;
  at->second.samples = piece.plan().samples;
  unclosed_.push_back(key);
}

void BatcherQueue::Produce(std::shared_ptr<PieceRequest> request) {
  const auto piece = std::make_shared<GatheringPiece>(std::move(request));
  After after;
  {
    const MutexLock lock(mutex_);
    const auto found = batches_.find(KeyOf(piece->request().plan()));
    // Cancelled, or all its requests ended before this piece had memory.
    if (cancelled_ || found == batches_.end()) {
      Batch none;
      ClosePiece(none, piece, after);
    } else {
      Batch& batch = found->second;
      LoadFrom(0, batch, piece, after);
      if (batch.closed) {
        ClosePiece(batch, piece, after);
        ForgetIfOver(found);
      } else {
        batch.pieces.push_back(piece);
        if (batches_.size() > kMaxBatches && batches_.begin()->second.closed) {
          GiveUp(batches_.begin()->first,
                 Unavailable("nobody answered the request's batch while " + std::to_string(kMaxBatches) +
                             " later ones came: does the consumer answer each batch?"),
                 after);
        }
        CloseDue(now_(), after);
      }
    }
  }
  Do(std::move(after));
}

size_t BatcherQueue::Waiting() const {
  return waiting_.size() + (unclosed_.empty() ? 0 : batches_.at(unclosed_.front()).open);
}

std::optional<BatcherQueue::Time> BatcherQueue::Due() const {
  auto first = pending_.end();
  if (!unclosed_.empty()) {
    const std::vector<uint64_t>& gathered = batches_.at(unclosed_.front()).requests;
    for (size_t i = 0; i < gathered.size() && first == pending_.end(); ++i)
      first = pending_.find(gathered[i]);
  }
  if (first == pending_.end() && !waiting_.empty()) first = pending_.find(*waiting_.begin());
  if (first == pending_.end()) return std::nullopt;
  return first->second.request->arrived + std::chrono::microseconds(spec_.max_delay_us);
}

void BatcherQueue::CloseDue(Time now, After& after) {
  while (!unclosed_.empty()) {
    const BatchKey key = unclosed_.front();
    Batch& batch = batches_.at(key);
    if (batch.pieces.empty()) return;  // announced, and Produce follows
    // One that is dealt again has waited before.
    const bool again = Gather(key, batch, after);
    if (!draining_ && !again && batch.requests.size() < batch.samples) {
      const std::optional<Time> due = Due();
      if (!due || now < *due) return;
    }
    unclosed_.pop_front();
    Close(key, batch, after);
  }
}

bool BatcherQueue::Gather(BatchKey key, Batch& batch, After& after) {
  const auto first = static_cast<uint32_t>(batch.requests.size());
  bool again = false;
  while (!waiting_.empty() && batch.requests.size() < batch.samples) {
    const uint64_t id = *waiting_.begin();
    waiting_.erase(waiting_.begin());
    Pending& pending = pending_.at(id);
    pending.batch = key;
    again = again || pending.again + pending.taken_back > 0;
    batch.requests.push_back(id);
    ++batch.open;
  }
  for (const std::shared_ptr<GatheringPiece>& piece : batch.pieces) LoadFrom(first, batch, piece, after);
  return again;
}

void BatcherQueue::LoadFrom(uint32_t first, const Batch& batch, const std::shared_ptr<GatheringPiece>& piece,
                            After& after) const {
  Load load{piece, std::max(first, piece->request().begin()), {}};
  for (size_t i = load.first; i < std::min<size_t>(piece->request().end(), batch.requests.size()); ++i) {
    const auto pending = pending_.find(batch.requests[i]);
    load.requests.push_back(pending == pending_.end() ? nullptr : pending->second.request);
  }
  if (load.requests.empty()) return;
  piece->BeginLoad();
  after.loads.push_back(std::move(load));
}

void BatcherQueue::Close(BatchKey key, Batch& batch, After& after) {
  batch.closed = true;
  for (const std::shared_ptr<GatheringPiece>& piece : std::exchange(batch.pieces, {}))
    ClosePiece(batch, piece, after);
  ForgetIfOver(batches_.find(key));
}

void BatcherQueue::ClosePiece(Batch& batch, const std::shared_ptr<GatheringPiece>& piece,
                              After& after) const {
  std::vector<uint32_t> left_out;
  std::optional<uint32_t> gap;
  for (uint32_t i = piece->request().begin(); i < piece->request().end(); ++i) {
    if (i < batch.requests.size()) {
      if (pending_.contains(batch.requests[i])) continue;
      batch.requests[i] = kLeftOut;  // it has ended
      gap = i;
    }
    left_out.push_back(i);
  }
  if (gap) {
    // The thread that completes the piece closes its gaps by copying, which takes too long here. A load of
    // nothing leaves that to a worker.
    piece->BeginLoad();
    after.loads.push_back({piece, *gap, {nullptr}});
  }
  after.closed.emplace_back(piece, std::move(left_out));
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
  const auto ended = pending_.extract(id);
  if (ended.empty()) return nullptr;
  const Pending& pending = ended.mapped();
  const Request& request = *pending.request;
  slots_.erase({request.client.get(), request.slot});
  if (request.deadline) deadlines_.erase({*request.deadline, id});
  if (pending.batch) {
    LeaveBatch(pending);
  } else {
    waiting_.erase(id);
  }
  ++counts_.ends[static_cast<size_t>(how)];
  if (how == RequestEnd::kAnswered) counts_.latency.Add(Nanoseconds(now_() - request.arrived));
  return pending.request;
}

void BatcherQueue::LeaveBatch(const Pending& pending) {
  const auto batch = batches_.find(*pending.batch);
  if (batch == batches_.end()) return;
  --batch->second.open;
  ForgetIfOver(batch);
}

void BatcherQueue::ForgetIfOver(std::map<BatchKey, Batch>::iterator at) {
  const Batch& batch = at->second;
  if (!batch.closed || batch.open != 0 || batch.announced != batch.samples) return;
  lent_.erase({batch.since, at->first});
  batches_.erase(at);
}

void BatcherQueue::Fail(uint64_t id, RequestEnd how, const Status& why, After& after) {
  if (RequestPtr request = End(id, how)) after.answers.push_back({std::move(request), why, {}});
}

void BatcherQueue::Do(After after) {
  for (const After::Told& told : after.answers)
    told.request->client->Answer(told.request->slot, told.status, told.answer);
  for (const auto& [piece, left_out] : after.closed) piece->Close(left_out);
  for (Load& load : after.loads) load_(std::move(load));
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
  {
    const MutexLock lock(mutex_);
    draining_ = cancelled_ = true;
    while (!pending_.empty()) Fail(pending_.begin()->first, RequestEnd::kFeedEnded, Ended(), after);
    for (auto& [key, batch] : batches_)
      for (std::shared_ptr<GatheringPiece>& piece : batch.pieces)
        after.closed.emplace_back(std::move(piece), std::vector<uint32_t>());
    batches_.clear();
    unclosed_.clear();
    lent_.clear();
    after.hang_ups.assign(clients_.begin(), clients_.end());
    clients_.clear();
  }
  Do(std::move(after));
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
    // Over, cancelled or given up.
    if (found == batches_.end() || index >= found->second.requests.size()) return;
    const uint64_t id = std::exchange(found->second.requests[index], kLeftOut);
    Fail(id, RequestEnd::kBadInput, why, after);
  }
  Do(std::move(after));
}

Status BatcherQueue::CheckRoom() const {
  const MutexLock lock(mutex_);
  return CheckRoomLocked();
}

Status BatcherQueue::CheckRoomLocked() const {
  if (draining_) return Ended();
  if (clients_.size() >= kMaxClients) {
    return ResourceExhausted("attach a client: the batcher has " + std::to_string(kMaxClients) +
                             " clients, which is the limit; let several threads share one");
  }
  return OkStatus();
}

Status BatcherQueue::AddClient(const std::shared_ptr<Client>& client) {
  const MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckRoomLocked());
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
    } else if (Waiting() >= spec_.queue_limit) {
      refused = ResourceExhausted("submit: the batcher's queue is full: " + std::to_string(Waiting()) +
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

std::optional<BatcherQueue::Time> BatcherQueue::Poll() {
  After after;
  std::optional<Time> next;
  {
    const MutexLock lock(mutex_);
    const Time now = now_();
    Expire(now, after);
    TakeBackLate(now);
    CloseDue(now, after);
    if (!deadlines_.empty()) next = deadlines_.begin()->first;
    // Requests that are in a closed batch may be lent at any time.
    if (consumers_.size() > 1 && pending_.size() > Waiting())
      next = std::min(next.value_or(Time::max()), now + kTakeWithin);
    // Once that is past, the batch closes as soon as it has a slot.
    const std::optional<Time> due = Due();
    if (due && *due > now) next = std::min(next.value_or(Time::max()), *due);
  }
  Do(std::move(after));
  return next;
}

BatcherQueue::Counts BatcherQueue::counts() const {
  const MutexLock lock(mutex_);
  Counts counts = counts_;
  counts.waiting = static_cast<uint32_t>(Waiting());
  counts.consumers = CountConsumers();
  return counts;
}

}  // namespace pinfeed
