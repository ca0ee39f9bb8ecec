// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/copy_engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/os/start_thread.h"

namespace pinfeed {
namespace {

using std::chrono::nanoseconds;

// Two copies in flight keep the link busy. Short copies may all complete while the thread sleeps, so more are
// allowed, up to about half a millisecond of work.
constexpr size_t kMinInFlight = 2;
constexpr size_t kMaxInFlight = 32;
constexpr uint64_t kMaxInFlightBytes = uint64_t{32} << 20;
// A smaller copy completes faster than a sleep takes, so the thread polls for it.
constexpr uint64_t kSpinBytes = uint64_t{1} << 20;
// Reading releases takes the feeds' locks, which the workers also need.
constexpr nanoseconds kReadInterval{5'000};
constexpr nanoseconds kShortPause{20'000};
constexpr nanoseconds kLongPause{1'000'000};
// How long to wait for copies in flight when the engine fails. A working GPU completes them sooner; a lost
// one may never report.
constexpr std::chrono::seconds kDrainTimeout{2};
// The kernel's default slack of 50 us would dominate a short pause.
constexpr unsigned long kTimerSlackNs = 1000;

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point start) {
  return static_cast<uint64_t>(nanoseconds(std::chrono::steady_clock::now() - start).count());
}

uint64_t Nanoseconds(std::chrono::steady_clock::time_point time) {
  return static_cast<uint64_t>(nanoseconds(time.time_since_epoch()).count());
}

}  // namespace

CopyEngine::Lane::Lane(CopyEngine& engine) : engine_(engine) {
  const MutexLock lock(engine_.mutex_);
  engine_.lanes_.push_back(this);
}

CopyEngine::Lane::~Lane() {
  const MutexLock lock(engine_.mutex_);
  PF_CHECK(jobs_.empty(), "a lane is destroyed only when its jobs are done");
  std::erase(engine_.lanes_, this);
}

void CopyEngine::Lane::Submit(Job job) {
  const Status failed = Push(job);
  if (!failed.ok()) return job.done(failed, {});
  engine_.changed_.NotifyOne();
}

Status CopyEngine::Lane::Push(Job& job) {
  const MutexLock lock(engine_.mutex_);
  if (!engine_.failed_.ok()) return engine_.failed_;
  jobs_.push_back({std::move(job), Clock::now()});
  ++engine_.changes_;
  return OkStatus();
}

void CopyEngine::Lane::SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) {
  const MutexLock lock(engine_.mutex_);
  waiting_ = waiting;
  reader_ = reader;
  if (!waiting) return;
  ++engine_.changes_;
  engine_.changed_.NotifyOne();
}

Result<std::unique_ptr<CopyEngine>> CopyEngine::Create(std::shared_ptr<const CudaDevice> device,
                                                       std::function<void(const Status&)> on_failure) {
  std::unique_ptr<CopyEngine> engine(new CopyEngine(std::move(device), std::move(on_failure)));
  RETURN_IF_ERROR(engine->Open());
  engine->thread_ = StartThread(engine->ThreadName(), [raw = engine.get()] { raw->Run(); });
  return engine;
}

Status CopyEngine::Open() {
  const CudaDriver& driver = device_->driver();
  const std::string what = "create the copy stream of GPU " + device_->uuid();
  const CudaScope scope(*device_);
  RETURN_IF_ERROR(scope.status());
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(CudaStatus(driver.cuCtxGetStreamPriorityRange(&least, &greatest), what));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(
      CudaStatus(driver.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest), what));
  stream_.reset({device_.get(), stream});
  for (size_t i = 0; i < kMaxInFlight; ++i) {
    CUevent event = nullptr;
    RETURN_IF_ERROR(CudaStatus(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), what));
    idle_events_.emplace_back(UniqueCudaEvent::Handle{device_.get(), event});
  }
  return OkStatus();
}

