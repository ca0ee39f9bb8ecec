// SPDX-License-Identifier: Apache-2.0
//
// Device memory that a process costs besides what it asks for: a daemon that only copies, a trainer, and a
// process that makes and exports memory without a context.
#include <utility>
#include <vector>

#include "gpu.h"
#include "process.h"

namespace pinfeed {
namespace {

constexpr std::size_t kArenaBytes = 64 << 20;
constexpr std::size_t kHostBytes = 256 << 20;

// Says that a stage is done and waits until its cost was read.
void Stage(int socket, const char* name) {
  char text[64] = {};
  std::snprintf(text, sizeof(text), "%s", name);
  SendMessage(socket, text, sizeof(text), -1);
  int none = -1;
  char go = 0;
  if (!ReceiveMessage(socket, &go, sizeof(go), &none)) _exit(0);
}

void CopyDaemon(int socket, bool small_limits) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CU(cuInit(0));
  Stage(socket, "cuInit");
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  Stage(socket, "primary context");
  if (small_limits) {
    // What kernels would need: a stack for every thread that can be resident, a heap, a buffer for printf.
    CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16));
    CU(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1024));
    CU(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1024));
    Stage(socket, "small limits");
  }
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 8; ++i) {
    CUevent event = nullptr;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  }
  Stage(socket, "a stream, 8 events");
  void* host = SharedMemory(kHostBytes);
  CU(cuMemHostRegister(host, kHostBytes, 0));
  Stage(socket, "256 MiB of host memory registered");
  CUdeviceptr arena = 0;
  CU(cuMemAlloc(&arena, kArenaBytes));
  CU(cuMemcpyHtoDAsync(arena, host, kArenaBytes, stream));
  CU(cuStreamSynchronize(stream));
  Stage(socket, "64 MiB arena, first copy");
}

void Trainer(int socket) {
  Gpu gpu;
  Stage(socket, "context, two streams, module");
  CU(Launch(gpu.spin, 1, 1, gpu.stream, CUdeviceptr(0), CUdeviceptr(0), std::uint64_t(1000)));
  CU(cuStreamSynchronize(gpu.stream));
  Stage(socket, "first kernel");
}

void Creator(int socket) {
  CUdevice device = 0;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  Stage(socket, "cuInit");
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = device;
  kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle allocation = 0;
  int fd = -1;
  CU(cuMemCreate(&allocation, kArenaBytes, &kind, 0));
  CU(cuMemExportToShareableHandle(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  Stage(socket, "64 MiB arena made and exported");
}

}  // namespace
}  // namespace pinfeed

int main() {
  using namespace pinfeed;
  LoadKernelImage();
  Report report("15 context cost");
  const std::pair<const char*, std::function<void(int)>> roles[] = {
      {"first process: copy-only daemon", [](int socket) { CopyDaemon(socket, false); }},
      {"next process: copy-only daemon", [](int socket) { CopyDaemon(socket, false); }},
      {"next process: copy-only daemon, small limits", [](int socket) { CopyDaemon(socket, true); }},
      {"next process: trainer", Trainer},
      {"next process: makes and exports without a context", Creator},
  };
  std::vector<Process> processes;
  for (const auto& [name, body] : roles)
    processes.push_back(Spawn({}, [work = body](int socket) {
      char go = 0;
      int none = -1;
      ReceiveMessage(socket, &go, sizeof(go), &none);
      work(socket);
    }));
  Nvml nvml;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    std::uint64_t before = nvml.UsedBytes();
    const std::uint64_t start = before;
    const char go = 1;
    SendMessage(processes[i].socket, &go, 1, -1);
    char stage[64];
    for (int none = -1; Readable(processes[i].socket, 20) &&
                        ReceiveMessage(processes[i].socket, stage, sizeof(stage), &none);) {
      usleep(100'000);
      const std::uint64_t now = nvml.UsedBytes();
      std::uint64_t listed = 0;
      const bool known = nvml.Lists(processes[i].pid, &listed);
      report.Say(roles[i].first, stage,
                 Number(double(std::int64_t(now - before)) / 1048576, "MiB more; in all ", 0) +
                     Number(double(std::int64_t(now - start)) / 1048576, "MiB; NVML lists it with ", 0) +
                     (known ? Number(double(listed) / 1048576, "MiB", 0) : std::string("nothing")));
      before = now;
      const std::string last = stage;
      // The first process stays, so that the others show what one more costs.
      if (i == 0 && last == "64 MiB arena, first copy") break;
      SendMessage(processes[i].socket, &go, 1, -1);
    }
    if (i != 0) {
      Reap(&processes[i]);
      usleep(300'000);
    }
  }
  Reap(processes.data());
  return report.ExitStatus();
}
