// SPDX-License-Identifier: Apache-2.0
// The state of a feed for status and metrics, as plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/histogram.h"
#include "common/base/status.h"
#include "common/spec/feed_spec.h"
#include "server/feed/recent_stalls.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batcher_queue.h"

namespace pinfeed {

// What status and metrics show of a feed. Counters only grow.
struct FeedSnapshot {
  uint64_t id = 0;
  std::string dataset;  // path
  std::string name;     // the dataset's configured name; without one, the last part of its path
  uint64_t dataset_samples = 0;
  uint32_t batch_size = 0;
  bool shuffled = false;
  Sharing sharing = Sharing::kExclusive;
  uint32_t group_size = 0;  // members that it waits for before its first batch; 0: it is not shared
  bool on_device = false;
  std::string decode;  // DecodeText
  // Of the samples on the GPU, which other feeds may share; 0: they are not there.
  uint64_t resident_bytes = 0;
  bool resident_loading = false;
  std::string resident_note;  // FeedParts::resident_note
  std::string state;          // "waiting" (for its group), "running", "draining", "ended", "failed"
  Status error;
  uint64_t epoch = 0;        // of the batch published last
  uint64_t batch_index = 0;  // of the same batch, in its epoch
  uint32_t slots_free = 0, slots_filling = 0, slots_ready = 0, slots_lent = 0;
  uint32_t max_workers = 0;  // BatchProducer::max_workers; 0: others fill it
  std::string slot_states;   // one letter per slot: free, workers fill it, copied, ready, lent
  uint64_t arena_bytes = 0;
  uint64_t batches = 0;  // published; a batch shared by a group counts once
  uint64_t samples = 0;
  uint64_t bytes = 0;
  uint64_t bad_samples = 0;
  std::vector<BadSampleNote> last_bad_samples;  // the newest few
  uint64_t ignored_releases = 0;                // release words that did not match the generation lent
  uint64_t read_ns = 0, decode_ns = 0;          // worker time
  uint32_t producers = 0, producers_busy = 0;   // processes that fill the batches; of these, with a task
  // Of the producer that has been at its task for longest; 0: none has a task.
  int32_t slowest_producer_pid = 0;
  std::string slowest_producer_task;
  uint64_t slowest_producer_ns = 0;
  std::string data_end;              // the first batch that does not exist, as far as producers said
  uint64_t batches_dealt_again = 0;  // because a producer ended or took too long
  // Batches that did not fit into their slot; bytes of them that processes have now, and had at most.
  uint64_t one_off_batches = 0, one_off_bytes = 0, one_off_peak_bytes = 0;
  uint64_t cache_hits = 0, cache_misses = 0;  // images that the decoded cache had, and had not
  ReadAheadUse read_ahead;
  uint64_t staged_bytes = 0;                     // copied from where producers write
  std::optional<BatcherQueue::Counts> requests;  // of a batcher
  // Time that the trainers waited for a batch: the mean of what they report, limited to the elapsed time.
  uint64_t starved_ns = 0;
  uint64_t full_ns = 0;               // every slot was ready or lent: the trainers are slow
  uint64_t running_ns = 0;            // since the first batch was planned
  StallTimes stall_ns{};              // waiting by cause: the trainers' mean, and for kConsumer the feed's
  std::optional<StallShares> recent;  // of stall_ns, once known
  DurationCounts filling;             // batches, from planned to filled
  DurationCounts lent;                // batches, from published until the daemon saw the last release
  std::string bound_on;               // the name of a StallCause
  double bound_share = 0;             // share of running_ns that bound_on explains
};

// The state of one participant of a feed.
struct ParticipantSnapshot {
  uint32_t slots_lent = 0;
  uint64_t ignored_releases = 0;
  uint64_t oldest_lease_ns = 0;  // for how long it has held a batch, or taken none of those that are ready
  // kConsumer: the feed had no free slot and this session held some. kGroup: other sessions held more.
  StallTimes stall_ns{};
  std::optional<StallShares> recent;
};

}  // namespace pinfeed