CopyEngine::~CopyEngine() {
  {
    const MutexLock lock(mutex_);
    PF_CHECK(lanes_.empty(), "arenas are destroyed before their copy engine");
    stopping_ = true;
    ++changes_;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

CopyEngine::Counters CopyEngine::counters() const {
  return {copies_.load(std::memory_order_relaxed),
          bytes_.load(std::memory_order_relaxed),
          peer_bytes_.load(std::memory_order_relaxed),
          copy_ns_.load(std::memory_order_relaxed),
          queue_ns_.load(std::memory_order_relaxed),
          errors_.load(std::memory_order_relaxed),
          durations_.Counts()};
}

nanoseconds CopyEngine::Stalled() const {
  std::optional<Clock::time_point> since;
  if (const Clock::rep progress = last_progress_.load(std::memory_order_relaxed); progress != 0) {
    since = Clock::time_point(Clock::duration(progress));
  } else {  // the copy thread is idle: check for jobs that it has not taken
    const MutexLock lock(mutex_);
    for (const Lane* lane : lanes_) {
      if (lane->jobs_.empty()) continue;
      since = std::min(since.value_or(Clock::time_point::max()), lane->jobs_.front().since);
    }
  }
  return since ? Clock::now() - *since : nanoseconds(0);
}

void CopyEngine::Run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  const CudaScope scope(*device_);
  if (const Status entered = scope.status(); !entered.ok()) Fail(entered);
  while (true) {
    Job job;
    bool has_job = false;
    bool stopped = false;
    {
      const MutexLock lock(mutex_);
      has_job = NextJobLocked(&job);
      stopped = stopping_ && !has_job && in_flight_.empty();
    }
    if (stopped) return;
    if (has_job) {
      if (const Status enqueued = Enqueue(&job); !enqueued.ok()) {
        Fail(enqueued);
        job.done(Unavailable(enqueued.message()), {});
      }
      continue;
    }
    const auto now = Clock::now();
    if (now >= next_read_) {
      has_readers_ = ReadReleases();
      next_read_ = now + kReadInterval;
    }
    if (!Retire()) Pause();
  }
}

bool CopyEngine::NextJobLocked(Job* job) {
  const bool may_enqueue = in_flight_.size() < kMinInFlight ||
                           (in_flight_.size() < kMaxInFlight && in_flight_bytes_ < kMaxInFlightBytes);
  if (!may_enqueue || lanes_.empty()) return false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = *lanes_[(next_lane_ + i) % lanes_.size()];
    if (lane.jobs_.empty()) continue;
    next_lane_ = (next_lane_ + i + 1) % lanes_.size();
    *job = std::move(lane.jobs_.front().job);
    if (last_progress_.load(std::memory_order_relaxed) == 0)
      last_progress_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    queue_ns_.fetch_add(NanosecondsSince(lane.jobs_.front().since), std::memory_order_relaxed);
    lane.jobs_.pop_front();
    return true;
  }
  return false;
}

Status CopyEngine::Enqueue(Job* job) {
  const std::string gpu = "GPU " + device_->uuid();
  const CudaDriver& driver = device_->driver();
  const CUstream stream = stream_.get().native;
  const auto now = Clock::now();
  for (const Copy& copy : job->copies) {
    const CUresult copied = copy.from != nullptr
                                ? driver.cuMemcpyHtoDAsync(copy.to, copy.from, copy.bytes, stream)
                                : driver.cuMemcpyDtoDAsync(copy.to, copy.from_device, copy.bytes, stream);
    if (copied != CUDA_SUCCESS)
      return CudaStatus(copied, "copy " + std::to_string(copy.bytes) + " bytes of a batch to " + gpu);
  }
  const CUresult recorded = driver.cuEventRecord(idle_events_.back().get().native, stream);
  if (recorded != CUDA_SUCCESS) return CudaStatus(recorded, "record the end of a copy to " + gpu);
  UniqueCudaEvent event = std::move(idle_events_.back());
  idle_events_.pop_back();
  if (in_flight_.empty()) busy_since_ = Clock::now();
  in_flight_bytes_ += job->bytes();
  in_flight_.push_back({std::move(*job), std::move(event), now});
  *job = Job{};
  return OkStatus();
}

