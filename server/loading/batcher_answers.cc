// SPDX-License-Identifier: Apache-2.0
// The part of BatcherQueue for consumers.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/quote.h"
#include "server/loading/batcher_queue.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxErrorText = 200;  // what a frame has room for
// The caller's thread serves others too: this takes about a millisecond.
constexpr size_t kCopiedAtOnce = size_t{4} << 20;

}  // namespace

void BatcherQueue::AddConsumer(ConsumerId consumer, int32_t pid) {
  const MutexLock lock(mutex_);
  consumers_.emplace(consumer, pid);
}

void BatcherQueue::OnLent(BatchKey key) {
  const MutexLock lock(mutex_);
  const auto found = batches_.find(key);
  if (found == batches_.end() || found->second.consumer != 0) return;
  lent_.erase({found->second.since, key});
  found->second.since = now_();
  lent_.emplace(found->second.since, key);
}

uint32_t BatcherQueue::Take(BatchKey key, ConsumerId consumer) {
  const MutexLock lock(mutex_);
  const auto found = batches_.find(key);
  if (found == batches_.end() || !found->second.closed) return 0;
  Batch& batch = found->second;
  lent_.erase({batch.since, key});
  batch.consumer = consumer;
  batch.since = now_();
  return batch.open;
}

void BatcherQueue::TakeBackLate(Time now) {
  while (consumers_.size() > 1 && !draining_ && !lent_.empty() && lent_.begin()->first + kTakeWithin <= now) {
    Batch& batch = batches_.at(lent_.begin()->second);
    lent_.erase(lent_.begin());
    std::vector<uint64_t> ids = batch.requests;
    std::erase_if(ids, [this](uint64_t id) PF_REQUIRES(mutex_) { return !pending_.contains(id); });
    const auto stays = [this](uint64_t id)
                           PF_REQUIRES(mutex_) { return pending_.at(id).taken_back >= kMaxTakenBack; };
    if (std::ranges::any_of(ids, stays)) continue;
    batch.requests.clear();  // a later Take returns 0
    for (const uint64_t id : ids) {
      Pending& pending = pending_.at(id);
      ++pending.taken_back;
      WaitAgain(id, pending);
    }
  }
}

void BatcherQueue::WaitAgain(uint64_t id, Pending& pending) {
  LeaveBatch(pending);
  pending.batch.reset();
  waiting_.insert(id);
  ++counts_.again;
}

std::vector<BatcherQueue::ConsumerCounts> BatcherQueue::CountConsumers() const {
  std::map<ConsumerId, ConsumerCounts> counts;
  for (const auto& [id, pid] : consumers_) counts[id].pid = pid;
  const Time now = now_();
  for (const auto& [key, batch] : batches_) {
    const auto consumer = counts.find(batch.consumer);
    if (consumer == counts.end()) continue;
    ++consumer->second.batches;
    consumer->second.requests += batch.open;
    consumer->second.oldest_ns = std::max(consumer->second.oldest_ns, Nanoseconds(now - batch.since));
  }
  std::vector<ConsumerCounts> list;
  list.reserve(counts.size());
  for (const auto& [id, count] : counts) list.push_back(count);
  return list;
}

Result<uint32_t> BatcherQueue::Answer(BatchKey key, ConsumerId consumer, std::span<const Output> outputs,
                                      size_t* next) {
  After after;
  size_t bytes = 0;
  uint32_t answered = 0;
  {
    const MutexLock lock(mutex_);
    const auto found = batches_.find(key);
    // Dealt again, or all its requests ended: nobody waits for these answers.
    if (found == batches_.end() || found->second.consumer != consumer) {
      *next = outputs.size();
      return 0;
    }
    std::vector<uint64_t> requests = found->second.requests;
    std::erase(requests, kLeftOut);
    if (outputs.size() != requests.size()) {
      return InvalidArgument("answer: there are " + std::to_string(outputs.size()) +
                             " outputs for a batch of " + std::to_string(requests.size()));
    }
    for (; *next < outputs.size() && bytes < kCopiedAtOnce; ++*next) {
      const Output& output = outputs[*next];
      Status status;
      if (output.failed) {
        // Copied first: the consumer may change it meanwhile.
        const std::string text(reinterpret_cast<const char*>(output.bytes.data()),
                               std::min(output.bytes.size(), kMaxErrorText));
        status = Status(Code::kUnknown, "the consumer answered with an error: " + EscapeUnprintable(text));
      } else if (output.length > spec_.max_answer_bytes) {
        status = Status(Code::kUnknown, "the consumer's answer has " + std::to_string(output.length) +
                                            " bytes, and at most " + std::to_string(spec_.max_answer_bytes) +
                                            " are possible (the batcher's max_answer_bytes)");
      }
      RequestPtr request =
          End(requests[*next], status.ok() ? RequestEnd::kAnswered : RequestEnd::kModelError);
      if (request == nullptr) continue;
      ++answered;
      const std::span<const std::byte> answer = status.ok() ? output.bytes : std::span<const std::byte>();
      bytes += answer.size();
      after.answers.push_back({std::move(request), std::move(status), answer});
    }
  }
  Do(std::move(after));
  return answered;
}

void BatcherQueue::RemoveConsumer(ConsumerId consumer) {
  After after;
  {
    const MutexLock lock(mutex_);
    consumers_.erase(consumer);
    std::vector<BatchKey> taken;
    for (const auto& [key, batch] : batches_)
      if (batch.consumer == consumer) taken.push_back(key);
    for (const BatchKey& key : taken) {
      GiveUp(key,
             Unavailable("the process that had taken the request's batch ended without an answer; submit it "
                         "again, or let the batcher deal such requests again (redeal)"),
             after);
    }
    CloseDue(now_(), after);
  }
  Do(std::move(after));
}

void BatcherQueue::GiveUp(BatchKey key, const Status& why, After& after) {
  for (const uint64_t id : std::exchange(batches_.at(key).requests, {})) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) continue;  // it was left out, or has ended
    Pending& pending = found->second;
    if (!spec_.redeal || draining_ || pending.again >= kMaxDealtAgain) {
      Fail(id, RequestEnd::kConsumerGone, why, after);
      continue;
    }
    ++pending.again;
    WaitAgain(id, pending);
  }
}

}  // namespace pinfeed
