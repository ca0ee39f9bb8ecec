// SPDX-License-Identifier: Apache-2.0
// How many images a second some decode threads make, alone and beside a busy GPU, and where their time goes.
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "client/src/gpu/convert_kernel.h"
#include "tests/gpu/decode_fixture.h"

namespace pinfeed {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Time in one function, of all threads.
struct Spent {
  std::atomic<double> wall{0};
  std::atomic<double> cpu{0};
};
class SpentScope {
 public:
  explicit SpentScope(Spent& spent) : spent_(spent) {}
  ~SpentScope() {
    spent_.wall.fetch_add(Seconds(CLOCK_MONOTONIC) - wall_);
    spent_.cpu.fetch_add(Seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_);
  }
  SpentScope(const SpentScope&) = delete;
  SpentScope& operator=(const SpentScope&) = delete;

 private:
  Spent& spent_;
  const double wall_ = Seconds(CLOCK_MONOTONIC);
  const double cpu_ = Seconds(CLOCK_THREAD_CPUTIME_ID);
};

const NvJpeg* untimed = nullptr;
Spent in_headers;
Spent in_engines;

nvjpeg::ResultCode ParseHeader(nvjpeg::Handle handle, const unsigned char* data, size_t bytes,
                               nvjpeg::Bitstream stream) {
  const SpentScope scope(in_headers);
  return untimed->nvjpegJpegStreamParseHeader(handle, data, bytes, stream);
}
nvjpeg::ResultCode DecodeBatched(nvjpeg::Handle handle, nvjpeg::State state, const unsigned char* const* data,
                                 const size_t* bytes, nvjpeg::Image* outputs, nvjpeg::Params* params,
                                 CUstream stream) {
  const SpentScope scope(in_engines);
  return untimed->nvjpegDecodeBatchedEx(handle, state, data, bytes, outputs, params, stream);
}

// Purpose: a trainer that fills the GPU: a queue of `depth` kernels that each write a GiB. Threads: its own.
class BusyGpu {
 public:
  BusyGpu(std::shared_ptr<const CudaDevice> device, size_t depth)
      : device_(std::move(device)), depth_(depth), thread_([this] { Run(); }) {}
  ~BusyGpu() {
    stop_.store(true);
    thread_.join();
  }
  BusyGpu(const BusyGpu&) = delete;
  BusyGpu& operator=(const BusyGpu&) = delete;
  uint64_t done() const { return done_.load(); }

 private:
  void Run() {
    constexpr uint64_t kBytes = uint64_t{1} << 30;
    const auto scope = device_->Enter();
    const CudaDriver& driver = device_->driver();
    const DeviceMemory memory = Require(DeviceMemory::Allocate(device_, kBytes));
    CUstream native = nullptr;
    Require(
        CudaStatus(driver.cuStreamCreateWithPriority(&native, CU_STREAM_NON_BLOCKING, 0), "create a stream"));
    const UniqueCudaStream stream({device_.get(), native});
    std::vector<UniqueCudaEvent> events;
    for (size_t i = 0; i < depth_; ++i) {
      CUevent event = nullptr;
      Require(CudaStatus(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
                         "create an event"));
      events.emplace_back(OnDevice<CUevent>{device_.get(), event});
    }
    for (size_t i = 0; !stop_.load(); ++i) {
      const CUevent event = events[i % depth_].get().native;
      Require(CudaStatus(driver.cuEventSynchronize(event), "wait"));  // at once before its first record
      if (i >= depth_) done_.fetch_add(1);
      Require(CudaStatus(driver.cuMemsetD8Async(memory.address(), 0, kBytes, native), "write"));
      Require(CudaStatus(driver.cuEventRecord(event, native), "record"));
    }
    Require(CudaStatus(driver.cuStreamSynchronize(native), "wait"));
  }

