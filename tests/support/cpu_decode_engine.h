// SPDX-License-Identifier: Apache-2.0
// A DecodeEngine without a GPU: it decodes with the daemon's library, so its pixels are exactly the workers'.
// "Device memory" is the process's own, and "streams" execute what is queued at once, or when the test says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/src/decode/decode_engine.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: see above. Threads: any.
class CpuDecodeEngine final : public DecodeEngine, public std::enable_shared_from_this<CpuDecodeEngine> {
 public:
  // `refuse`: says why an image cannot be decoded, by its bytes; OK: it can.
  explicit CpuDecodeEngine(std::function<Status(std::span<const std::byte>)> refuse = {})
      : refuse_(std::move(refuse)) {}

  const std::string& kind() const override { return kind_; }
  Result<std::unique_ptr<DecodeWorker>> MakeWorker(const OfferedImage& image,
                                                   uint64_t staging_bytes) override;
  Result<std::unique_ptr<DecodedMemory>> MakeMemory(const FeedOffer& offer,
                                                    const std::vector<uint64_t>& offsets, uint64_t bytes,
                                                    bool shared) override;
  Result<CopyToForeign> Import(UniqueFd memory, uint64_t bytes) override;

  // Makes decoders wait, and lets them go on. / Likewise the end of what Write queues.
  void HoldDecoders(bool hold) PF_EXCLUDES(mutex_);
  void HoldWrites(bool hold) PF_EXCLUDES(mutex_);
  // Makes it have memory for two workers and batches only.
  void RunOutOfMemory() PF_EXCLUDES(mutex_);
  // Makes every call of a decoder fail.
  void Break(Status error) PF_EXCLUDES(mutex_);
  // Workers and memories that are alive. / Images decoded so far.
  size_t alive() const PF_EXCLUDES(mutex_);
  size_t decoded() const PF_EXCLUDES(mutex_);
  // Waits until as many images are decoded.
  void AwaitDecoded(size_t images) const PF_EXCLUDES(mutex_);
  // Waits until as many decoders are held. Returns false if they are not in time.
  bool AwaitHeld(size_t decoders = 1, std::chrono::milliseconds at_most = std::chrono::seconds(30)) const
      PF_EXCLUDES(mutex_);

 private:
  class Worker;
  class Memory;
  void Count(int change) PF_EXCLUDES(mutex_);
  Status CheckMemory(uint64_t bytes) const PF_EXCLUDES(mutex_);
  Status BeginDecode() PF_EXCLUDES(mutex_);
  void EndDecode(size_t images) PF_EXCLUDES(mutex_);
  bool writes_held() const PF_EXCLUDES(mutex_);

  const std::string kind_ = "the test's CPU";
  const std::function<Status(std::span<const std::byte>)> refuse_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool hold_decoders_ PF_GUARDED_BY(mutex_) = false;
  bool hold_writes_ PF_GUARDED_BY(mutex_) = false;
  bool no_memory_ PF_GUARDED_BY(mutex_) = false;
  size_t held_ PF_GUARDED_BY(mutex_) = 0;
  size_t alive_ PF_GUARDED_BY(mutex_) = 0;
  size_t decoded_ PF_GUARDED_BY(mutex_) = 0;
  Status broken_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
