// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decoded_batches.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "client/src/base/client_log.h"
#include "common/base/byte_size.h"
#include "common/os/blocked_signals.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

// The engines are busy with three, of which one has the next files ready (EngineCalls). On an H100, a decoder
// alone that takes 128 images at once gave 23,700 images a second, two 32,700, three 34,800, four 35,300.
constexpr size_t kDecodersOfASession = 3;
// Of a thread: what 128 images of photographs take.
constexpr uint64_t kStagingBytes = uint64_t{32} << 20;

}  // namespace

// Purpose: one decode thread. Owns its decoder. Borrows the batches and the arena. Errors: go to the ring.
class DecodedBatches::Thread {
 public:
  // `worker`: null: the thread makes its own, which takes a while. `link`: the thread fetches batches until
  // it ends, and then decodes as the others, so it has a worker; null: it only decodes.
  Thread(DecodedBatches& batches, const std::byte* arena, std::shared_ptr<DecodeEngine> engine,
         uint64_t staging_bytes, std::unique_ptr<DecodeWorker> worker, DecodedLink* link)
      : batches_(batches),
        ring_(*batches.ring_),
        layout_(ring_.layout()),
        arena_(arena),
        engine_(std::move(engine)),
        staging_bytes_(staging_bytes),
        worker_(std::move(worker)),
        link_(link) {}

