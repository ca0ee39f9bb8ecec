// SPDX-License-Identifier: Apache-2.0
#include "server/loading/cache_fill.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "common/base/log.h"
#include "server/loading/sample_buffers.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {
namespace {

// After a rest, the filling ends again if the cache has this many images in a row.
constexpr uint64_t kLooks = 32;

}  // namespace

// Purpose: decodes some images. Owns: a share of the CacheFill.
class CacheFill::DecodeTask final : public FillTask {
 public:
  DecodeTask(std::shared_ptr<CacheFill> fill, std::shared_ptr<FeedShare> share, std::vector<File> files)
      : FillTask(std::move(share), static_cast<uint32_t>(files.size()), 1),
        fill_(std::move(fill)),
        files_(std::move(files)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) override {
    for (uint32_t i = begin; i < end; ++i) {
      const File file = std::move(files_[i]);  // freed as soon as it is decoded
      if (refused_.load(std::memory_order_relaxed) >= kRefusals || !fill_->Ahead(file.place)) continue;
      if (Decode(file, scratch)) {
        kept_.store(true, std::memory_order_relaxed);
        continue;
      }
      refused_.fetch_add(1, std::memory_order_relaxed);
      uint64_t first = first_refused_.load(std::memory_order_relaxed);
      while (file.place < first && !first_refused_.compare_exchange_weak(first, file.place)) {
      }
    }
  }
  void Done() override {
    const bool too_many = refused_.load() >= std::min<size_t>(kRefusals, files_.size());
    fill_->OnDecoded(kept_.load(), too_many ? std::optional(first_refused_.load()) : std::nullopt);
  }

 private:
  // Whether the cache keeps it.
  bool Decode(const File& file, SampleScratch& scratch) const {
    scratch.Begin(file.contents.sample);
    SampleScratch::Buffers& buffers = scratch.buffers();
    LargeSamples::Attempts attempts(HostMemoryLedger::ForThisProcess().large_samples());
    bool kept = false;
    try {
      kept = fill_->loader_->images()->Keep(file.contents, buffers.image, buffers.geometry);
    } catch (const std::bad_alloc&) {
      // How much an image takes is its file's word. The feed meets the same and says so.
    }
    TrimAfter(attempts, scratch);
    return kept;
  }

  const std::shared_ptr<CacheFill> fill_;
  std::vector<File> files_;
  std::atomic<bool> kept_{false};  // one of them at least
  std::atomic<uint32_t> refused_{0};
  std::atomic<uint64_t> first_refused_{UINT64_MAX};  // place
};

CacheFill::CacheFill(std::shared_ptr<const SampleLoader> loader, Sampler sampler, const FeedSpec& spec,
                     WorkerPool& workers, WorkerPool& readers)
    : loader_(std::move(loader)), places_(std::move(sampler), spec), workers_(workers), readers_(readers) {}

void CacheFill::Resume(const FeedShare& feed) {
  if (resume_at_.exchange(kNever, std::memory_order_acquire) == kNever) return;  // another thread did
  try {
    readers_.Start();
  } catch (const std::system_error& error) {
    spdlog::warn("cannot start the readers, so the cache is not filled ahead: {}", error.what());
    return;
  }
  {
    const MutexLock lock(mutex_);
    if (share_ == nullptr) share_ = std::make_shared<FeedShare>(feed.owner, feed.feed);
    share_->memory_is_short = feed.memory_is_short.load();
  }
  SubmitRead();
}

void CacheFill::SubmitRead() {
  const MutexLock lock(mutex_);
  if (!stopped_.load(std::memory_order_relaxed))
    readers_.Submit(std::make_shared<FunctionTask>(
        share_, 1, [self = shared_from_this()](uint32_t, uint32_t, SampleScratch& scratch) {
          std::vector<File> files;
          try {
            files = self->Read(scratch);
          } catch (const std::bad_alloc&) {  // the memory is better used by the feeds
          }
          self->OnRead(std::move(files));
        }));
}

std::vector<CacheFill::File> CacheFill::Read(SampleScratch& scratch) {
  const ImageSource& images = *loader_->images();
  const uint64_t begun = begun_.load(std::memory_order_relaxed);
  next_ = std::max(next_, begun + 1);
  std::vector<File> files;
  uint64_t bytes = 0;
  while (files.size() < files_ && bytes < kMaxBytes && cached_run_ < kCachedRun &&
         !stopped_.load(std::memory_order_relaxed)) {
    const std::optional<OrderPlaces::Sample> sample = places_.From(next_);
    if (!sample || sample->place > begun + places_.epoch()) break;
    next_ = sample->place + 1;
    ++cached_run_;
    scratch.Begin(sample->id);
    std::optional<CacheableFile> contents = images.ReadToKeep(loader_->dataset(), sample->id, kMaxFileBytes);
    if (!contents) continue;
    cached_run_ = 0;
    bytes += contents->encoded.size();
    files.push_back({sample->place, *std::move(contents)});
  }
  return files;
}

void CacheFill::OnRead(std::vector<File> files) {
  if (files.empty()) return Rest();
  const MutexLock lock(mutex_);
  if (!stopped_.load(std::memory_order_relaxed))
    workers_.SubmitIdle(std::make_shared<DecodeTask>(shared_from_this(), share_, std::move(files)));
}

void CacheFill::OnDecoded(bool kept_any, std::optional<uint64_t> refused) {
  files_ = kept_any ? kMaxFiles : kRefusals;
  if (kept_any) rest_ = kMinRest;
  if (!refused) return SubmitRead();
  next_ = *refused;
  Rest();
}

void CacheFill::Rest() {
  const uint64_t samples = rest_;
  rest_ = std::min(2 * rest_, kMaxRest);
  files_ = kRefusals;
  cached_run_ = kCachedRun - kLooks;
  // From here on, another thread may be at work.
  resume_at_.store(begun_.load(std::memory_order_relaxed) + samples, std::memory_order_release);
}

void CacheFill::Stop() {
  const MutexLock lock(mutex_);
  stopped_.store(true, std::memory_order_relaxed);
  if (share_ != nullptr) workers_.WithdrawIdle(*share_);
}

}  // namespace pinfeed
