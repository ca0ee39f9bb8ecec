// SPDX-License-Identifier: Apache-2.0
//
// The daemon is killed while two trainers map its arena. Do they still read the right bytes, also when
// somebody else takes all memory that is free? When does the memory come back, what does letting go cost, and
// can a new daemon serve the same trainers?
#include "worker.h"

namespace pinfeed {
namespace {

constexpr std::size_t kArenaBytes = 4ULL << 30;

std::string Seen(const Answer& answer) {
  return CuName(answer.result) + ", " + std::to_string(answer.value) + " wrong words";
}

bool Right(const Answer& answer) {
  return answer.result == CUDA_SUCCESS && answer.value == 0;
}

void Run(Report* report, Backend backend) {
  const std::string scenario = BackendName(backend);
  Worker daemon;
  Worker first;
  Worker second;
  Worker late;
  Worker presser;
  Worker next_daemon;
  int fd = -1;
  auto free_bytes = [&] { return std::int64_t(late.Call({.op = Op::kFreeBytes}).value); };
  auto back = [&](std::int64_t before) { return Gib(double(free_bytes() - before)); };

  const Offer offer =
      daemon.Call({.op = Op::kExport, .bytes = kArenaBytes, .seed = 1, .offer = {backend, 0, {}}}, -1, &fd)
          .offer;
  Answer import = first.Call({.op = Op::kImport, .offer = offer}, fd);
  CU(import.result);
  report->Say(scenario, "import and map 4 GiB", Number(import.ms, "ms", 2));
  CU(second.Call({.op = Op::kImport, .offer = offer}, fd).result);
  if (!Right(first.Call({.op = Op::kVerify, .seed = 1})))
    Fail(__FILE__, __LINE__, scenario, "wrong before anything happened");

  std::int64_t before = free_bytes();
  daemon.Kill();
  const bool over = daemon.Over(5);
  report->Rely(scenario, "the killed daemon ends", over ? "yes" : "not within 5 s", over);
  usleep(200'000);
  report->Say(scenario, "memory back 0.2 s after its end, two clients map 4 GiB", back(before));
  Answer check = first.Call({.op = Op::kVerify, .seed = 1});
  report->Rely(scenario, "a client reads after the daemon's end", Seen(check), Right(check));

  // Somebody takes everything: were the arena's memory given out again, the clients would now read 0xff.
  std::size_t taken = 0;
  for (std::size_t chunk = 4ULL << 30; chunk >= 256 << 20;) {
    if (presser.Call({.op = Op::kAllocate, .bytes = chunk}).result == CUDA_SUCCESS) {
      taken += chunk;
    } else {
      chunk /= 2;
    }
  }
  check = second.Call({.op = Op::kVerify, .seed = 1});
  report->Rely(scenario, "a client reads after another process filled " + Gib(double(taken)), Seen(check),
               Right(check));
  presser.Call({.op = Op::kFree});

  Answer opened = late.Call({.op = Op::kImport, .offer = offer}, fd);
  report->Say(scenario, "a third client opens the dead daemon's arena", CuName(opened.result));
  if (opened.result == CUDA_SUCCESS) {
    report->Say(scenario, "and reads", Seen(late.Call({.op = Op::kVerify, .seed = 1})));
    report->Say(scenario, "and lets go", CuName(late.Call({.op = Op::kDrop}).result));
  }
  if (fd >= 0) close(fd);

  // A new daemon, before the clients let go of the old arena.
  int next_fd = -1;
  const Offer next =
      next_daemon
          .Call({.op = Op::kExport, .bytes = kArenaBytes, .seed = 2, .offer = {backend, 0, {}}}, -1, &next_fd)
          .offer;
  import = first.Call({.op = Op::kImport, .index = 1, .offer = next}, next_fd);
  Answer old_arena = first.Call({.op = Op::kVerify, .seed = 1});
  Answer new_arena = first.Call({.op = Op::kVerify, .index = 1, .seed = 2});
  report->Rely(scenario, "a client maps the next daemon's arena beside the old one",
               CuName(import.result) + "; old: " + Seen(old_arena) + "; new: " + Seen(new_arena),
               import.result == CUDA_SUCCESS && Right(old_arena) && Right(new_arena));

  before = free_bytes();
  Answer drop = first.Call({.op = Op::kDrop, .flag = true});
  report->Say(scenario, "the first client lets go of the old arena while its own kernel of 500 ms runs",
              CuName(drop.result) + ", took " + Number(drop.ms, "ms"));
  report->Say(scenario, "memory back then", back(before));
  drop = second.Call({.op = Op::kDrop});
  report->Rely(scenario, "the last client lets go, idle",
               CuName(drop.result) + ", took " + Number(drop.ms, "ms"), drop.result == CUDA_SUCCESS);
  usleep(100'000);
  const std::int64_t returned = free_bytes() - before;
  report->Rely(scenario, "memory back when all let go", Gib(double(returned)),
               returned > std::int64_t(kArenaBytes) - (64 << 20));
  opened = late.Call({.op = Op::kImport, .offer = offer});
  report->Say(scenario, "opening the old handle after that",
              backend == Backend::kLegacy ? CuName(opened.result) : "no descriptor left");
  new_arena = first.Call({.op = Op::kVerify, .index = 1, .seed = 2});
  report->Rely(scenario, "the new arena after that", Seen(new_arena), Right(new_arena));
  if (next_fd >= 0) close(next_fd);
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("2 exporter killed");
  pinfeed::Run(&report, pinfeed::Backend::kVmmFd);
  pinfeed::Run(&report, pinfeed::Backend::kLegacy);
  return report.ExitStatus();
}
