// SPDX-License-Identifier: Apache-2.0
// The ceiling of arrays from the page cache to several GPUs. In: a file of samples of one size. Out: bytes a
// second that threads pread at random into pinned memory ("read"), copy from there to the GPUs ("copy"), or
// do one after the other ("both"), each with memory, a stream and two halves of its own, so that it reads one
// while the other is copied. No batches, no order, no other process.
//
//   staged_ceiling FILE OFFSET SAMPLE_BYTES SAMPLES THREADS GPUS SECONDS read|copy|both SAMPLES_AT_ONCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/cuda/device_memory.h"
#include "tests/bench/sample_file.h"

namespace pinfeed {
namespace {

struct Job : SampleFile {
  unsigned threads = 0;
  int gpus = 0;
  double seconds = 0;
  uint64_t at_once = 0;  // samples in one copy
  bool reads = true;
  bool copies = true;
};

constexpr uint64_t kPage = uint64_t{2} << 20;

// Purpose: what one thread reads into and copies from. Leaves its memory to the end of the process.
class Lane {
 public:
  Status Prepare(const Job& job, std::shared_ptr<const CudaDevice> device) {
    device_ = std::move(device);
    bytes_ = job.at_once * job.sample_bytes;
    const uint64_t all = (2 * bytes_ + kPage - 1) / kPage * kPage;
    void* const memory =
        ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return ErrnoStatus("map memory", errno);
    memory_ = static_cast<std::byte*>(memory);
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    ASSIGN_OR_RETURN(pinned_, HostRegistration::Create(device_, memory, all));
    const CudaDriver& driver = device_->driver();
    RETURN_IF_ERROR(CudaStatus(driver.cuMemAlloc(&target_, bytes_), "allocate on the GPU"));
    RETURN_IF_ERROR(
        CudaStatus(driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "make a stream"));
    for (CUevent& event : copied_)
      RETURN_IF_ERROR(CudaStatus(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "make an event"));
    return OkStatus();
  }

  Status Run(const Job& job, int fd, unsigned seed, const std::atomic<bool>& stop,
             std::atomic<uint64_t>& done) {
    ASSIGN_OR_RETURN(const CudaScope scope, device_->Enter());
    const CudaDriver& driver = device_->driver();
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<uint64_t> pick(0, job.samples - 1);
    for (unsigned turn = 0; !stop.load(std::memory_order_relaxed); ++turn) {
      const unsigned half = turn % 2;
      if (job.copies && turn >= 2) RETURN_IF_ERROR(WaitForCopy(copied_[half]));
      std::byte* const place = memory_ + half * bytes_;
      for (uint64_t i = 0; job.reads && i < job.at_once; ++i)
        RETURN_IF_ERROR(ReadSample(fd, job, pick(random), place + i * job.sample_bytes));
      if (job.copies) {
        RETURN_IF_ERROR(
            CudaStatus(driver.cuMemcpyHtoDAsync(target_, place, bytes_, stream_), "copy to the GPU"));
        RETURN_IF_ERROR(CudaStatus(driver.cuEventRecord(copied_[half], stream_), "record an event"));
      }
      done.fetch_add(bytes_, std::memory_order_relaxed);
    }
    return CudaStatus(driver.cuStreamSynchronize(stream_), "wait for the copies");
  }

 private:
  Status WaitForCopy(CUevent copied) const {
    CUresult state = CUDA_ERROR_NOT_READY;
    while ((state = device_->driver().cuEventQuery(copied)) == CUDA_ERROR_NOT_READY)
      std::this_thread::yield();
    return CudaStatus(state, "wait for a copy");
  }

  std::shared_ptr<const CudaDevice> device_;
  uint64_t bytes_ = 0;  // of one half
  std::byte* memory_ = nullptr;
  HostRegistration pinned_;
  CUdeviceptr target_ = 0;
  CUstream stream_ = nullptr;
  std::array<CUevent, 2> copied_{};
};

Status Run(const Job& job) {
  const UniqueFd file(open(job.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus("open " + job.path, errno);
  std::vector<std::shared_ptr<const CudaDevice>> devices;
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    ASSIGN_OR_RETURN(devices.emplace_back(), CudaDevice::Open(gpu));
  }
  std::vector<std::unique_ptr<Lane>> lanes;
  for (unsigned i = 0; i < job.threads; ++i) {
    lanes.push_back(std::make_unique<Lane>());
    RETURN_IF_ERROR(lanes.back()->Prepare(job, devices[i % devices.size()]));
  }
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> done = 0;
  std::vector<Status> ends(job.threads);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < job.threads; ++i)
    threads.emplace_back([&, i] { ends[i] = lanes[i]->Run(job, file.get(), i, stop, done); });
  const auto pause = std::chrono::duration<double>(job.seconds / 4);
  std::this_thread::sleep_for(pause);  // until they run evenly
  const uint64_t before = done;
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(4 * pause);
  const uint64_t moved = done - before;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (const Status& end : ends) RETURN_IF_ERROR(end);
  std::printf("{\"gb_per_s\": %.2f}\n", static_cast<double>(moved) / took.count() / 1e9);
  return OkStatus();
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fputs(
        "usage: staged_ceiling FILE OFFSET SAMPLE_BYTES SAMPLES THREADS GPUS SECONDS read|copy|both "
        "SAMPLES_AT_ONCE\n",
        stderr);
    return 2;
  }
  const std::string mode = argv[8];
  const pinfeed::Status status =
      pinfeed::Run({{argv[1], std::stoull(argv[2]), std::stoull(argv[3]), std::stoull(argv[4])},
                    static_cast<unsigned>(std::stoul(argv[5])),
                    std::stoi(argv[6]),
                    std::stod(argv[7]),
                    std::stoull(argv[9]),
                    mode != "copy",
                    mode != "read"});
  if (status.ok()) return 0;
  std::fprintf(stderr, "staged_ceiling: %s\n", status.ToString().c_str());
  return 1;
}