bool CopyEngine::Retire() {
  bool any = false;
  while (!in_flight_.empty()) {
    const CUresult result = device_->driver().cuEventQuery(in_flight_.front().event.get().native);
    if (result == CUDA_ERROR_NOT_READY) break;
    if (result != CUDA_SUCCESS) {
      Fail(CudaStatus(result, "copy a batch to GPU " + device_->uuid()));
      return true;
    }
    InFlight copied = std::move(in_flight_.front());
    in_flight_.pop_front();
    idle_events_.push_back(std::move(copied.event));
    const uint64_t bytes = copied.job.bytes();
    in_flight_bytes_ -= bytes;
    const bool from_host = copied.job.from_host();
    copies_.fetch_add(from_host ? 1 : 0, std::memory_order_relaxed);
    (from_host ? bytes_ : peer_bytes_).fetch_add(bytes, std::memory_order_relaxed);
    const auto now = Clock::now();
    copy_ns_.fetch_add(static_cast<uint64_t>(nanoseconds(now - busy_since_).count()),
                       std::memory_order_relaxed);
    durations_.Record(static_cast<uint64_t>(nanoseconds(now - copied.since).count()));
    const CopyTime time{Nanoseconds(busy_since_), Nanoseconds(now)};
    busy_since_ = now;
    copied.job.done(OkStatus(), time);
    last_progress_.store(in_flight_.empty() ? 0 : now.time_since_epoch().count(), std::memory_order_relaxed);
    any = true;
  }
  return any;
}

void CopyEngine::Fail(const Status& cause) {
  const Status error = Unavailable(cause.message());
  std::deque<Lane::QueuedJob> waiting_jobs;
  {
    const MutexLock lock(mutex_);
    if (!failed_.ok()) return;
    failed_ = error;
    errors_.fetch_add(1, std::memory_order_relaxed);
    for (Lane* lane : lanes_) {
      std::move(lane->jobs_.begin(), lane->jobs_.end(), std::back_inserter(waiting_jobs));
      lane->jobs_.clear();
    }
  }
  on_failure_(error);  // called first, because the rest may be slow
  for (Lane::QueuedJob& waiting : waiting_jobs) waiting.job.done(error, {});
  DrainStream();
  for (InFlight& copy : in_flight_) {
    idle_events_.push_back(std::move(copy.event));
    copy.job.done(error, {});
  }
  in_flight_.clear();
  in_flight_bytes_ = 0;
  last_progress_.store(0, std::memory_order_relaxed);
}

// In a broken context nothing is copied any more, and the stream reports that immediately.
void CopyEngine::DrainStream() const {
  const Clock::time_point deadline = Clock::now() + kDrainTimeout;
  while (device_->driver().cuStreamQuery(stream_.get().native) == CUDA_ERROR_NOT_READY) {
    if (Clock::now() >= deadline) {
      spdlog::error("GPU {} does not complete the copies in flight: they are abandoned", device_->uuid());
      return;
    }
    std::this_thread::sleep_for(kLongPause);
  }
}

bool CopyEngine::ReadReleases() {
  std::vector<std::shared_ptr<ReleaseReader>> readers;
  {
    const MutexLock lock(mutex_);
    for (const Lane* lane : lanes_) {
      if (!lane->waiting_) continue;
      if (auto reader = lane->reader_.lock()) readers.push_back(std::move(reader));
    }
  }
  for (const auto& reader : readers) reader->ReadReleases();
  return !readers.empty();
}

void CopyEngine::Pause() {
  const bool copying = !in_flight_.empty();
  if (copying && in_flight_.front().job.bytes() < kSpinBytes) return;
  const MutexLock lock(mutex_);
  if (changes_ != 0) {  // jobs or readers were added since the last pause
    changes_ = 0;
    pause_ = kShortPause;
    has_readers_ =
        true;  // a reader may have been added since the last check, so check again before a long sleep
    return;
  }
  if (!copying && !has_readers_) {
    while (changes_ == 0) changed_.Wait(mutex_);
    return;
  }
  if (copying) pause_ = kShortPause;
  changed_.WaitUntil(mutex_, Clock::now() + pause_);
  pause_ = std::min(pause_ * 2, kLongPause);
}

}  // namespace pinfeed