  // Throws std::system_error.
  void Start(size_t number) {
    const BlockedSignals blocked;  // the thread keeps them blocked: they are for the program's own threads
    ring_.BeginThread();
    try {
      thread_ = StartThread("pf-decode" + std::to_string(number), [this] {
        const LibraryThread library_thread;
        try {
          Run();
        } catch (const std::bad_alloc&) {
          if (link_ != nullptr) link_->Close();
          ring_.Break(ResourceExhausted("out of memory to decode images"));
        }
        ring_.EndThread();
      });
    } catch (...) {
      ring_.EndThread();
      throw;
    }
  }
  // Precondition: the ring's threads have ended.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    if (link_ != nullptr) {
      const bool decodes = FetchAll();
      link_->Close();
      if (!decodes) return;
    }
    if (const Status made = MakeWorker(); !made.ok()) {  // the first thread has its worker
      ClientLog(PF_LOG_WARNING, "images are decoded by fewer threads: " + made.message());
      return;
    }
    DecodeRing::Unit unit;
    while (ring_.Claim(&unit)) {
      if (Status done = Do(unit); !done.ok()) ring_.Break(std::move(done));
    }
  }

  // Until the link ends. Returns whether this thread is to decode then.
  bool FetchAll() {
    DecodeRing::Unit unit;
    while (ring_.Claim(&unit, /*whole=*/true)) {
      Result<DecodeRing::Failures> fetched = link_->Fetch(unit);
      if (!fetched.ok()) {
        if (fetched.status().code() == Code::kCancelled) return false;
        link_->Close();
        Status decodes = DecodeFrom(unit, fetched.status());
        if (!decodes.ok()) ring_.Break(decodes.WithContext("decode images in place of another process"));
        return decodes.ok();
      }
      std::vector<uint32_t> zeroed;  // which they are already
      if (ring_.Finish(unit, *std::move(fetched), &zeroed)) ring_.Complete(unit);
    }
    return false;
  }

  // The link has ended while this batch was fetched.
  Status DecodeFrom(const DecodeRing::Unit& unit, const Status& why) {
    if (ring_.session_state() == FeedState::kEvicted)
      return Unavailable("the session gets no more batches, and its link has ended");
    ClientLog(PF_LOG_WARNING, "from batch " + std::to_string(unit.batch.batch_index) + " of epoch " +
                                  std::to_string(unit.batch.epoch) +
                                  " on, this process decodes images itself: the link to the member of its "
                                  "broadcast that decoded them has ended: " +
                                  why.message());
    // The other process may still write to the old memory, which its mapping keeps.
    const std::unique_ptr<DecodedMemory> old = ring_.GiveBack(unit, std::move(batches_.spare_));
    if (link_->daemon_is_gone()) return OkStatus();  // few batches are left
    try {
      batches_.StartThreads(1);
    } catch (const std::system_error& error) {
      ClientLog(PF_LOG_WARNING, std::string("images are decoded by fewer threads: ") + error.what());
    }
    return OkStatus();
  }

  Status MakeWorker() {
    if (worker_ != nullptr) return OkStatus();
    ASSIGN_OR_RETURN(worker_, engine_->MakeWorker(layout_.image(), staging_bytes_));
    return OkStatus();
  }

  Status Do(const DecodeRing::Unit& unit) {
    const std::byte* const slot = arena_ + unit.batch.slot * layout_.offer().layout.slot_stride;
    DecodeRing::Failures failures;
    copies_.clear();
    if (unit.begin == unit.end) {
      RETURN_IF_ERROR(layout_.AddCopies(slot, unit.batch.samples, unit.memory->address(), copies_));
      RETURN_IF_ERROR(worker_->CopyAll(copies_));
    } else {
      RETURN_IF_ERROR(Stage(slot, unit));
      RETURN_IF_ERROR(worker_->CopyAll(copies_));
      statuses_.assign(images_.size(), OkStatus());
      if (!images_.empty()) RETURN_IF_ERROR(worker_->Decode(images_, statuses_));
      for (size_t i = 0; i < images_.size(); ++i)
        if (!statuses_[i].ok()) failures.emplace(samples_[i], Named(statuses_[i], slot, samples_[i]));
    }
    std::vector<uint32_t> zeroed;
    if (!ring_.Finish(unit, std::move(failures), &zeroed)) return OkStatus();
    copies_.clear();
    for (const uint32_t sample : zeroed) layout_.AddZeroes(sample, unit.memory->address(), copies_);
    RETURN_IF_ERROR(worker_->CopyAll(copies_));
    ring_.Complete(unit);
    return OkStatus();
  }

  // Copies the unit's encoded images to the staging memory: the slot may change at any time if the daemon is
  // broken or evicts this session, and a decoder reads its input more than once.
  Status Stage(const std::byte* slot, const DecodeRing::Unit& unit) {
    images_.clear();
    samples_.clear();
    std::byte* staged = worker_->staging().data();
    const uint64_t pixel_bytes = layout_.image().PixelBytes();
    std::byte* const pixels = unit.memory->address() + layout_.offsets()[layout_.offer().Decoded()->tensor];
    for (uint32_t i = unit.begin; i < unit.end; ++i) {
      ASSIGN_OR_RETURN(const DecodedLayout::Image image, layout_.ImageOf(slot, i));
      std::byte* const out = pixels + i * pixel_bytes;
      std::copy(image.bytes.begin(), image.bytes.end(), staged);
      switch (static_cast<ImagePlanKind>(image.plan.kind)) {
        case ImagePlanKind::kJpeg:
          images_.push_back({{staged, image.bytes.size()}, image.plan, out});
          samples_.push_back(i);
          break;
        case ImagePlanKind::kPixels:
          copies_.push_back({staged, out, pixel_bytes});
          break;
        case ImagePlanKind::kZero:
          copies_.push_back({nullptr, out, pixel_bytes});
          break;
      }
      staged += image.bytes.size();
    }
    return OkStatus();
  }

  Status Named(const Status& why, const std::byte* slot, uint32_t sample) const {
    const std::optional<uint32_t> ids = layout_.offer().sample_id_tensor;
    if (!ids) return why;
    int64_t id = 0;
    std::memcpy(&id, slot + layout_.offer().layout.tensors[*ids].offset + sample * sizeof id, sizeof id);
    return why.WithContext("sample " + std::to_string(id));
  }

  DecodedBatches& batches_;
  DecodeRing& ring_;
  const DecodedLayout& layout_;
  const std::byte* const arena_;
  const std::shared_ptr<DecodeEngine> engine_;
  const uint64_t staging_bytes_;
  std::unique_ptr<DecodeWorker> worker_;
  DecodedLink* const link_;
  std::vector<DecodeWorker::Copy> copies_;
  std::vector<ImageToDecode> images_;
  std::vector<uint32_t> samples_;  // of images_
  std::vector<Status> statuses_;
  std::thread thread_;
};

