// SPDX-License-Identifier: Apache-2.0
//
// One process copies to the device at full speed while another keeps it busy with kernels: what does each
// lose?
#include <atomic>

#include "gpu.h"
#include "process.h"

namespace pinfeed {
namespace {

struct Shared {
  std::atomic<std::uint64_t> kernels{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<int> run_kernels{0};
  std::atomic<int> run_copies{0};
  std::atomic<int> ready{0};
};

void Trainer(Shared* shared, bool memory_bound) {
  constexpr std::size_t kBytes = 2ULL << 30;
  Gpu gpu;
  CUdeviceptr data = 0;
  CUdeviceptr out = 0;
  CU(cuMemAlloc(&data, kBytes));
  CU(cuMemAlloc(&out, 8));
  CU(Launch(gpu.fill, 264, 256, gpu.stream, data, std::uint64_t(kBytes / 4), std::uint32_t(1)));
  CU(cuStreamSynchronize(gpu.stream));
  ++shared->ready;
  for (;;) {
    if (shared->run_kernels == 0) {
      usleep(1000);
      continue;
    }
    for (int i = 0; i < 4; ++i) {
      if (memory_bound) {
        CU(Launch(gpu.count_wrong, 2112, 256, gpu.stream, data, std::uint64_t(kBytes / 4), std::uint32_t(1),
                  0, out));
      } else {
        CU(Launch(gpu.burn, 1056, 256, gpu.stream, out, 20000));
      }
    }
    CU(cuStreamSynchronize(gpu.stream));
    shared->kernels += 4;
  }
}

void Feeder(Shared* shared) {
  constexpr std::size_t kBytes = 64 << 20;
  Gpu gpu;
  void* host = SharedMemory(kBytes);
  std::memset(host, 0x5a, kBytes);
  CU(cuMemHostRegister(host, kBytes, 0));
  CUdeviceptr target = 0;
  CU(cuMemAlloc(&target, kBytes * 2));
  ++shared->ready;
  for (;;) {
    if (shared->run_copies == 0) {
      usleep(1000);
      continue;
    }
    for (std::size_t i = 0; i < 2; ++i) CU(cuMemcpyHtoDAsync(target + i * kBytes, host, kBytes, gpu.stream));
    CU(cuStreamSynchronize(gpu.stream));
    shared->bytes += 2 * kBytes;
  }
}

void Run(Report* report, bool memory_bound) {
  auto* shared = new (SharedMemory(4096)) Shared;
  Process trainer = Spawn({}, [&](int) { Trainer(shared, memory_bound); });
  Process feeder = Spawn({}, [&](int) { Feeder(shared); });
  const double patience = Now() + 20;
  while (shared->ready < 2 && Now() < patience) usleep(1000);
  const auto measure = [&](int kernels, int copies) {
    shared->run_kernels = kernels;
    shared->run_copies = copies;
    usleep(200'000);
    const std::uint64_t before_kernels = shared->kernels;
    const std::uint64_t before_bytes = shared->bytes;
    const double start = Now();
    usleep(1'000'000);
    const double seconds = Now() - start;
    return std::pair{double(shared->kernels - before_kernels) / seconds,
                     double(shared->bytes - before_bytes) / seconds * 1e-9};
  };
  const auto [kernels_alone, no_bytes] = measure(1, 0);
  const auto [no_kernels, bytes_alone] = measure(0, 1);
  const auto [kernels, bytes] = measure(1, 1);
  const std::string scenario = memory_bound ? "kernels bound by memory" : "kernels bound by arithmetic";
  report->Rely(
      scenario, "trainer's kernels a second, alone -> while fed",
      Number(kernels_alone, "-> ") + Number(kernels, "(") + Number(100 * kernels / kernels_alone, "%)"),
      kernels > (memory_bound ? 0.9 : 0.98) * kernels_alone);
  report->Rely(scenario, "daemon's copies, alone -> beside the kernels",
               Number(bytes_alone, "-> ") + Number(bytes, "GB/s"), bytes > 0.95 * bytes_alone);
  Reap(&trainer);
  Reap(&feeder);
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("3 copy overlap");
  pinfeed::Run(&report, false);
  pinfeed::Run(&report, true);
  return report.ExitStatus();
}
