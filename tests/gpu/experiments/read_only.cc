// SPDX-License-Identifier: Apache-2.0
//
// A trainer maps a shared arena for reading and writes all the same. Is the write refused, and does only that
// trainer suffer? Ends contexts with sticky errors on purpose: run.sh runs it last.
#include "worker.h"

namespace pinfeed {
namespace {

void Run(Report* report) {
  const char* scenario = "vmm-fd, PROT_READ";
  Worker daemon;
  Worker bystander;
  Worker writer;
  Worker copier;
  Worker upgrader;
  int fd = -1;
  const Offer offer = daemon.Call({.op = Op::kExport, .bytes = 64 << 20, .seed = 1}, -1, &fd).offer;
  auto read_only = [&](Worker& worker) {
    return worker.Call({.op = Op::kImport, .flag = true, .offer = offer}, fd).result;
  };
  CUresult mapped = read_only(writer);
  report->Rely(scenario, "import with read access only", CuName(mapped), mapped == CUDA_SUCCESS);
  Answer check = writer.Call({.op = Op::kVerify, .seed = 1});
  report->Rely(scenario, "reading",
               CuName(check.result) + ", " + std::to_string(check.value) + " wrong words",
               check.result == CUDA_SUCCESS && check.value == 0);
  for (Worker* worker : {&bystander, &copier, &upgrader}) CU(read_only(*worker));

  // The longest copy of a quiet second, then of a second in which the fault happens.
  daemon.Post({.op = Op::kCopyFor, .bytes = 1'000'000'000});
  bystander.Post({.op = Op::kCopyFor, .bytes = 1'000'000'000});
  const auto quiet = daemon.Await(10);
  const auto quiet_bystander = bystander.Await(10);
  daemon.Post({.op = Op::kCopyFor, .bytes = 2'000'000'000});
  bystander.Post({.op = Op::kCopyFor, .bytes = 2'000'000'000});
  usleep(500'000);
  const Answer write = writer.Call({.op = Op::kFill, .seed = 9});
  report->Rely(scenario, "a kernel writes", CuName(write.result) + " after " + Number(write.ms, "ms"),
               write.result != CUDA_SUCCESS);
  const auto faulted = daemon.Await(15);
  const auto faulted_bystander = bystander.Await(15);
  if (!quiet || !quiet_bystander) Fail(__FILE__, __LINE__, "copy undisturbed", "no answer");
  auto pair = [](const std::optional<Answer>& a, const std::optional<Answer>& b) {
    return std::to_string(a->value) + " us -> " +
           (b ? std::to_string(b->value) + " us, " + CuName(b->result) : std::string("no answer"));
  };
  report->Rely(scenario, "the daemon's longest 1 MiB copy, quiet -> during the fault", pair(quiet, faulted),
               faulted && faulted->result == CUDA_SUCCESS);
  report->Rely(scenario, "another client's longest 1 MiB copy, quiet -> during the fault",
               pair(quiet_bystander, faulted_bystander),
               faulted_bystander && faulted_bystander->result == CUDA_SUCCESS);
  report->Say(scenario, "the writer's next call", CuName(writer.Call({.op = Op::kVerify, .seed = 1}).result));
  check = daemon.Call({.op = Op::kVerify, .seed = 1});
  report->Rely(scenario, "the daemon's arena afterwards",
               CuName(check.result) + ", " + std::to_string(check.value) + " wrong words",
               check.result == CUDA_SUCCESS && check.value == 0);

  report->Say(scenario, "a copy to the mapping by the copy engine",
              CuName(copier.Call({.op = Op::kCopyIn}).result));
  report->Say(scenario, "that client's next call", CuName(copier.Call({.op = Op::kFreeBytes}).result));
  check = bystander.Call({.op = Op::kVerify, .seed = 1});
  report->Rely(scenario, "another client reads after that",
               CuName(check.result) + ", " + std::to_string(check.value) + " wrong words",
               check.result == CUDA_SUCCESS && check.value == 0);
  report->Say(scenario, "an importer asks for write access itself",
              CuName(upgrader.Call({.op = Op::kGrantWrite}).result));
  report->Say(scenario, "and then writes", CuName(upgrader.Call({.op = Op::kFill, .seed = 1}).result));
  close(fd);
}

}  // namespace
}  // namespace pinfeed

int main() {
  pinfeed::LoadKernelImage();
  pinfeed::Report report("7 read-only");
  pinfeed::Run(&report);
  return report.ExitStatus();
}