Result<std::unique_ptr<DecodedBatches>> DecodedBatches::Start(const FeedOffer& offer,
                                                              const PublishReader& reader,
                                                              const std::byte* arena,
                                                              const std::shared_ptr<DecodeEngine>& engine,
                                                              Lifeline& lifeline, UniqueFd link) {
  DecodedLayout layout(offer);
  const uint64_t image_bytes = layout.image_bytes();
  const auto unit_samples =
      static_cast<uint32_t>(std::clamp<uint64_t>(kStagingBytes / image_bytes, 1, DecodeWorker::kMaxImages));
  std::unique_ptr<DecodedBatches> batches(
      new DecodedBatches(std::make_unique<DecodeRing>(std::move(layout), reader, unit_samples)));
  RETURN_IF_ERROR(batches->Allocate(*engine, UniqueLink(link.release()), lifeline));
  DecodeRing& ring = *batches->ring_;
  batches->readers_ = std::make_unique<DecodedReaders>(ring, engine, lifeline);
  ring.SetHooks({[readers = batches->readers_.get()] { readers->Accept(); },
                 [readers = batches->readers_.get()] { readers->Wake(); }});
  const uint64_t staging_bytes = unit_samples * image_bytes;
  // The first worker shows here whether there can be any. What a reader needs when its link ends it has, too:
  // later the GPU's memory may be full.
  ASSIGN_OR_RETURN(std::unique_ptr<DecodeWorker> worker,
                   engine->MakeWorker(ring.layout().image(), staging_bytes));
  if (batches->link_ != nullptr) {
    ASSIGN_OR_RETURN(batches->spare_, engine->MakeMemory(ring.layout().offer(), ring.layout().offsets(),
                                                         ring.layout().bytes(), false));
  }
  for (size_t i = 0; i < kDecodersOfASession; ++i) {
    batches->threads_.push_back(std::make_unique<Thread>(
        *batches, arena, engine, staging_bytes, std::move(worker), i == 0 ? batches->link_.get() : nullptr));
    worker = nullptr;
  }
  try {
    if (batches->link_ == nullptr)
      batches->StartThreads(0);
    else
      batches->threads_[0]->Start(0);
  } catch (const std::system_error& error) {
    (void)batches->Stop(SteadyTime::max());
    return ResourceExhausted("start a thread that decodes images: " + std::string(error.what()));
  }
  return batches;
}

Status DecodedBatches::Allocate(DecodeEngine& engine, UniqueLink link, const Lifeline& lifeline) {
  if (!link) return ring_->Allocate(engine, false);
  Status shared = ring_->Allocate(engine, true);
  if (shared.ok()) {
    Result<std::unique_ptr<DecodedLink>> made =
        DecodedLink::Create(std::move(link), lifeline.fd(), ring_->layout().bytes());
    if (made.ok()) {
      link_ = *std::move(made);
      return OkStatus();
    }
    shared = made.status();
  }
  ClientLog(
      PF_LOG_WARNING,
      "this process decodes images that another member of its broadcast decodes, too: " + shared.message());
  return ring_->Allocate(engine, false);
}

void DecodedBatches::StartThreads(size_t first) {
  for (size_t i = first; i < threads_.size(); ++i) threads_[i]->Start(i);
}

DecodedBatches::DecodedBatches(std::unique_ptr<DecodeRing> ring) : ring_(std::move(ring)) {}
DecodedBatches::~DecodedBatches() = default;

void DecodedBatches::AwaitDecoded(uint64_t sequence, std::chrono::nanoseconds at_most) const {
  (void)ring_->AwaitDecoded(sequence, std::chrono::steady_clock::now() + at_most);
}

Status DecodedBatches::Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream) {
  return ring_->Write(batch, outputs, stream, std::chrono::steady_clock::now() + kLongestDecode);
}

Status DecodedBatches::Stop(SteadyTime deadline) {
  ring_->RequestStop();
  if (readers_ != nullptr) readers_->Stop();
  if (link_ != nullptr) link_->Stop();
  if (!ring_->AwaitThreads(deadline))
    return {Code::kDeadlineExceeded, "the GPU still decodes images; does it answer?"};
  for (const std::unique_ptr<Thread>& thread : threads_) thread->Join();
  if (readers_ != nullptr) readers_->Join();
  if (const uint64_t kept = ring_->AwaitWrites(deadline); kept > 0) {
    ClientLog(PF_LOG_WARNING, "a closed feed leaves " + ByteSize(kept) +
                                  " of the GPU's memory until this process ends: the GPU has not finished "
                                  "the work that reads it in time, or its context is broken");
  }
  return OkStatus();
}

}  // namespace pinfeed
