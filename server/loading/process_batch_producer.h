// SPDX-License-Identifier: Apache-2.0
// Batches from processes of the feed's user.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/feed_spec.h"
#include "common/wire/shared_page.h"
#include "server/loading/batch_producer.h"
#include "server/loading/encoded_images.h"
#include "server/loading/producer_group.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// The dataset of a feed that processes fill, as clients and operators see it.
DatasetInfo InfoOf(const ProducedDataset& dataset);
// The tensors of its batches: the dataset's fields; those of encoded images, unless that is null; the
// samples' ids (kSampleIdTensor).
std::vector<TensorSpec> TensorsOf(const ProducedDataset& dataset, const EncodedImages* images = nullptr);

// Purpose: prepares the memory of each batch and writes the ids of its samples; a group of processes does the
// rest. A process can write to all of the memory that it fills: an exclusive feed's arena, or, for a shared
// feed, staging memory of the feed's own, from where workers copy each batch to its slot. Images that a
// process hands over as files are decoded by workers, from a copy of each file. Owns: the staging memory,
// with a place for each slot. Borrows: the workers, which outlive it: they also allocate memory on
// each slot's first use. Precondition: the spec has a produced dataset; the arena is on the host. Threads:
// any. Errors: memory that the host lacks completes the request with an error; an image that cannot be used
// is reported in the batch (kImageErrorTensor), which is published nevertheless; else those of the group.
class ProcessBatchProducer final : public BatchProducer {
 public:
  // `staging`: of the arena's layout and slots; null: processes fill the arena itself. `one_off`: for batches
  // that do not fit into a slot; `images`: what loads images. Null: there are none.
  ProcessBatchProducer(uint64_t feed, const FeedSpec& spec, Sampler sampler, WorkerPool& workers,
                       std::unique_ptr<Arena> staging, std::unique_ptr<OneOffMemory> one_off = nullptr,
                       std::unique_ptr<const EncodedImages> images = nullptr);

  void Announce(const PieceRequest& request) override { group_->Announce(request); }
  void Produce(std::shared_ptr<PieceRequest> request) override;
  void Cancel() override { group_->Cancel(); }
  ProducerTimes times() const override;
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return "sample " + std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return no_pixel_ops_; }
  std::shared_ptr<ProducerGroup> processes() const override { return group_; }
  const Arena* staging() const override { return staging_.get(); }

 private:
  class DecodeTask;
  static Piece PieceOf(const PieceRequest& request);
  Status Prepare(const PieceRequest& request);
  void PrepareAndProduce(std::shared_ptr<PieceRequest> request);
  void OnFilled(std::shared_ptr<PieceRequest> request);
  // What its process filled is in its slot, or will be. Its images are left.
  void DecodeImages(std::shared_ptr<PieceRequest> request);
  // Writes why the images of a batch cannot be used, or that they can.
  void WriteImageError(const SamplePlaces& places, const Status& status) const;
  // Copies those bytes of a slot that lie in [begin, end) and belong to the request's samples, but not their
  // ids, which processes may have changed. Precondition: the request is prepared.
  void Copy(const PieceRequest& request, uint64_t begin, uint64_t end);

  const DatasetInfo info_;
  const size_t id_tensor_;
  const uint32_t batch_size_;
  const Sampler sampler_;
  WorkerPool& workers_;
  const std::optional<DeferredPixelOps> no_pixel_ops_;
  const std::unique_ptr<Arena> staging_;
  const std::unique_ptr<const EncodedImages> images_;
  std::atomic<uint64_t> staged_bytes_{0};
  std::atomic<uint64_t> read_ns_{0};  // of images
  std::atomic<uint64_t> decode_ns_{0};
  const std::shared_ptr<ProducerGroup> group_;
  std::array<std::atomic<bool>, kMaxSlots> prepared_{};  // slots that need no worker any more
};

}  // namespace pinfeed