  const std::shared_ptr<const CudaDevice> device_;
  const size_t depth_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> done_{0};
  std::thread thread_;  // last: it uses the others
};

struct Rate {
  double images_per_second = 0;
  double cpu_per_thousand = 0;
  double kernels_per_second = 0;  // of the busy GPU
};

Rate Measure(std::vector<std::unique_ptr<DecodeFixture>>& fixtures,
             const std::vector<std::vector<ImageToDecode>>& chunks, double seconds, const BusyGpu* busy,
             bool vary) {
  std::atomic<uint64_t> images{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const double cpu = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  const auto begin = Clock::now();
  const uint64_t kernels = busy != nullptr ? busy->done() : 0;
  for (size_t t = 0; t < fixtures.size(); ++t) {
    threads.emplace_back([&, t] {
      std::vector<Status> failures(GpuImageDecoder::kMaxImages);
      for (size_t i = t; !stop.load(std::memory_order_relaxed); ++i) {
        std::vector<ImageToDecode> chunk = chunks[i % chunks.size()];
        if (vary) chunk.erase(chunk.begin(), chunk.begin() + static_cast<ptrdiff_t>(i % 16));
        const std::span<Status> statuses = std::span(failures).first(chunk.size());
        for (size_t k = 0; k < chunk.size(); ++k) chunk[k].out = fixtures[t]->OutputPointer(k);
        Require(fixtures[t]->decoder().Decode(chunk, statuses));
        for (const Status& failure : statuses) Require(failure);
        images.fetch_add(chunk.size(), std::memory_order_relaxed);
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));  // the measurement itself
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto done = static_cast<double>(images.load());
  return {done / elapsed, (Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / done * 1000,
          busy != nullptr ? static_cast<double>(busy->done() - kernels) / elapsed : 0};
}

}  // namespace

void MeasureRates(const std::shared_ptr<const CudaDevice>& device, const std::vector<File>& photos,
                  double seconds) {
  untimed = Require(NvJpeg::Load());
  NvJpeg timed = *untimed;
  timed.nvjpegJpegStreamParseHeader = ParseHeader;
  timed.nvjpegDecodeBatchedEx = DecodeBatched;
  DecodeFixture source(device);
  const std::vector<Expectation> images = RandomCrops(source, photos, 4 * GpuImageDecoder::kMaxImages);
  const std::vector<ImageToDecode> encoded = source.Encode(images, 0);
  std::vector<std::vector<ImageToDecode>> chunks;
  for (size_t i = 0; i < encoded.size(); i += GpuImageDecoder::kMaxImages)
    chunks.emplace_back(encoded.begin() + static_cast<ptrdiff_t>(i),
                        encoded.begin() + static_cast<ptrdiff_t>(i + GpuImageDecoder::kMaxImages));
  const auto measure = [&](size_t count, const BusyGpu* busy, bool vary = false) {
    std::vector<std::unique_ptr<DecodeFixture>> fixtures;
    for (size_t i = 0; i < count; ++i)
      fixtures.push_back(std::make_unique<DecodeFixture>(
          device, GpuImageDecoder::Options{.height = DecodeFixture::kSide, .width = DecodeFixture::kSide},
          &timed));
    (void)Measure(fixtures, chunks, seconds / 4, busy, vary);  // a warm-up
    in_headers.cpu = in_engines.cpu = in_engines.wall = 0;
    const Rate rate = Measure(fixtures, chunks, seconds, busy, vary);
    const double thousands = rate.images_per_second * seconds / 1000;
    std::printf(
        "%zu threads: %.0f images/s, CPU %.4f s per 1,000 (headers %.4f, engines' call %.4f); %.0f%% of "
        "the "
        "threads' time in the engines' call",
        count, rate.images_per_second, rate.cpu_per_thousand, in_headers.cpu / thousands,
        in_engines.cpu / thousands, 100 * in_engines.wall / (seconds * static_cast<double>(count)));
    if (busy != nullptr) std::printf("; %.0f kernels/s", rate.kernels_per_second);
    std::printf("\n");
  };
  for (const size_t count : {1, 2, 3, 4}) measure(count, nullptr);
  std::printf("chunks of 49 to 64 images, as where the workers decode some:\n");
  for (const size_t count : {1, 3}) measure(count, nullptr, true);
  for (const size_t depth : {2, 100}) {
    const BusyGpu busy(device, depth);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 4));  // until its queue is full
    const uint64_t before = busy.done();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 2));  // the measurement itself
    const double alone = 2 * static_cast<double>(busy.done() - before) / seconds;
    std::printf("beside a GPU whose queue has %zu kernels, %.0f a second alone:\n", depth, alone);
    for (const size_t count : {2, 4}) measure(count, &busy);
  }
}

}  // namespace pinfeed
