// SPDX-License-Identifier: Apache-2.0
//
// A trainer is killed while its kernel writes to the daemon's arena. In what order do the pidfd, the kernel's
// last write, the process list and the memory tell? And what if a child that the trainer forked lives on?
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "worker.h"

namespace pinfeed {
namespace {

constexpr std::size_t kArenaBytes = 1ULL << 30;
constexpr std::size_t kPrivateBytes = 2ULL << 30;
constexpr double kChildEndsAfter = 2.0;  // seconds after the kill
constexpr double kReleaseAfter =
    1.0;  // seconds after the kill, the daemon gives up its side of a vmm-fd arena

// What the processes of one run tell each other.
struct Shared {
  std::atomic<std::uint64_t> arena_word{0};
  std::atomic<std::uint64_t> free_bytes{0};
  std::atomic<int> release{0};
  std::atomic<int> release_us{-1};
  std::atomic<int> release_result{-1};
  std::atomic<int> stop{0};
};

// The daemon: exports an arena, then watches its first word and the free memory.
void Daemon(int socket, Backend backend, Shared* shared) {
  Gpu gpu;
  Offer offer;
  int fd = -1;
  Arena arena = ExportArena(gpu, backend, kArenaBytes, &offer, &fd);
  SendMessage(socket, &offer, sizeof(offer), fd);
  if (fd >= 0) close(fd);
  while (shared->stop == 0) {
    if (shared->release == 1 && arena.address != 0) {
      const double start = Now();
      shared->release_result = int(DropArena(&arena));
      shared->release_us = int((Now() - start) * 1e6);
    }
    if (arena.address != 0) {
      std::uint64_t word = 0;
      CU(cuMemcpyDtoHAsync(&word, arena.address, sizeof(word), gpu.stream));
      CU(cuStreamSynchronize(gpu.stream));
      shared->arena_word = word;
    }
    std::size_t free_bytes = 0;
    std::size_t all = 0;
    CU(cuMemGetInfo(&free_bytes, &all));
    shared->free_bytes = free_bytes;
  }
}

bool NvidiaSmiLists(int pid) {
  FILE* pipe = popen("nvidia-smi --query-compute-apps=pid --format=csv,noheader", "r");
  if (pipe == nullptr) Fail(__FILE__, __LINE__, "run nvidia-smi", std::strerror(errno));
  bool found = false;
  for (char line[128]; fgets(line, sizeof(line), pipe) != nullptr;) found = found || std::atoi(line) == pid;
  pclose(pipe);
  return found;
}

enum class Work { kOneThread, kWholeDevice, kCopies };

enum class Child { kNone, kForked, kForkedClosed, kExecuted };

struct Seen {
  double pidfd = -1, kernel_word = -1, arena_word = -1, smi = -1;
  double unlisted = -1;       // the first time NVML did not list the pid
  double back_half = -1;      // when half of the client's private memory was free again
  double released_back = -1;  // when the arena's memory was free, after the daemon let go
};

void Run(Report* report, Backend backend, Child child, const std::string& child_name,
         Work work = Work::kOneThread) {
  auto* shared = new (SharedMemory(4096)) Shared;
  std::uint64_t* words = SharedWords();
  words[0] = 0;
  Process daemon = Spawn({}, [&](int socket) { Daemon(socket, backend, shared); });
  Worker client;
  Offer offer;
  int fd = -1;
  if (!ReceiveMessage(daemon.socket, &offer, sizeof(offer), &fd))
    Fail(__FILE__, __LINE__, "await the offer", "none came");
  CU(client.Call({.op = Op::kImport, .offer = offer}, fd).result);
  if (fd >= 0) close(fd);
  CU(client.Call({.op = Op::kAllocate, .bytes = kPrivateBytes}).result);
  int child_pid = 0;
  if (child != Child::kNone) {
    const Op op = child == Child::kExecuted ? Op::kForkExec : Op::kFork;
    child_pid = int(client.Call({.op = op, .flag = child == Child::kForkedClosed}).value);
  }
  if (work == Work::kCopies) {
    client.Post({.op = Op::kCopyForever});
  } else {
    CU(client.Call({.op = Op::kSpin, .bytes = 12'000'000'000, .seed = 1, .flag = work == Work::kWholeDevice})
           .result);
  }
  const char* work_names[] = {"", ", kernel on the whole device", ", copies instead of a kernel"};
  const std::string scenario = std::string(BackendName(backend)) + ", " + child_name + work_names[int(work)];
  const double patience = Now() + 5;
  while (shared->arena_word == 0 && Now() < patience) usleep(1000);
  if (shared->arena_word == 0) Fail(__FILE__, __LINE__, "await the kernel's first write", scenario);
  usleep(300'000);

  Seen seen;
  std::atomic<bool> over{false};
  std::atomic<double> first_unlisted{-1};
  std::atomic<double> last_smi{-1};
  const int pid = client.process().pid;
  bool child_listed = false;
  const std::uint64_t free_before = shared->free_bytes;
  static const Nvml nvml;
  report->Rely(scenario, "NVML lists the client before", nvml.Lists(pid) ? "yes" : "no", nvml.Lists(pid));
  const double killed = Now();
  client.Kill();
  std::thread nvml_watch([&] {
    while (!over) {
      if (first_unlisted < 0 && !nvml.Lists(pid)) first_unlisted = Now() - killed;
      child_listed = child_listed || (child_pid != 0 && nvml.Lists(child_pid));
      usleep(500);
    }
  });
  std::thread smi_watch([&] {
    while (!over) {
      const double asked = Now();
      if (NvidiaSmiLists(pid)) last_smi = asked - killed;
    }
  });
  std::uint64_t kernel_word = words[0];
  std::uint64_t arena_word = shared->arena_word;
  std::uint64_t free_at_release = 0;
  const double last = child == Child::kNone ? 2.5 : kChildEndsAfter + 1.5;
  bool child_ended = child_pid == 0;
  double after_child = -1;
  for (double now = 0; now < last; now = Now() - killed) {
    if (seen.pidfd < 0 && Ended(client.process(), 0)) seen.pidfd = now;
    const std::uint64_t word = *static_cast<volatile std::uint64_t*>(words);
    if (word != kernel_word) {
      kernel_word = word;
      seen.kernel_word = now;
    }
    if (shared->arena_word != arena_word) {
      arena_word = shared->arena_word;
      seen.arena_word = now;
    }
    const auto back = std::int64_t(shared->free_bytes - free_before);
    if (seen.back_half < 0 && back > std::int64_t(kPrivateBytes / 2)) seen.back_half = now;
    if (backend == Backend::kVmmFd && shared->release == 0 && now > kReleaseAfter) {
      free_at_release = shared->free_bytes;
      shared->release = 1;
    }
    const std::uint64_t base = seen.back_half > kReleaseAfter ? free_before + kPrivateBytes : free_at_release;
    if (shared->release_us >= 0 && seen.released_back < 0 && shared->free_bytes > base + kArenaBytes / 2)
      seen.released_back = now;
    if (!child_ended && now > kChildEndsAfter) {
      kill(child_pid, SIGKILL);
      after_child = Now() - killed;
      child_ended = true;
    }
  }
  over = true;
  nvml_watch.join();
  smi_watch.join();
  seen.unlisted = first_unlisted;
  seen.smi = last_smi;
  shared->stop = 1;
  if (!Ended(daemon, 10)) Fail(__FILE__, __LINE__, "await the daemon's end", scenario);
  Reap(&daemon);

  auto ms = [](double seconds) { return seconds < 0 ? std::string("never") : Number(seconds * 1e3, "ms"); };
  report->Say(scenario, "pidfd readable after", ms(seen.pidfd));
  if (work != Work::kCopies)
    report->Say(scenario, "kernel's last write to host memory after", ms(seen.kernel_word));
  report->Say(scenario, "last write to the arena seen after", ms(seen.arena_word));
  report->Say(scenario, "nvidia-smi listed the pid last after", ms(seen.smi));
  report->Say(scenario, "its own memory free again after", ms(seen.back_half));
  if (backend == Backend::kVmmFd) {
    report->Rely(scenario, "daemon unmaps and releases its side 1 s later, taking",
                 Number(shared->release_us * 1e-3, "ms, ") + CuName(CUresult(shared->release_result.load())),
                 shared->release_result == 0 && shared->release_us < 1'000'000);
    report->Say(scenario, "the arena's memory free again after", ms(seen.released_back));
  }
  if (child_pid != 0) {
    report->Say(scenario, "NVML lists the child's pid", child_listed ? "yes" : "no");
    report->Say(scenario, "the child was killed after", ms(after_child));
  }
  // 5 ms: how stale a sample of the arena can be.
  const double last_write = std::max(seen.kernel_word, seen.arena_word);
  report->Rely(scenario, "NVML lists the pid until no write comes any more, and not after",
               "gone after " + ms(seen.unlisted), seen.unlisted > last_write - 0.005);
  if (child != Child::kForked) {
    report->Rely(scenario, "no write after the pidfd is readable", "last " + ms(last_write),
                 seen.pidfd > last_write - 0.005);
  }
}

}  // namespace
}  // namespace pinfeed

int main(int argc, char** argv) {
  using pinfeed::Backend;
  using pinfeed::Child;
  using pinfeed::Work;
  if (argc != 2) {
    std::fprintf(stderr, "usage: client_killed vmm-fd|cuda-ipc\n");
    return 2;
  }
  pinfeed::LoadKernelImage();
  pinfeed::Report report("1 client killed");
  const Backend backend = std::string(argv[1]) == "vmm-fd" ? Backend::kVmmFd : Backend::kLegacy;
  for (Work work : {Work::kOneThread, Work::kWholeDevice, Work::kCopies}) {
    pinfeed::Run(&report, backend, Child::kNone, "no child", work);
    pinfeed::Run(&report, backend, Child::kForked, "forked child", work);
  }
  pinfeed::Run(&report, backend, Child::kForkedClosed, "forked child that closed its descriptors");
  pinfeed::Run(&report, backend, Child::kExecuted, "forked and executed child");
  return report.ExitStatus();
}
