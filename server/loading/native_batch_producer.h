// SPDX-License-Identifier: Apache-2.0
// Batches from a dataset, by the host's worker threads and, where reads may be slow, its reader threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "server/loading/batch_producer.h"
#include "server/loading/fetched_sample.h"
#include "server/loading/sample_loader.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

class CacheFill;
class ReadAhead;

// The workers of `workers` that may load at once for a feed whose samples are only read, to be copied to a
// GPU. With more of many, the copies are slower, since both want the host's memory (decision 0014).
uint32_t WorkersBesideCopies(uint32_t workers);

// Purpose: loads the samples of a piece on the pools. Of a local dataset, one worker reads and decodes each
// sample; where reads are slow, ReadAhead has the storage read ahead of it, and CacheFill uses idle workers.
// Of a remote one, readers read: straight into the slot where nothing is to be decoded or transformed, else
// into memory, from which workers decode (RemotePiece bounds it). Owns: the loader. Borrows: the pools, which
// outlive it; the readers are used for a remote dataset only. Threads: any. Errors: a sample that cannot be
// read, decoded or transformed is reported as bad; memory that the host lacks completes the request with an
// error.
class NativeBatchProducer final : public BatchProducer {
 public:
  // `spec`: that of the feed.
  NativeBatchProducer(std::unique_ptr<const SampleLoader> loader, Sampler sampler, const FeedSpec& spec,
                      const BatchLayout& layout, WorkerPool& workers, WorkerPool& readers);
  ~NativeBatchProducer() override;

  void Produce(std::shared_ptr<PieceRequest> request) override;
  uint32_t max_workers(const FeedShare& share) const override {
    return remote_ ? UINT32_MAX : std::min(workers_.threads(), share.MaxWorkers());
  }
  void Cancel() override;
  void Drain() override;
  ProducerTimes times() const override;
  CacheUse cache_use() const override;
  ReadAheadUse read_ahead_use() const override;
  const DatasetInfo& dataset() const override { return loader_->dataset().info(); }
  std::string Describe(uint64_t sample) const override { return loader_->dataset().Describe(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return loader_->tail(); }

 private:
  class Task;
  class RemotePiece;
  using Fetched = std::unique_ptr<const FetchedSample>;
  // `fetched`: the samples' bytes, of which each is freed as soon as it is loaded; empty: to be read from the
  // dataset. `place`: of the first sample, see ReadAhead.
  Status Load(const PieceRequest& request, uint32_t begin, uint32_t end, SampleScratch& scratch,
              std::span<Fetched> fetched, uint64_t place = 0);
  Fetched Fetch(const PieceRequest& request, uint32_t index, SampleScratch& scratch);
  // How many samples a thread loads at once.
  uint32_t ChunkSamples() const;

  const std::shared_ptr<const SampleLoader> loader_;
  const Sampler sampler_;
  const OnBadSample on_bad_sample_;
  const bool remote_;
  const bool fetches_;  // samples are fetched into memory before they are loaded
  WorkerPool& workers_;
  WorkerPool& readers_;
  const std::shared_ptr<ReadAhead> read_ahead_;  // null: the dataset is remote
  const std::shared_ptr<CacheFill> cache_fill_;  // null: the cache does not serve the feed
  uint32_t chunk_samples_ = 1;                   // that a thread loads at once; the least if by_time_
  bool by_time_ = false;
  std::atomic<uint64_t> latest_sample_ns_{UINT64_MAX};  // the mean of the chunk that was loaded last
  std::atomic<uint64_t> remote_pieces_{0};
  std::atomic<uint64_t> read_ns_{0};
  std::atomic<uint64_t> decode_ns_{0};
};

}  // namespace pinfeed
